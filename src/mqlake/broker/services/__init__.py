"""Background work of a broker, and work over connections of its own."""
