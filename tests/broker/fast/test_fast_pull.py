"""Pulls that are told by what they have in common: each gets the bytes that PullMessageProcessor would answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from mqlake.broker.controller import BrokerController
from mqlake.broker.fast import fast_pull
from mqlake.broker.fast.fast_pull import STATISTICS_S, FastPull, PullPlan
from mqlake.broker.metrics.rpc_latency import Rpc, RpcLatencies
from mqlake.client.records import MessageClientExt, decode_messages
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.client import SubscriptionData
from mqlake.remoting.bodies.topic import PERM_READ, PERM_WRITE
from mqlake.remoting.codec import decode_frame, encode_frame
from mqlake.remoting.codes import LanguageCode, RequestCode, ResponseCode, SerializeType
from mqlake.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.admin import DeleteTopicRequestHeader
from mqlake.store.files.mapped_file import MappedFile
from tests.broker.fast.test_fast_send import Wire
from tests.broker.live import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, Peer, on_a_broker, pull_header
from tests.broker.requests.test_pull_message import heartbeat, sent
from tests.store.archive.test_reader import forget_old_files
from tests.store.small_store import flip, log_file
from tests.waiting import until_async

PULL, LITE_PULL = RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE
KINDS = list(SerializeType)
WAITS = {"longPollingEnable": "true"}
NOBODY_WAITS = {"longPollingEnable": "false", "shortPollingTimeMills": "1"}


def frame(
    offset: int = 0,
    *,
    opaque: int = 7,
    code: int = PULL,
    kind: SerializeType = SerializeType.JSON,
    topic: str = "T",
    flag: int = 0,
    body: bytes | None = None,
    order: Callable[[list[str]], list[str]] = list,
    more: dict[str, str] | None = None,
    **fields: object,
) -> bytes:
    ext_fields = pull_header(topic, offset, **fields).encode() | (more or {})
    return encode_frame(
        RemotingCommand(
            code,
            language=LanguageCode.JAVA,
            opaque=opaque,
            flag=flag,
            ext_fields={name: ext_fields[name] for name in order(list(ext_fields))},
            body=body,
            serialize_type=kind,
        )
    )


def fast_pull_of(controller: BrokerController) -> FastPull:
    [found] = (path for path in controller.server.fast_paths if isinstance(path, FastPull))
    return found


@pytest.fixture(params=[False, True], ids=["Python", "compiled"], autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every test runs with compiled code as well, which has seen the same pulls before."""
    monkeypatch.setattr(Ways, "compiled", request.param)
    return bool(request.param)


class Ways:
    """Asks the same bytes twice: of the broker as it is, and with its fast path taken away."""

    compiled: ClassVar[bool] = False

    def __init__(self, peer: Peer) -> None:
        self.controller = peer.controller
        self.path = fast_pull_of(peer.controller)
        self.taken = self.taken_by_kernels = 0
        if self.compiled:
            assert self.path.load()
        else:
            self.path.load = lambda: False  # type: ignore[method-assign]
        self._in_python = 0
        commit, answer, hold = self.path.commit, self.path._answer, self.path._hold

        def noting(*arguments: object) -> None:
            commit(*arguments)  # type: ignore[arg-type]
            if not self._in_python:
                self.taken += 1
                self.taken_by_kernels += 1

        def counting(*arguments: object, **named: object) -> bool:
            with self._python():
                done = answer(*arguments, **named)  # type: ignore[arg-type]
            self.taken += done
            return done

        def holding(*arguments: object) -> bool:
            with self._python():
                return hold(*arguments)  # type: ignore[arg-type]

        self.path.commit = noting  # type: ignore[method-assign]
        self.path._answer = counting  # type: ignore[method-assign]
        self.path._hold = holding  # type: ignore[method-assign]

    @contextlib.contextmanager
    def _python(self) -> Iterator[None]:
        self._in_python += 1
        yield
        self._in_python -= 1

    async def ask(self, data: bytes) -> list[bytes]:
        """The answers, which are the same both ways."""
        server = self.controller.server
        async with Wire(self.controller) as wire:
            if self.compiled:
                before = self.taken, self.taken_by_kernels
                await wire.say(data)
                self.taken, self.taken_by_kernels = before
            said = await wire.say(data)
        paths, server.fast_paths = server.fast_paths, ()
        async with Wire(self.controller) as wire:
            expected = await wire.say(data)
        server.fast_paths = paths
        assert said == expected
        return said

    async def hold(self, data: bytes, meanwhile: Callable[[], Awaitable[None]]) -> list[bytes]:
        """The answers to a pull that waits until `meanwhile`, which are the same both ways."""
        server, holds = self.controller.server, self.controller.pull_request_hold_service
        async with Wire(self.controller) as fast, Wire(self.controller) as slow:
            assert not await fast.ask(data)
            assert holds.held_count == 1
            paths, server.fast_paths = server.fast_paths, ()
            assert not await slow.ask(data)
            assert holds.held_count == 2
            server.fast_paths = paths
            ways = [getattr(one.execute, "func", None) for held in holds._table.values() for one in held]
            assert [way is None for way in ways] == [True, False], "the first is the fast path's"
            await meanwhile()
            said, expected = await fast.say(b""), await slow.say(b"")
        assert said == expected
        return said

    async def take(self, data: bytes, count: int = 1) -> list[bytes]:
        """As `ask`; so many of them are taken by the fast path."""
        before = self.taken
        said = await self.ask(data)
        assert self.taken - before == count
        return said


def play(directory: Path, scene: Callable[[Ways, Peer], Awaitable[None]], **settings: str) -> None:
    async def begin(peer: Peer) -> None:
        await sent(peer, count=5)
        await scene(Ways(peer), peer)

    on_a_broker(directory, begin, **{**NOBODY_WAITS, **settings})


def code_of(answer: bytes) -> int:
    return decode_frame(memoryview(answer), 0, len(answer)).code


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", [PULL, LITE_PULL])
def test_usual_pulls_get_the_same_bytes(tmp_path: Path, kind: SerializeType, code: int) -> None:
    async def scene(ways: Ways, _: Peer) -> None:
        pulls = [
            frame(offset, opaque=opaque, code=code, kind=kind, commit_offset=commit, max_msg_nums=count)
            for opaque, (offset, commit, count) in enumerate(
                [(0, 0, 32), (1, 7, 2), (4, 12345, 1), (0, 3, 32)]
            )
        ]
        assert len(await ways.take(b"".join(pulls), 4)) == 4
        assert len(ways.path._plans) == 3  # maxMsgNums tells them apart
        for opaque in (0, 9, 2**31 - 1):
            await ways.take(frame(2, opaque=opaque, code=code, kind=kind))
        for order in (sorted, lambda names: sorted(names, reverse=True)):
            await ways.take(frame(3, code=code, kind=kind, order=order))

    play(tmp_path, scene)


@pytest.mark.parametrize("kind", KINDS)
def test_pulls_that_find_nothing_go_the_plain_way(tmp_path: Path, kind: SerializeType) -> None:
    async def scene(ways: Ways, _: Peer) -> None:
        for offset, code in [
            (5, ResponseCode.PULL_NOT_FOUND),
            (6, ResponseCode.PULL_OFFSET_MOVED),
            (-1, ResponseCode.PULL_OFFSET_MOVED),
            (2**62, ResponseCode.PULL_OFFSET_MOVED),
            (2**63 - 1, ResponseCode.PULL_OFFSET_MOVED),
        ]:
            for flags in (SUBSCRIPTION, SUBSCRIPTION | SUSPEND):
                (answer,) = await ways.take(frame(offset, kind=kind, sys_flag=flags), 0)
                assert code_of(answer) == code
        (answer,) = await ways.take(frame(kind=kind, topic="Nobody"), 0)
        assert code_of(answer) == ResponseCode.TOPIC_NOT_EXIST
        (answer,) = await ways.take(frame(kind=kind, queue_id=99), 0)
        assert code_of(answer) == ResponseCode.INVALID_PARAMETER

    play(tmp_path, scene)


@pytest.mark.parametrize("kind", KINDS)
def test_pulls_wait_for_messages_and_get_the_same_bytes(tmp_path: Path, kind: SerializeType) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        await ways.ask(frame(kind=kind))  # makes the group, and has compiled code know this kind of pull
        waits = {"kind": kind, "sys_flag": SUBSCRIPTION | SUSPEND}
        await ways.ask(frame(**waits))
        for number in range(3):
            [answer] = await ways.hold(frame(5 + number, opaque=number, **waits), lambda: sent(peer, count=1))
            assert [message.queue_offset for message in decoded(answer)] == [5 + number]
            assert decode_frame(memoryview(answer), 0, len(answer)).opaque == number

    play(tmp_path, scene, **WAITS)


def test_what_happens_while_a_pull_waits(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        broker = peer.controller.broker
        topics, offsets = broker.topic_config_manager, broker.consumer_offset_manager
        topic = topics.select_topic_config("T")
        assert topic is not None
        await ways.ask(frame())
        waits = {"sys_flag": SUBSCRIPTION | SUSPEND}
        await ways.ask(frame(**waits))

        async def nothing() -> None:
            peer.controller.pull_request_hold_service._sweep()

        [answer] = await ways.hold(frame(5, suspend_timeout_millis=0, **waits), nothing)
        assert code_of(answer) == ResponseCode.PULL_NOT_FOUND

        async def another_tag() -> None:
            await sent(peer, count=1, properties="TAGS\x01other\x02")
            assert peer.controller.pull_request_hold_service.held_count == 2
            await sent(peer, count=1, properties="TAGS\x01one\x02")

        [answer] = await ways.hold(frame(5, subscription="one", **waits), another_tag)
        assert [message.queue_offset for message in decoded(answer)] == [6]

        async def forbidden() -> None:
            topics.update_topic_config(type(topic)(topic_name="T", perm=PERM_WRITE))
            await sent(peer, count=1)

        [answer] = await ways.hold(frame(7, **waits), forbidden)
        assert code_of(answer) == ResponseCode.NO_PERMISSION
        topics.update_topic_config(topic)

        async def reset() -> None:
            for _ in range(2):  # a pull that learns of it ends it
                offsets.assign_reset_offset("T", "CG", 0, 1)
                held = peer.controller.pull_request_hold_service._table["T", 0]
                peer.controller.pull_request_hold_service._ready.append(held.pop(0))
                peer.controller.pull_request_hold_service._answer_ready()

        seen: list[object] = []

        class Hook:
            hook_name = "seen"

            def consume_message_before(self, context: object) -> None:
                seen.append(context)

            def consume_message_after(self, context: object) -> None:
                pass

        async def hooked() -> None:
            broker.hooks.consume.append(Hook())
            await sent(peer, count=1)

        await ways.hold(frame(8, **waits), hooked)
        assert len(seen) == 2, "a hook that came meanwhile sees both"
        broker.hooks.consume.clear()

        [answer] = await ways.hold(frame(9, **waits), reset)
        assert b"OFFSET_RESET" in answer

    play(tmp_path, scene, **WAITS)


def test_a_pull_that_waits_commits_its_offset_at_once_and_once(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        offsets = peer.controller.broker.consumer_offset_manager
        await ways.ask(frame())

        async def commit() -> None:
            assert offsets.query_offset("CG", "T", 0) == 2
            assert offsets.query_pull_offset("CG", "T", 0) == 5
            offsets.commit_offset("somebody", "CG", "T", 0, 4)
            await sent(peer, count=1)

        waits = frame(5, commit_offset=2, sys_flag=SUBSCRIPTION | SUSPEND | COMMIT_OFFSET)
        await ways.hold(waits, commit)
        assert offsets.query_offset("CG", "T", 0) == 4
        assert offsets.query_pull_offset("CG", "T", 0) == 6

    play(tmp_path, scene, **WAITS)


def test_nobody_answers_a_pull_whose_client_has_gone(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        holds = peer.controller.pull_request_hold_service
        await ways.ask(frame())
        async with Wire(peer.controller) as wire:
            assert not await wire.ask(frame(5, sys_flag=SUBSCRIPTION | SUSPEND))
        await until_async(lambda: not peer.controller.server.in_flight)
        before = ways.taken
        await sent(peer, count=1)
        await until_async(lambda: not holds.held_count)
        assert ways.taken == before

    play(tmp_path, scene, **WAITS)


def test_as_many_pulls_wait_as_a_connection_may_have_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(ways: Ways, _: Peer) -> None:
        await ways.ask(frame())
        monkeypatch.setattr(Connection, "may_have_more_in_flight", False)
        [answer] = await ways.take(frame(5, sys_flag=SUBSCRIPTION | SUSPEND), 0)
        assert code_of(answer) == ResponseCode.SYSTEM_BUSY

    play(tmp_path, scene, **WAITS)


def test_the_time_of_a_pull_that_waited_is_counted(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        ways.path._latencies = latencies = RpcLatencies()
        await ways.ask(frame())

        async def nothing() -> None:
            peer.controller.pull_request_hold_service._sweep()

        found = Rpc(PULL, ResponseCode.SUCCESS, is_long_polling=True, oneway=False)
        waits = {"sys_flag": SUBSCRIPTION | SUSPEND}
        await ways.hold(frame(5, **waits), lambda: sent(peer, count=1))
        await ways.hold(frame(6, suspend_timeout_millis=0, **waits), nothing)
        not_found = replace(found, response_code=ResponseCode.PULL_NOT_FOUND)
        assert [sum(latencies.histograms[rpc].counts) for rpc in (found, not_found)] == [1, 1]

    play(tmp_path, scene, **WAITS)


@pytest.mark.parametrize("kind", KINDS)
def test_unusual_headers(tmp_path: Path, kind: SerializeType) -> None:
    async def scene(ways: Ways, _: Peer) -> None:
        await ways.take(frame(kind=kind))
        for unusual in [
            frame(kind=kind, opaque=-1),
            frame(kind=kind, body=b"body"),
            frame(kind=kind, flag=ONEWAY_FLAG),
            frame(kind=kind, flag=RESPONSE_FLAG),
            frame(kind=kind, flag=4),
            frame(kind=kind, more={"queueOffset": "x"}),
            frame(kind=kind, more={"queueOffset": ""}),
            frame(kind=kind, more={"queueOffset": "+1"}),
            frame(kind=kind, more={"queueOffset": " 1"}),
            frame(kind=kind, more={"queueOffset": "1_0"}),
            frame(kind=kind, more={"queueOffset": "9" * 18}),
            frame(kind=kind, more={"queueOffset": "9" * 19}),
            frame(kind=kind, more={"queueOffset": "0" * 19}),
            frame(kind=kind, more={"queueOffset": "١"}),
            frame(kind=kind, order=lambda names: [name for name in names if name != "commitOffset"]),
            frame(kind=kind, order=lambda names: [name for name in names if name != "queueId"]),
            frame(kind=kind, more={"long": "x" * fast_pull.HEADER_SIZE_MAX}),
            frame(kind=kind, subscription="(", expression_type="SQL92"),
        ]:
            await ways.take(unusual, 0)
        await ways.ask(frame(kind=kind, more={"queueOffset": "1 "}))
        for usual in [
            frame(kind=kind, more={"other": '"queueOffset":"17"'}),
            frame(kind=kind, more={"other": '"opaque":17'}),
            frame(kind=kind, more={"pe\\rcent%d": "%s 💧"}),
        ]:
            await ways.take(usual)

    play(tmp_path, scene)


def test_json_that_says_more_than_it_seems(tmp_path: Path) -> None:
    usual = frame(1, opaque=77)

    def instead(old: bytes, new: bytes) -> bytes:
        assert usual.count(old) == 1
        header = usual[8:].replace(old, new)
        return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header

    async def scene(ways: Ways, _: Peer) -> None:
        await ways.take(usual)
        for old, new in [
            (b'"opaque":77', b'"opaque":077'),
            (b'"opaque":77', b'"opaque":77.0'),
            (b'"opaque":77', b'"opaque":77e1'),
            (b'"opaque":77', b'"opaque":"77"'),
            (b'"opaque":77', b'"opaque":12345678901'),
            (b'"opaque":77', b'"opaque":77,"opaque":78'),
            (b'"opaque":77', b'"opaque":77,"opaque": 78'),
            (b'"opaque":77', b'"opaque": 78,"opaque":77'),
            (b'"queueOffset":"1"', b'"queueOffset":1'),
            (b'"queueOffset":"1"', b'"queueOffset":"1","queueOffset": "2"'),
            (b'"queueOffset":"1"', b'"queueOffset": "2","queueOffset":"1"'),
            (b'"queueOffset":"1"', b'"queueOffset":"01"'),
            (b'"queueOffset":"1"', b'"queueOffset":"1\\u0030"'),
            (b'"queueOffset":"1"', b'"queueOffset":"1'),
            (b'"flag":0', b'"flag":0,"extFields":{}'),
        ]:
            await ways.ask(instead(old, new))

    play(tmp_path, scene)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_pulls_are_answered_alike(tmp_path: Path, kind: SerializeType) -> None:
    async def scene(ways: Ways, _: Peer) -> None:
        usual = frame(1, opaque=77, kind=kind, commit_offset=5, suspend_timeout_millis=1)
        await ways.take(usual)
        chance = random.Random(11)
        for _ in range(150):
            damaged = bytearray(usual)
            for _ in range(chance.choice((1, 1, 1, 2, 8))):
                damaged[chance.randrange(4, len(damaged))] = chance.choice(b'0123456789"{}:,\\ a\0\1\xff\x80')
            await ways.ask(bytes(damaged) + usual)
        assert ways.taken > 50

    play(tmp_path, scene)


def test_what_the_broker_decides_counts_at_once(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        controller, pull = peer.controller, frame()
        topics, groups = controller.broker.topic_config_manager, controller.broker.subscription_group_manager
        topic = topics.select_topic_config("T")
        assert topic is not None
        await ways.take(pull)

        topics.update_topic_config(type(topic)(topic_name="T", perm=PERM_WRITE))
        (answer,) = await ways.take(pull, 0)
        assert code_of(answer) == ResponseCode.NO_PERMISSION
        topics.update_topic_config(type(topic)(topic_name="T", perm=PERM_READ | PERM_WRITE, topic_sys_flag=1))
        (answer,) = await ways.take(pull)
        assert b'"topicSysFlag":"1"' in answer

        groups.update_subscription_group_config(
            SubscriptionGroupConfig(group_name="CG", consume_enable=False)
        )
        await ways.take(pull, 0)
        groups.update_subscription_group_config(SubscriptionGroupConfig(group_name="CG", group_sys_flag=9))
        (answer,) = await ways.take(pull)
        assert b'"groupSysFlag":"9"' in answer

        for key in ("slaveReadEnable", "rejectPullConsumerEnable"):
            before, controller.broker.config = (
                controller.broker.config,
                controller.broker.config.replaced({key: "true"}),
            )
            await ways.take(pull, 0)
            controller.broker.config = before
            await ways.take(pull)
        controller.broker.config = controller.broker.config.replaced({"brokerPermission": "2"})
        await ways.take(pull, 0)

    play(tmp_path, scene)


def test_subscriptions_of_heartbeats(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        pull = frame(sys_flag=0, subscription=None, sub_version=1)
        (answer,) = await ways.take(pull, 0)
        assert code_of(answer) == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await heartbeat(peer)
        await ways.take(pull)
        await ways.take(frame(sys_flag=0, subscription=None, sub_version=2), 0)
        for expression, found in [("nothing", 0), ("*", 1)]:
            for info in peer.controller.broker.consumer_manager.consumer_table.values():
                info.update_subscription(
                    [
                        SubscriptionData(
                            topic="T", sub_string=expression, sub_version=2 + found, expression_type="TAG"
                        )
                    ]
                )
            await ways.take(pull, found)
        await heartbeat(peer, expression="a > 1", kind="SQL92", version=9)
        await ways.take(pull, 0)

    play(tmp_path, scene, enablePropertyFilter="true")


def test_tags(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        for tag in "abacabacddddda":
            await peer.send("Tagged", tag.encode(), properties=f"TAGS\x01{tag}\x02")
        await peer.dispatched()
        await ways.take(frame(topic="Tagged"))  # makes the group
        for expression, wanted in [("a", "aaaaa"), ("a || c", "aacaaca"), ("d", "ddddd"), ("c||b", "bcbc")]:
            before = ways.taken_by_kernels
            [answer] = await ways.take(frame(topic="Tagged", subscription=expression))
            assert b"".join(message.body for message in decoded(answer)) == wanted.encode()
            assert ways.taken_by_kernels - before == ways.compiled
            for offset in range(14):
                for count in (1, 2, 32):
                    finds = set("abacabacddddda"[offset:]) & set(expression)
                    pull = frame(offset, topic="Tagged", subscription=expression, max_msg_nums=count)
                    [answer] = await ways.take(pull, bool(finds))
                    found = ResponseCode.SUCCESS if finds else ResponseCode.PULL_RETRY_IMMEDIATELY
                    assert code_of(answer) == found
        many = " || ".join(map(str, range(ways.path._kernels.TAGS_MAX if ways.compiled else 16))) + " || a"
        before = ways.taken_by_kernels
        await ways.take(frame(topic="Tagged", subscription=many))
        await ways.take(frame(topic="Tagged", subscription="nobody"), 0)
        assert ways.taken_by_kernels == before

    play(tmp_path, scene)


def test_a_filter_looks_at_so_many_units(tmp_path: Path) -> None:
    """Where those are not all at hand, or none of them matches, the slow path says where to go on."""

    async def scene(ways: Ways, peer: Peer) -> None:
        tags = "ab" * 8 + "b" * 30 + "ab" * 4
        for tag in tags:
            await peer.send("Tagged", b"x" * 90, properties=f"TAGS\x01{tag}\x02")
        await peer.dispatched()
        for offset in range(len(tags)):
            found = "a" in tags[offset : offset + 10]
            [answer] = await ways.take(
                frame(offset, topic="Tagged", subscription="a", max_msg_nums=3), int(found)
            )
            last = [n for n in range(offset, len(tags)) if tags[n] == "a"][2:3]
            following = min([offset + 10, len(tags), *(n + 1 for n in last)])
            assert b'"nextBeginOffset":"%d"' % following in answer

    play(tmp_path, scene, maxFilterMessageSize="200")


def test_offsets_are_committed_and_resets_are_told(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        offsets = peer.controller.broker.consumer_offset_manager
        await ways.take(frame(3, commit_offset=2, max_msg_nums=1))
        assert offsets.query_offset("CG", "T", 0) == -1
        assert offsets.query_pull_offset("CG", "T", 0) == 4
        await ways.take(frame(3, commit_offset=2, sys_flag=SUBSCRIPTION | COMMIT_OFFSET))
        assert offsets.query_offset("CG", "T", 0) == 2
        offsets.assign_reset_offset("T", "CG", 0, 1)
        async with Wire(peer.controller) as wire:
            (answer,) = await wire.say(frame(3))
            assert b"OFFSET_RESET" in answer
            (answer,) = await wire.say(frame(3))
            assert code_of(answer) == ResponseCode.SUCCESS

    play(tmp_path, scene)


def test_a_deleted_topic_is_not_counted_again_by_pulls_before(tmp_path: Path) -> None:
    """Else its counters would be back for ever, a tenth of a second after it is gone."""

    async def scene(ways: Ways, peer: Peer) -> None:
        stats = peer.controller.broker.broker_stats_manager
        async with Wire(peer.controller) as wire:
            await wire.say(frame(0))
        assert ways.taken == 1
        assert stats.item("GROUP_GET_NUMS", "T@CG") is None
        stats.on_topic_deleted("T")
        assert stats.item("BROKER_GET_NUMS", stats.cluster_name) is not None
        called = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * STATISTICS_S, called.set)
        await called.wait()
        assert stats.item("GROUP_GET_NUMS", "T@CG") is None

    play(tmp_path, scene)


def test_statistics(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        stats, store = (
            peer.controller.broker.broker_stats_manager,
            peer.controller.broker.store.store_stats_service,
        )
        async with Wire(peer.controller) as wire:
            answers = await wire.say(frame(0) + frame(1) + frame(4))
        assert ways.taken == 3
        await until_async(lambda: stats.item("GROUP_GET_NUMS", "T@CG") is not None)
        counted, size = stats.item("GROUP_GET_NUMS", "T@CG"), stats.item("GROUP_GET_SIZE", "T@CG")
        assert counted is not None and size is not None
        assert (counted.value, counted.times) == (5 + 4 + 1, 3)
        bodies = [decode_frame(memoryview(answer), 0, len(answer)).body_bytes() for answer in answers]
        assert size.value == sum(map(len, bodies))
        behind, late = (stats.item(name, "0@T@CG") for name in ("GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME"))
        assert behind is not None and late is not None
        assert behind.value == 0
        assert 0 <= late.value < 30_000
        assert store.get_message_times_total_found == 3
        assert store.get_message_transferred_msg_count == 10

    play(tmp_path, scene)


@pytest.mark.parametrize("code", [PULL, LITE_PULL])
def test_each_pull_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, code: int
) -> None:
    """Whoever answers it, and however long that takes."""
    real, slow = Connection.descriptor, 0.0

    def descriptor(self: Connection) -> int:
        time.sleep(slow)
        return real(self)

    monkeypatch.setattr(Connection, "descriptor", descriptor)

    async def scene(ways: Ways, peer: Peer) -> None:
        nonlocal slow
        broker = peer.controller.broker
        stats, store = broker.broker_stats_manager, broker.store.store_stats_service
        assert peer.controller.metrics is not None
        latencies = peer.controller.metrics.rpc_latencies
        kind = Rpc(code, ResponseCode.SUCCESS, is_long_polling=False, oneway=False)
        async with Wire(peer.controller) as wire:
            for _ in range(3):  # the first makes the group; then compiled code knows the plan
                await wire.say(frame(code=code))
            await wire.say(b"".join(frame(offset, code=code) for offset in (0, 1, 4)))
            assert sum(latencies.histograms[kind].counts) == 6
            before, taken = latencies.histograms[kind].sum, ways.taken_by_kernels
            assert taken == (4 if compiled else 0)
            slow = 0.004 if compiled else 0
            await wire.say(frame(4, code=code))
        histogram = latencies.histograms[kind]
        assert (sum(histogram.counts), ways.taken) == (7, 7)
        assert before > 0 and histogram.sum > before
        if compiled:
            assert ways.taken_by_kernels == 5
            assert histogram.sum - before >= 4_000_000 and sum(histogram.counts[2:]) >= 1
            assert store.get_message_entire_time_max >= 4
        await until_async(
            lambda: (item := stats.item("GROUP_GET_NUMS", "T@CG")) is not None and item.times >= 7
        )
        counted, messages = stats.item("GROUP_GET_NUMS", "T@CG"), 4 * 5 + 4 + 1 + 1
        assert counted is not None and (counted.value, counted.times) == (messages, 7)
        assert store.get_message_times_total_found == 7
        assert store.get_message_transferred_msg_count == messages
        latency = stats.item("GROUP_GET_LATENCY", "0@T@CG")
        assert latency is not None and (latency.value >= 4 or not compiled)
        for times in (9, 11):
            async with Wire(peer.controller) as wire:
                await wire.say(frame(1, code=code))
                await wire.say(frame(1, code=code))
            await until_async(lambda times=times: counted.times >= times)  # type: ignore[misc]
            assert (counted.value, counted.times) == (messages + 4 * (times - 7), times)

    play(tmp_path, scene, metricsExporterType="PROM", metricsPromExporterPort="0")


def test_groups_without_heartbeats_are_known_by_their_pulls(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        manager = peer.controller.broker.consumer_manager
        async with Wire(peer.controller) as wire:
            await wire.say(frame())
            manager._compensation_table.clear()
            fast_pull_of(peer.controller)._plans.popitem()[1].compensated_at = -1e9  # type: ignore[union-attr]
            await wire.say(frame())
        assert ways.taken == 2
        assert manager.find_subscription_data("CG", "T") is not None

    play(tmp_path, scene)


def test_messages_on_the_disk_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(ways: Ways, _: Peer) -> None:
        monkeypatch.setattr(MappedFile, "is_resident", lambda self, position: False)
        await ways.take(frame(), 0)

    play(tmp_path, scene)


def test_records_of_many_queues_between_them(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        for n in range(60):
            await peer.send("Mixed", b"%d" % n * n, queue_id=n % 3)
        await peer.dispatched()
        for queue_id in range(3):
            for offset in (0, 3):
                await ways.take(frame(offset, topic="Mixed", queue_id=queue_id))

    play(tmp_path, scene)


def test_plans_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_pull, "PLANS_MAX", 3)

    async def scene(ways: Ways, _: Peer) -> None:
        for number in range(1, 9):
            await ways.take(frame(max_msg_nums=number))
            assert 1 <= len(ways.path._plans) <= 3
        plan = next(iter(ways.path._plans.values()))
        assert isinstance(plan, PullPlan)

    play(tmp_path, scene)


def test_those_who_come_and_go(tmp_path: Path) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        connections = peer.controller.server.connections
        others = len(connections)
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.controller.port)
        writer.write(frame() * 50)
        writer.close()
        await writer.wait_closed()
        await until_async(lambda: ways.taken > 0)
        await until_async(lambda: len(connections) == others)
        await ways.take(frame())
        del reader

    play(tmp_path, scene)


def test_damage_is_passed_over_here_too(tmp_path: Path) -> None:
    """With the same bytes, and named once although both ways meet it."""

    async def scene(ways: Ways, peer: Peer) -> None:
        store = peer.controller.broker.store
        flip(log_file(tmp_path / "store"), store.consume_queues.get("T", 0).get(2).physical_offset + 15)
        [answer] = await ways.take(frame(0))
        assert [message.queue_offset for message in decoded(answer)] == [0, 1, 3, 4]
        [answer] = await ways.take(frame(2, max_msg_nums=1), 0)
        assert code_of(answer) == ResponseCode.PULL_RETRY_IMMEDIATELY
        [answer] = await ways.take(frame(3, max_msg_nums=1))
        assert [message.queue_offset for message in decoded(answer)] == [3]
        assert store.damage.count == 1

    play(tmp_path, scene)


def decoded(answer: bytes) -> list[MessageClientExt]:
    return decode_messages(decode_frame(memoryview(answer), 0, len(answer)).body_bytes(), "broker-a")


def test_compiled_code_answers_what_it_has_seen(tmp_path: Path, compiled: bool) -> None:
    """Queues in turn, in one read and in many, and one that nobody knows between them."""

    async def scene(ways: Ways, peer: Peer) -> None:
        for n in range(90):
            await peer.send("Many", b"%d" % n * n, queue_id=n % 3)
        await peer.dispatched()
        pulls = [
            frame(offset, opaque=1000 * offset + queue_id, topic="Many", queue_id=queue_id, max_msg_nums=7)
            for offset in range(0, 30, 7)
            for queue_id in range(3)
        ]
        await ways.take(b"".join(pulls), 15)
        for pull in pulls:
            await ways.take(pull)
        await ways.take(
            b"".join(pulls[:8]) + frame(2, topic="Many", commit_offset=4) + b"".join(pulls[8:]), 16
        )
        seen, ways.taken_by_kernels = ways.taken_by_kernels, 0
        assert (seen > 0) == compiled
        await ways.take(b"".join(pulls), 15)
        assert ways.taken_by_kernels == (15 if compiled else 0)

    play(tmp_path, scene)


def test_peers_that_read_slowly_get_everything(tmp_path: Path) -> None:
    """More than a socket takes at once: the rest leaves with what comes after it."""

    async def scene(ways: Ways, peer: Peer) -> None:
        for n in range(40):
            await peer.send("Large", bytes([n]) * 60_000, queue_id=n % 2)
        await peer.dispatched()
        pulls = [frame(0, opaque=n, topic="Large", queue_id=n % 2, max_msg_nums=20) for n in range(40)]
        await ways.take(b"".join(pulls), 40)

    play(tmp_path, scene)


def test_the_rows_of_compiled_code_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_pull, "ROWS_MAX", 3)

    async def scene(ways: Ways, _: Peer) -> None:
        for number in (*range(1, 9), *range(1, 9)):
            await ways.take(frame(max_msg_nums=number))
            assert len(ways.path._rows) <= 3
            known = {
                plan for plan in ways.path._plans.values() if plan is not None and plan.native is not None
            }
            assert known == set(ways.path._rows)

    play(tmp_path, scene)


def test_files_that_were_closed_are_left_alone(tmp_path: Path, compiled: bool) -> None:
    async def scene(ways: Ways, peer: Peer) -> None:
        [file] = peer.controller.broker.store.commit_log_files.mapped_files
        async with Wire(peer.controller) as wire:
            before = [await wire.say(frame()) for _ in range(3)]  # the first one makes the group
            assert ways.taken_by_kernels == compiled
            array, file.readable_array = file.readable_array, np.empty(0, np.uint8)
            try:
                closed = await wire.say(frame())
            finally:
                file.readable_array = array
            assert ways.taken_by_kernels == compiled
            assert [*before, closed, await wire.say(frame())] == 5 * [closed]
            assert ways.taken_by_kernels == 2 * compiled

    play(tmp_path, scene)


def test_units_that_were_read_ahead(tmp_path: Path) -> None:
    """They are good until the queue is another one, and new messages after them are seen."""

    async def scene(ways: Ways, peer: Peer) -> None:
        store = peer.controller.broker.store
        for _ in range(20):
            await peer.send("A", b"old")
        await peer.dispatched()
        for offset in range(0, 20, 4):
            await ways.take(frame(offset, topic="A", max_msg_nums=4))
        for _ in range(3):
            await peer.send("A", b"newer")
        await peer.dispatched()
        for offset in (18, 19, 20, 22):
            (answer,) = await ways.take(frame(offset, topic="A", max_msg_nums=4))
            assert b'"maxOffset":"23"' in answer
        queue = store.consume_queues.get("A", 0)
        assert queue is not None
        queue.min_logic_offset = 5 * queue.unit_size
        (answer,) = await ways.take(frame(4, topic="A", max_msg_nums=4), 0)
        assert code_of(answer) == ResponseCode.PULL_OFFSET_MOVED
        await ways.take(frame(5, topic="A", max_msg_nums=4))
        header = DeleteTopicRequestHeader(topic="A")
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == ResponseCode.SUCCESS
        for _ in range(9):
            await peer.send("A", b"of another life")
        await peer.dispatched()
        for offset in (0, 4, 8):
            (answer,) = await ways.take(frame(offset, topic="A", max_msg_nums=4))
            assert b"another life" in answer and b"old" not in answer
        (answer,) = await ways.take(frame(9, topic="A", max_msg_nums=4), 0)
        assert code_of(answer) == ResponseCode.PULL_NOT_FOUND

    play(tmp_path, scene)


def test_the_first_pull_loads_the_kernels(tmp_path: Path) -> None:
    async def scene(ways: Ways, _: Peer) -> None:
        path, ways.path._native = ways.path, None
        await ways.take(frame())
        assert (path._native is not None) == ways.compiled
        await ways.take(frame(), 1)
        assert bool(path._rows) == ways.compiled

    play(tmp_path, scene)


def test_messages_that_only_the_archive_has(tmp_path: Path, compiled: bool) -> None:
    """What has come from there, and has its CRCs, is answered as what is here; damage and what has gone from the cache
    go the plain way."""
    archived = {
        "mappedFileSizeCommitLog": "16384",
        "archive": f"file://{tmp_path}/archive",
        "archiveInterval": "1",
    }

    async def scene(ways: Ways, peer: Peer) -> None:
        store = peer.controller.broker.store
        for number in range(100):
            await peer.send("Old", b"%d " % number * 100)
        await peer.dispatched()
        store.flush()
        await until_async(
            lambda: store.archive is not None and not store.archive.behind_bytes, "it is archived"
        )
        assert store.archived is not None
        flip(tmp_path / "archive" / "commitlog" / f"{16384:020d}", 8000)  # the archive's body of a message
        forget_old_files(store)
        assert store.commit_log_files.min_offset >= 2 * 16384
        async with Wire(peer.controller) as wire:  # the plain way, which fetches it
            assert code_of((await wire.say(frame(topic="Old")))[0]) == ResponseCode.SUCCESS
        first = ways.taken_by_kernels
        await ways.take(frame(topic="Old", max_msg_nums=4))
        await ways.take(frame(4, topic="Old", max_msg_nums=4))
        assert (ways.taken_by_kernels > first) == compiled
        offset, found = 0, []
        while offset < 100:
            (answer,) = await ways.ask(frame(offset, topic="Old", max_msg_nums=8))
            for one in decoded(answer):
                assert one.body == b"%d " % one.queue_offset * 100
                found.append(one.queue_offset)
            offset = int(decode_frame(memoryview(answer), 0, len(answer)).ext_fields["nextBeginOffset"])
        (damaged,) = set(range(100)) - set(found)
        assert found == [each for each in range(100) if each != damaged]
        chunk = store.archived._chunks[0]
        store.archived._forget(0)
        assert chunk.checked is None or not len(chunk.checked.readable_array)
        await ways.ask(frame(topic="Old", max_msg_nums=4))
        assert store.archived._chunks[0] is not chunk

    play(tmp_path / "broker", scene, **archived)
