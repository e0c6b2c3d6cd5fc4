"""The commit log: its writer, its flush services, and the walks that read it."""
