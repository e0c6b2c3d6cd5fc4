"""The broker is killed or stopped under load: nothing acknowledged is lost, nothing is out of order in a queue.

One thread for each queue sends numbers, each once; a consumer consumes all the while. Both ride it out: they know
nothing of the restart but what fails.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.interop.brokers import any_broker
from tests.interop.java_client import JavaClients
from tests.waiting import PATIENCE_S, until

QUEUES = 4
BETWEEN = 400
"""Messages acknowledged before, between and after the ends."""


@pytest.mark.parametrize(
    ("flush", "batch", "numbers"),
    [
        ("ASYNC_FLUSH", 1, [signal.SIGKILL, signal.SIGTERM]),
        ("SYNC_FLUSH", 1, [signal.SIGKILL]),
        ("SYNC_FLUSH", 8, [signal.SIGTERM, signal.SIGKILL]),
    ],
)
def test_nothing_acknowledged_is_lost(
    java_clients: JavaClients, tmp_path: Path, flush: str, batch: int, numbers: list[signal.Signals]
):
    with any_broker(tmp_path, {"flushDiskType": flush}) as broker:
        java_clients.topic(broker, "Load", QUEUES)
        with java_clients.push(broker, "GID_load", "Load", orderly=True) as consumer:
            load = java_clients.load(broker, "Load", batch)
            load.wait_for_more(BETWEEN)
            for number in numbers:
                broker.end(number)
                broker.start()
                load.wait_for_more(BETWEEN)
            done = load.stop()
            acknowledged: dict[int, list[list[int]]] = {int(k): v for k, v in done["queues"].items()}
            assert done["failed"] >= len(numbers)

            # what was stored but not acknowledged is there too; the last of a queue was acknowledged
            count = sum(queue[-1][1] + 1 for queue in acknowledged.values())
            stored = {
                queue_id: [(int(each["body"]), each["queueOffset"]) for each in queue]
                for queue_id, queue in java_clients.all_of(broker, "Load", count).items()
            }
            # a client whose pull was moved or whose lock is in doubt waits for its own timers, of up to 60 seconds
            until(
                lambda: len(consumed(consumer.take(0))) >= sum(map(len, stored.values())),
                timeout_s=2 * PATIENCE_S,
            )
            found = consumer.take(0)

    assert set(acknowledged) == set(range(QUEUES))
    for queue_id, queue in stored.items():
        assert [offset for _, offset in queue] == list(range(len(queue)))
        sent = [number for number, _ in queue]
        assert sent == sorted(set(sent)), "in the order of sending, each once"
        assert {tuple(each) for each in acknowledged[queue_id]} <= set(queue)
        # a consumer may see again what it had not committed, and in between nothing out of order
        first_seen = list(dict.fromkeys(int(each["body"]) for each in found if each["queueId"] == queue_id))
        assert first_seen == sent


def consumed(messages: list[dict[str, object]]) -> set[tuple[object, object]]:
    return {(each["queueId"], each["body"]) for each in messages}
