"""MetaQ (Metamorphosis 1.4.6): RocketMQ's ancestor, in rooms of its own.

    message     what a message is
    formats     what bytes mean: records, the text protocol, transaction journal, checkpoint      no I/O
    config      server.ini
    store       files: message sets, stores of segments, group commit, recovery, deleting
    wire        connections that speak the text protocol, from either end
    zookeeper   who is there: paths, node contents, a session that comes back
    broker      what a request means; statistics; transactions
    client      producer, consumer, topic browser

The names are the original's. Facts about it (its bytes, its nodes, its keys) were read from its sources and
checked against the running Java broker and client 1.4.6.2.
"""
