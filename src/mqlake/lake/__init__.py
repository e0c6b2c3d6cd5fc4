"""The log as Arrow rows, without Spark: what to read of it, how, and the rows made of it."""
