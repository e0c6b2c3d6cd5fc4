"""The meaning of bytes: every on-disk format of a RocketMQ store, one at a time and many at a time. No I/O here."""
