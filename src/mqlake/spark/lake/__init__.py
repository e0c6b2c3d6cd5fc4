"""Sinks for streams: Iceberg and Delta tables."""
