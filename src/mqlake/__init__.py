"""mqlake: a message store and broker that is Apache RocketMQ on disk and on the wire, read in place by Spark."""

__version__ = "0.1.0"
