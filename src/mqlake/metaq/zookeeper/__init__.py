"""ZooKeeper: registry of brokers, topics, consumers and offsets.

paths      the nodes and their values                no I/O
session    a kazoo client that reports new sessions
embedded   the real server, as a child process
"""
