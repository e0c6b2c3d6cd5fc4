"""Shared by every room: typed settings, config files, JSON and .properties text, durable files, findings."""
