"""MetaQ's files: one directory a partition, segments in it, written at the end and read anywhere.

manager        all partitions of a broker; who opens, flushes, deletes and closes them when
message_store  one partition: its segments, group commit
message_set    one file, or a part of it
"""
