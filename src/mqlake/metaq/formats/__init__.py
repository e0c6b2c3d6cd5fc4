"""MetaQ's formats, on disk and on the wire. No I/O here."""
