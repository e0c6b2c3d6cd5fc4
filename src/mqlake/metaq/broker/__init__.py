"""The broker: what a request means.

broker                      everything together, started and stopped in order
command_processor           put, get, offset, stats, version, quit
transactional               BEGIN to FORGET, and puts inside a transaction
transaction                 one transaction's states
transaction_store, journal  what survives a crash of it
stats                       the counters and their text
"""
