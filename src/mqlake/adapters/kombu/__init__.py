"""Celery and kombu over RocketMQ: importing this makes `rocketmq://` known to them. Guide: docs/celery.md.

    import mqlake.adapters.kombu
    app = Celery("shop", broker="rocketmq://127.0.0.1:9876", backend="rpc://")

A queue that is to last is a topic with a consumer group of the same name, whose messages are popped. Exchanges have a
topic when queues that do not last (replies, events, control) read from them: each reader picks its messages there.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from mqlake.adapters.kombu.transport import Transport

TRANSPORT_ALIASES["rocketmq"] = "mqlake.adapters.kombu.transport:Transport"

__all__ = ["Transport"]
