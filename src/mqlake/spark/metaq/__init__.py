"""The source `metaq`: MetaQ data directories and live brokers."""
