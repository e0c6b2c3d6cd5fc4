"""What sees each send and each delivery: hooks of programs and plug-ins, and the broker's own message trace."""
