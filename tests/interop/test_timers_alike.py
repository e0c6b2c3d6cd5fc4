"""Timer messages change hands: RocketMQ's broker (5.3.3 and 5.5.1) delivers what waits in a store of mqlake's, and the
other way round; recalls hold for both; and both write the same wheel."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mqlake.formats.timer import TIMER_UNIT_DTYPE, TIMER_UNIT_SIZE
from mqlake.message import java_hash
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.produce import RecallMessageRequestHeader
from mqlake.remoting.loop import run
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.timer.timer_wheel import TimerWheel
from tests.broker.live import running, send_header
from tests.clock import Clock
from tests.interop.brokers import SMALL_STORE, JavaBroker, MqlakeBroker
from tests.interop.java_client import JavaClients, message
from tests.interop.java_peer import LATER_VERSION, ROCKETMQ_VERSION
from tests.store.timer.timed_store import timed_store
from tests.waiting import until, until_async

pytestmark = pytest.mark.java

TIMERS = {"timerWheelEnable": "true", "recallMessageEnable": "true", "mappedFileSizeTimerLog": 52 * 4 + 16}
STORE = {key: value for key, value in SMALL_STORE.items() if key != "enablePropertyFilter"}
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def send(client: RemotingClient, address: str, name: str, deliver_ms: int) -> str:
    """The message's recall handle."""
    properties = f"UNIQ_KEY\x01{name}\x02TIMER_DELIVER_MS\x01{deliver_ms}\x02"
    header = send_header("T", queue_id=1, properties=properties)
    answer = await client.invoke(
        address, RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, header, name.encode())
    )
    assert answer.code == ResponseCode.SUCCESS
    return answer.ext_fields["recallHandle"]


async def recall(client: RemotingClient, address: str, handle: str) -> None:
    header = RecallMessageRequestHeader(producer_group="PG", topic="T", recall_handle=handle)
    answer = await client.invoke(address, RemotingCommand.create_request(RequestCode.RECALL_MESSAGE, header))
    assert answer.code == ResponseCode.SUCCESS, answer


def stored(root: Path) -> list[str]:
    """The names that the topic has, in the order of storing."""
    with ReadOnlyStore(root) as store:
        found, offset = [], 0
        while offset < store.max_offset_in_queue("T", 1):
            result = store.get_message("G", "T", 1, offset, 32)
            found += [each.body.decode() for each in result.messages()]
            offset = result.next_begin_offset
    return found


def slots(root: Path, start_ms: int) -> list[tuple[int, ...]]:
    wheel = TimerWheel(str(root / "timerwheel"), 1000, read_only=True)
    found = [tuple(map(int, slot)) for slot in wheel.slots(start_ms)]
    wheel.close()
    return found


def units(root: Path) -> np.ndarray:
    """All units of the log."""
    parts = []
    for path in sorted((root / "timerlog").iterdir()):
        data = path.read_bytes()
        part = np.frombuffer(data, TIMER_UNIT_DTYPE, len(data) // TIMER_UNIT_SIZE)
        parts.append(part[part["size"] == TIMER_UNIT_SIZE])
    return np.concatenate(parts)


@pytest.mark.parametrize(
    "version", [ROCKETMQ_VERSION, pytest.param(LATER_VERSION, marks=pytest.mark.nightly)]
)
def test_each_delivers_what_the_other_has_left(tmp_path: Path, version: str) -> None:
    root = tmp_path / "store"
    begun = now_ms()
    later = begun + HOUR_MS

    async def by_mqlake() -> None:
        options = {key: str(value) for key, value in {**STORE, **TIMERS}.items()}
        async with running(tmp_path, **options) as broker, RemotingClient() as client:
            address = broker.broker_addr
            await send(client, address, "soon", now_ms() + 1500)
            for name in ("later", "recalled", "recalled-by-java"):
                handle = await send(client, address, f"mqlake-{name}", later)
                if name == "recalled":
                    await recall(client, address, handle)
            assert broker.timers is not None
            timers = broker.timers
            await until_async(lambda: timers.offset_behind == 0 and timers.commit_queue_offset == 5)

    run(by_mqlake())
    keys = {"appendTopicForTimerDeleteKey": "true"} if version == LATER_VERSION else {}
    with JavaBroker(tmp_path, {**TIMERS, **keys, "brokerName": "broker-a"}, version=version) as java:

        async def by_java() -> None:
            from mqlake.message.recall import RecallHandle

            async with RemotingClient() as client:
                # the first message of mqlake's store is delivered by then, as the wheel says
                await send(client, java.address, "java-soon", now_ms() + 1500)
                await send(client, java.address, "java-later", later)
                await recall(client, java.address, await send(client, java.address, "java-recalled", later))
                handle = RecallHandle(
                    "T", "broker-a", (later - 1) // 1000 * 1000 + 1, "mqlake-recalled-by-java"
                )
                await recall(client, java.address, handle.encode())
                await until_async(lambda: len(stored(root)) >= 2)

        run(by_java())
        until(lambda: len(units(root)) == 10, "Java has put all into its log")
        java.stop()

    assert Counter(stored(root)) == {"soon": 1, "java-soon": 1}
    of_java = slots(root, later - 2000)
    written = units(root)
    assert set(written["topic_hash"].tolist()) == {java_hash("T")}
    # the recalls are messages, too
    assert [slot[3] for slot in of_java] == [written_num(written, later)]
    clock = Clock(now_ms())
    options = {**STORE, **TIMERS}
    del options["recallMessageEnable"]
    with timed_store(root, clock, **options) as timed:
        assert timed.timers.rebuilt == ""
        assert [tuple(map(int, slot)) for slot in timed.timers._wheel.slots(later - 2000)] == of_java
        timed.run()
        clock.now = later + 2000
        timed.run(2)
        assert timed.timers.skipped == 0
    found = Counter(stored(root))
    # what Java delivered after its last checkpoint may come again
    assert set(found) == {"soon", "java-soon", "mqlake-later", "java-later"}


def written_num(written: np.ndarray, due_ms: int) -> int:
    """What the slot of a time counts: messages less those that cancel one."""
    step = (due_ms - 1) // 1000 * 1000
    of_slot = written[written["write_time"] + written["delay"] == step]
    return int(np.where(of_slot["magic"] & 4, -1, 1).sum())


def test_javas_client_sends_and_recalls(java_clients: JavaClients, tmp_path: Path) -> None:
    with MqlakeBroker(tmp_path, {"recallMessageEnable": "true"}) as broker:
        java_clients.topic(broker, "T", 2)
        with java_clients.producer(broker) as producer, java_clients.push(broker, "GID_t", "T") as consumer:
            due = now_ms() + 4000
            messages = [message(b"%d" % number, deliverTimeMs=due) for number in range(4)]
            sent = producer.send("T", "sync", messages)
            handles = [each["recallHandle"] for each in sent]
            assert producer.recall("T", handles[2]) == sent[2]["msgId"]
            found = consumer.take(3)
        assert sorted(each["body"] for each in found) == [b"0", b"1", b"3"]
        assert min(each["storeTimestamp"] for each in found) >= due
