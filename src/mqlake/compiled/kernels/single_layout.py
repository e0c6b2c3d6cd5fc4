"""The words that `single.put_one` works with, an int64 each; found without numba.

[ objects of Python, by address │ slots of objects, by offset │ the file │ counters │ room to work in ]
"""

from __future__ import annotations

# --- addresses of objects, all of which outlive the words
MESSAGE_TYPE, BATCH_TYPE, STR, BYTES, INT, TUPLE, DICT, NONE, FALSE, ZERO, NO_REASON = range(11)
SPECIAL = 11
"""A frozenset: the names of properties that put_one leaves to others."""
HOSTS, TOPICS, OFFSETS = 12, 13, 14
"""Dictionaries: (address, port) → bytes; topic → address of its words; (topic, queue id) → next queue offset."""
LOCKED = 15
"""A method without arguments: whether the log's lock is held."""
RESULT_TYPE, PUT_OK, APPEND_OK = 16, 17, 18
FLAGS = 19
"""The store's RunningFlags."""
FILE = 20
"""The MappedFile that is written; 0 while there is none that put_one may write."""

# --- where slots are in their objects, in bytes
TYPE_OF = 21
TOPIC, BODY, FLAG, PROPERTIES, QUEUE_ID, SYS_FLAG, BORN_TIMESTAMP, BORN_HOST, STORE_HOST = range(22, 31)
RECONSUME_TIMES, PREPARED_OFFSET, STORE_TIMESTAMP, QUEUE_OFFSET, PHYSICAL_OFFSET = range(31, 36)
STATUS, APPEND_FIELDS, REASON = 36, 37, 38
WROTE, COMMITTED, FILE_TIMESTAMP, WAKE = 39, 40, 41, 42
FLAG_BITS = 43

# --- the file, and the largest record and batch
FILE_ADDRESS, FILE_SIZE, FILE_BASE, RECORD_MAX, BATCH_MAX = 44, 45, 46, 47, 59

# --- counters
PUTS, PUT_BYTES, SLOWEST = 48, 49, 50

# --- room: two numbers of a clock; PyDict_Next's position, name and value; fields of a message as numbers; properties
CLOCK, NEXT_AT, NEXT_NAME, NEXT_VALUE = 51, 53, 54, 55
STATE = 56
"""The address of the words."""
ASLEEP, NOTIFY = 57, 58
"""The address of a word, and a function without arguments that is called after a put while that word is not 0."""
NUMBERS = 60
"""The message's numbers and hosts: that of the slot BORN_HOST is at NUMBERS + BORN_HOST."""
PROPERTIES_MAX = 64
PIECES = NUMBERS + PHYSICAL_OFFSET + 1
"""Of each property the address and length of name and value."""
TEMPLATE = PIECES + 4 * PROPERTIES_MAX
"""A record's fields up to its body."""
TEMPLATE_SIZE = 11
HISTOGRAM = TEMPLATE + TEMPLATE_SIZE
"""Puts by how long they took, ms; the last one of all that took longer."""
HISTOGRAM_SIZE = 10_001
SLOW, SLOW_TOPIC, SLOW_BODY = range(HISTOGRAM + HISTOGRAM_SIZE, HISTOGRAM + HISTOGRAM_SIZE + 3)
"""The slowest put since somebody set these to 0: how long it took, ms, the address of its topic's words, and the bytes
of its body."""
SIZE = SLOW_BODY + 1

# --- words of a topic
TOPIC_PUTS, TOPIC_BYTES, TOPIC_LENGTH, TOPIC_FIELD = range(4)
"""Counters, and the topic as a record has it: bytes from TOPIC_FIELD on."""
