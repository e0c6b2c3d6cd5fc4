"""Pop and acknowledge: 32 messages a pop, each acknowledged by a request of its own, mqlake's broker and RocketMQ's.

    one client, in Python ──▶ pop, 32 acknowledgements at once, pop, ...      for each broker in turn

CPU time is the broker's, from the first pop until the checkpoints' time is over and nothing is left of them: what timer
and revive do is in it. The client is the same program for both, and slower than either broker, so rates say nothing.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker

from bench.context import Context
from bench.idle import wait_until_idle
from bench.measure import Line
from bench.pages import round_size
from mqlake.client import Admin, ConsumerConfig, Message, Producer
from mqlake.client.consume.pop_api import FROM_FIRST, PopAPIWrapper
from mqlake.client.consume.simple_consumer import SimpleConsumer
from mqlake.client.consume.subscription import build_subscription_data
from mqlake.client.records import MAX_BODY_SIZE
from mqlake.remoting.bodies.topic import MessageQueue
from mqlake.remoting.loop import run

QUEUES = 8
WORKERS = 4
INVISIBLE_S = 8.0
SETTLED_S = 6.0
"""After the invisible time: the timer and revive are done."""
BODY = b"." * 128
CPU_RATIO_MIN = 2.0
GROUP = "GID_bench_pop"


async def fill(broker: Broker, topic: str, count: int) -> None:
    """Sends so many messages to a new topic."""
    async with Admin(broker.namesrv) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    async with Producer("bench", broker.namesrv) as producer:
        for _ in range(0, count, 100):
            await producer.send_batch([Message(topic, BODY) for _ in range(100)])


async def drain(broker: Broker, topic: str, count: int) -> int:
    """Pops and acknowledges so many messages of the topic; how many there were."""
    done = 0
    async with SimpleConsumer(GROUP, broker.namesrv, ConsumerConfig()) as consumer:
        route = await consumer.client.topic_route(topic)
        name = route.queue_datas[0].broker_name
        queue = MessageQueue(topic=topic, broker_name=name, queue_id=-1)
        subscription = build_subscription_data(topic)
        pops = PopAPIWrapper(consumer.client, GROUP, MAX_BODY_SIZE)

        async def work() -> None:
            nonlocal done
            while done < count:
                messages = await pops.pop(
                    queue,
                    subscription,
                    max_num=32,
                    invisible_s=INVISIBLE_S,
                    poll_s=1.0,
                    init_mode=FROM_FIRST,
                )
                await asyncio.gather(*map(pops.ack, messages))
                done += len(messages)

        await asyncio.gather(*(work() for _ in range(WORKERS)))
    return done


def _round(context: Context, broker: Broker, number: int, count: int) -> tuple[float, float]:
    """(µs of processor time, µs of wall time) for each message."""
    topic = f"Bench{number}"
    run(fill(broker, topic, count))
    time.sleep(1.0)
    context.touch_pages(round_size(count, 1024))  # a checkpoint and an acknowledgement
    before, began = broker.cpu_seconds(), time.monotonic()
    done = run(drain(broker, topic, count))
    seconds = time.monotonic() - began
    time.sleep(INVISIBLE_S + SETTLED_S)
    return (broker.cpu_seconds() - before) / done * 1e6, seconds / done * 1e6


def pop(context: Context) -> Iterator[Line]:
    """CPU time for a message that is popped and acknowledged."""
    scale = context.scale
    settings = {"timerWheelEnable": "true", "mappedFileSizeCommitLog": scale.broker_log_file}
    rounds = 3
    with (
        MqlakeBroker(context.directory / "pop-mqlake", settings, small=False) as ours,
        JavaBroker(context.directory / "pop-java", settings, small=False, jvm=scale.jvm) as theirs,
    ):
        for broker in (ours, theirs):  # to warm up
            _round(context, broker, 0, scale.popped // 2)
            wait_until_idle()
        costs: list[tuple[float, float]] = []
        for number in range(1, rounds + 1):
            mqlake, java = (_round(context, each, number, scale.popped)[0] for each in (ours, theirs))
            costs.append((mqlake, java))
    ratio = statistics.median(java / mqlake for mqlake, java in costs)
    mqlake_us = statistics.median(cost[0] for cost in costs)
    java_us = statistics.median(cost[1] for cost in costs)
    yield Line(
        "pop and acknowledge, CPU",
        mqlake_us,
        "µs",
        peer=java_us,
        cpu_us=mqlake_us,
        peer_cpu_us=java_us,
        cpu_ratio=ratio,
        target=f"≥ {CPU_RATIO_MIN} by CPU",
        met=ratio >= CPU_RATIO_MIN,
        rounds=tuple(costs),
    )
