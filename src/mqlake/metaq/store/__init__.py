"""MetaQ's files: a directory per partition, with segments that are written at the end and read anywhere.

manager        all partitions of a broker: opening, flushing, deleting, closing
message_store  one partition: its segments, group commit
message_set    one file, or a range of it
"""
