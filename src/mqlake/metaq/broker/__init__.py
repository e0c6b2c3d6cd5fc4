"""The broker: request processing.

broker                      starts and stops everything in order
command_processor           put, get, offset, stats, version, quit
transactional               BEGIN to FORGET, and puts inside a transaction
transaction                 the states of one transaction
transaction_store, journal  transactions on the disk
stats                       the counters and their text
"""
