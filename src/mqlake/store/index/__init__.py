"""The index: from hashes of keys to places in the log."""
