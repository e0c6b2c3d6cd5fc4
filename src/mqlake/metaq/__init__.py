"""MetaQ (Metamorphosis 1.4.6): RocketMQ's ancestor, in rooms of its own.

    message     messages and partitions
    formats     records, the text protocol, transaction journal, checkpoint      no I/O
    config      server.ini
    store       files: message sets, stores of segments, group commit, recovery, deleting
    wire        connections of the text protocol, at either end
    zookeeper   paths, node contents, a session that reconnects
    broker      request processing, statistics, transactions
    client      producer, consumer, topic browser

The names are the original's. Facts about it (its bytes, its nodes, its keys) were read from its sources and
checked against the running Java broker and client 1.4.6.2.
"""
