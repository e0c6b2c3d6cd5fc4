"""MetaQ's configuration: server.ini, its values, and listeners for changes."""

from mqlake.metaq.config.meta_config import MetaConfig, SystemConfig, TopicConfig, ZKConfig

__all__ = ["MetaConfig", "SystemConfig", "TopicConfig", "ZKConfig"]
