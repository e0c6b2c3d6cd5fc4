"""What every official gRPC client is put through, and what has to come out; the programs are in tests/interop/grpc.

A program gets an endpoint and a prefix, and prints what it saw as JSON:

    sent, simple, changed, again   ten messages; those with tag a received, one of them made visible again
    push                           all ten; n-0 fails the first time
    fifo                           six of one group, in order although one fails the first time
    delayed, early                 of two delayed messages one was recalled
    transactions                   one committed, one rolled back, one left to the broker's question
    dead                           a message that fails each time it is delivered
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqlake.client.admin import Admin
from mqlake.client.config import ClientConfig
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.loop import run
from tests.waiting import until, until_async

PROGRAMS = Path(__file__).parent / "grpc"
SETTINGS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "500",
    "recallMessageEnable": "true",
    "timerPrecisionMs": "1000",
}
KINDS = {"N": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}
PROGRAM_S = 600


def prepare(where: ClientConfig, prefix: str, client: str = "") -> None:
    """The topics and groups of one program; of several brokers each has some of the topics."""

    async def main() -> None:
        async with Admin(where) as admin:
            await until_async(admin.list_brokers, "the broker is registered")  # RocketMQ's takes its time
            masters = await admin.masters()
            for number, (letter, kind) in enumerate(KINDS.items()):
                config = TopicConfig(
                    topic_name=prefix + letter,
                    read_queue_nums=4,
                    write_queue_nums=4,
                    attributes={"+message.type": kind},
                )
                await admin.brokers.create_topic(masters[number % len(masters)].address, config)
            for group in ("gs", "gp", "gd", "gx"):
                await admin.create_subscription_group(SubscriptionGroupConfig(group_name=prefix + group))
            for group, retries in (("go", 16), ("gq", 1)):
                orderly = SubscriptionGroupConfig(
                    group_name=prefix + group, consume_message_orderly=True, retry_max_times=retries
                )
                if (client or prefix) in NEEDS_EXPONENTIAL:
                    orderly.group_retry_policy = EXPONENTIAL
                await admin.create_subscription_group(orderly)

    run(main())


def outcome(
    command: Sequence[str | Path], endpoint: str, prefix: str, *arguments: str, **more: Any
) -> dict[str, Any]:
    """What the program saw."""
    done = subprocess.run(
        [*command, endpoint, prefix, *arguments],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
        **more,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and lines, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    result: dict[str, Any] = json.loads(lines[-1])
    return result


EXPONENTIAL = {
    "type": "EXPONENTIAL",
    "exponentialRetryPolicy": {"initial": 1000, "max": 10_000, "multiplier": 2},
}
NEEDS_EXPONENTIAL = frozenset({"node"})
"""Clients that do not know RocketMQ's default, CUSTOMIZED: a FIFO message is dead at its first failure."""
SIMPLE_ONLY = frozenset({"rust"})
"""Clients without push consumers, changes of the invisible time and recall."""
FIFO_OVERTAKES = frozenset({"go"})
"""Clients that go on with a batch while a message of it waits for its next try; against any server."""


def check(result: dict[str, Any], where: ClientConfig, prefix: str, client: str = "") -> None:
    check_simple(result)
    ordered = [f"f-{number}" for number in range(6)]
    if client in FIFO_OVERTAKES:
        ordered.append(ordered.pop(2))  # the one that failed
    assert result["fifo"] == ordered, result["fifo"]
    assert (result["delayed"], result["early"]) == (["kept"], False)
    assert result["transactions"] == ["commit", "orphan"], result["transactions"]
    if client in SIMPLE_ONLY:
        return
    (again,) = result["again"]
    assert (again["body"], again["attempt"]) == (result["changed"], 2)
    attempts = sorted((each["body"], each["attempt"]) for each in result["push"])
    assert attempts == sorted([(f"n-{number}", 1) for number in range(10)] + [("n-0", 2)])
    assert result["dead"] == 2
    until(lambda: b"dead" in dead_letters(where, f"{prefix}gq"), "the dead letter")


def check_simple(result: dict[str, Any]) -> None:
    by_body = {each["body"]: each for each in result["simple"]}
    assert sorted(by_body) == [f"n-{number}" for number in range(0, 10, 2)]
    for number in range(0, 10, 2):
        each = by_body[f"n-{number}"]
        wanted = (result["sent"][number], "a", [f"k-{number}"], str(number), 1)
        assert (each["id"], each["tag"], each["keys"], each["p"], each["attempt"]) == wanted


def dead_letters(where: ClientConfig, group: str) -> list[bytes]:
    async def main() -> list[bytes]:
        async with Admin(where) as admin:
            topic = f"%DLQ%{group}"
            if not await admin.topic_exists(topic):
                return []
            stats = await admin.examine_topic_stats(topic)
            return [
                (await admin.message_at(queue, offset)).body
                for queue, known in stats.offset_table.items()
                for offset in range(known.min_offset, known.max_offset)
            ]

    return run(main())
