"""What MetaQ's bytes mean. Nothing here opens a file or a socket."""
