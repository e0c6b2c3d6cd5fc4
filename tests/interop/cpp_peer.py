"""RocketMQ's C++ client (librocketmq, in the wheel of PyPI's `rocketmq`) as a peer; one run of this file is one client.

    python cpp_peer.py produce NAMESRV TOPIC COUNT ORDERED      so many sync sends, so many to one queue, one one-way
    python cpp_peer.py push NAMESRV GROUP TOPIC TAGS [orderly]  each message as it comes, until stdin ends
    python cpp_peer.py pull NAMESRV GROUP TOPIC TAGS            what is there

It signs with $ROCKETMQ_ACCESS_KEY and $ROCKETMQ_SECRET_KEY if they are set. What it finds it prints as lines of JSON.
It writes its logs below $HOME. Its batches are left out: this version sends them as one empty message, to RocketMQ's
broker too.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer


def line(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")  # in one piece: the client's threads print
    sys.stdout.flush()


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def sign(client: Any) -> None:
    if key := os.environ.get("ROCKETMQ_ACCESS_KEY"):
        client.set_session_credentials(key, os.environ["ROCKETMQ_SECRET_KEY"], "ALIYUN")


def show(message: Any) -> None:
    line(
        topic=message.topic,
        body=text(message.body),
        tags=text(message.tags),
        keys=text(message.keys),
        number=text(message["number"]),
        queueId=message.queue_id,
        queueOffset=message.queue_offset,
    )


def made(topic: str, body: str, tags: str) -> Any:
    message = Message(topic)
    message.set_body(body)
    message.set_tags(tags)
    message.set_keys(f"key-{body}")
    message.set_property("number", body)
    return message


def produce(namesrv: str, topic: str, count: str, ordered: str) -> None:
    producer = Producer("PID_cpp")
    producer.set_namesrv_addr(namesrv)
    sign(producer)
    producer.start()
    for i in range(int(count)):
        sent = producer.send_sync(made(topic, str(i), ["even", "odd"][i % 2]))
        line(status=int(sent.status), id=sent.msg_id, offset=sent.offset)
    for i in range(int(ordered)):
        sent = producer.send_orderly(made(topic, f"ordered{i}", "ordered"), 7)
        line(status=int(sent.status), id=sent.msg_id, offset=sent.offset)
    producer.send_oneway(made(topic, "oneway", "oneway"))
    producer.shutdown()


def push(namesrv: str, group: str, topic: str, tags: str, orderly: str = "") -> None:
    consumer = PushConsumer(group, orderly=bool(orderly))
    consumer.set_namesrv_addr(namesrv)
    sign(consumer)
    consumer.subscribe(topic, show, tags)
    consumer.start()
    sys.stdin.read()
    consumer.shutdown()


def pull(namesrv: str, group: str, topic: str, tags: str) -> None:
    consumer = PullConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    sign(consumer)
    consumer.start()
    for message in consumer.pull(topic, tags):
        show(message)
    consumer.shutdown()


if __name__ == "__main__":
    {"produce": produce, "push": push, "pull": pull}[sys.argv[1]](*sys.argv[2:])
