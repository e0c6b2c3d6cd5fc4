"""Topics of live brokers: their queues and offsets, and rows of what is pulled from them."""
