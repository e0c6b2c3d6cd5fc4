"""ZooKeeper: where brokers, topics, consumers and offsets are found.

paths      which nodes there are and what they hold                  no I/O
session    a kazoo client whose owner hears when a session was lost and another began
embedded   the real server, as a child process
"""
