"""The `mqlake` command: one thin layer over the library."""
