"""Timer messages: what waits for its time to the second, in RocketMQ's files (drawn in formats/timer.py)."""
