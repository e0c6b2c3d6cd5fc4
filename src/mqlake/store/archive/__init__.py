"""The archive: the log's old files at another place, such as a bucket, from where they are read as if they were here.

DIR/commitlog/… ──Uploader──▶ s3://bucket/prefix/archive.json, commitlog/…, units/…, parts/…, config/…
pulls, lookups ◀─ArchiveReader─ a bounded cache on the disk ◀── ranges of the objects
"""
