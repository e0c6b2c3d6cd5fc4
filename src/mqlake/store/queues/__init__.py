"""Consume queues: units of one fixed size, from a topic's queue offset to a place in the log."""
