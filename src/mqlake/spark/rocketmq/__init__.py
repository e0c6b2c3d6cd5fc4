"""The source and sink `rocketmq`: live brokers."""
