"""MetaQ's configuration: server.ini, what its values mean, and who is told when it changes."""

from mqlake.metaq.config.meta_config import MetaConfig, SystemConfig, TopicConfig, ZKConfig

__all__ = ["MetaConfig", "SystemConfig", "TopicConfig", "ZKConfig"]
