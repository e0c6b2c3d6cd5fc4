"""Two brokers get the same bytes, one with the compiled way and one without: their logs and answers are the same."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import re
import shutil
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mqlake import native
from mqlake.broker.controller import BrokerController
from mqlake.broker.fast.fast_send import FastSend
from mqlake.broker.requests import send_message
from mqlake.broker.state.topic_config import _CHOICES
from mqlake.message import MessageExt, MessageSysFlag, ids
from mqlake.native.send_layout import KEYS_LEFT, KEYS_WANTED, SENDS_MAX
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import LanguageCode, RequestCode, SerializeType
from mqlake.remoting.command import ONEWAY_FLAG, RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.produce import EndTransactionRequestHeader, SendMessageResponseHeader
from mqlake.remoting.loop import run
from mqlake.store.log.log_reader import LogReader
from tests.broker.live import SCENE_S, now_ms, running, send_header
from tests.waiting import trying, until

TOPIC = "Orders"
LATER = "18"
"""A level of two hours: what is delivered while a slow machine is at it has times of its own in each log."""
RECORD_PLACES = (slice(52, 56), slice(56, 64), slice(68, 72))
"""Of a record what differs between two brokers: the ports of client and broker, the time."""


@pytest.fixture(autouse=True)
def _same_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broker draws by lot, a key or a queue, is the same on both."""
    monkeypatch.setattr(ids, "create_uniq_id", lambda: "A" * 32)
    monkeypatch.setattr(send_message.random, "randrange", lambda stop: stop - 1)


def properties(**values: str) -> str:
    """As a header has them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


def send(
    body: bytes = b"body",
    *,
    opaque: int = 7,
    code: int = RequestCode.SEND_MESSAGE_V2,
    command_flag: int = 0,
    kind: SerializeType = SerializeType.JSON,
    topic: str = TOPIC,
    long_names: bool = False,
    more: dict[str, str] | None = None,
    less: str = "",
    **fields: object,
) -> bytes:
    """The frame of a send as Java's client makes it."""
    values = {
        "queue_id": 1,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "properties": properties(UNIQ_KEY=f"7F0000010001-{opaque}", WAIT="true", TAGS="A"),
        "reconsume_times": 0,
        "unit_mode": False,
        "max_reconsume_times": 0,
        "batch": False,
        **fields,
    }
    command = RemotingCommand(
        code,
        language=LanguageCode.JAVA,
        opaque=opaque,
        flag=command_flag,
        ext_fields=send_header(topic, v1=long_names, **values).encode() | (more or {}),
        body=body,
        serialize_type=kind,
    )
    for name in less:
        del command.ext_fields[name]
    return encode_frame(command)


def item(
    body: bytes = b"body",
    own: bytes = b"",
    *,
    flag: int = 0,
    size: int | None = None,
    body_length: int | None = None,
    own_length: int | None = None,
) -> bytes:
    """A message of a batch, its numbers as they should be unless given; magic and CRC are nobody's."""
    size = 22 + len(body) + len(own) if size is None else size
    head = struct.pack(">iIIii", size, 1, 2, flag, len(body) if body_length is None else body_length)
    return head + body + struct.pack(">h", len(own) if own_length is None else own_length) + own


def batch(*items: bytes, **fields: object) -> bytes:
    """The frame of a batch as Java's client makes it."""
    return send(b"".join(items), **{"code": RequestCode.SEND_BATCH_MESSAGE, "batch": True, **fields})  # type: ignore[arg-type]


def own(number: int) -> bytes:
    """Properties of a message of a batch, in all their forms."""
    whole = properties(UNIQ_KEY=f"7F0000010002-{number}", KEYS="k", TAGS="é").encode()
    return (b"", whole, whole[:-1], b"\x02", b"\xff\x00")[number % 5]


def half(body: bytes = b"body", **values: object) -> bytes:
    """The frame of a half message; in capitals or lower-case beside `send`'s fields: more properties."""
    fields = {name: value for name, value in values.items() if name in _SEND_FIELDS}
    more = {name: str(value) for name, value in values.items() if name not in _SEND_FIELDS}
    uniq_key = f"7F0000010001-{values.get('opaque', 7)}"
    given = {"sys_flag": 4, "properties": properties(UNIQ_KEY=uniq_key, TRAN_MSG="true", PGROUP="PG", **more)}
    return send(body, **{**given, **fields})  # type: ignore[arg-type]


_SEND_FIELDS = (
    "opaque",
    "kind",
    "topic",
    "queue_id",
    "sys_flag",
    "flag",
    "properties",
    "command_flag",
    "born_timestamp",
)


def end(
    answer: bytes,
    how: int = MessageSysFlag.TRANSACTION_COMMIT_TYPE,
    *,
    command_flag: int = ONEWAY_FLAG,
    kind: SerializeType = SerializeType.JSON,
    body: bytes | None = None,
    less: Sequence[str] = (),
    **fields: object,
) -> bytes:
    """The frame of the END_TRANSACTION of a half message that was answered so, as Java's client makes it."""
    sent = decode_frame(memoryview(answer), 0, len(answer)).decode_header(SendMessageResponseHeader)
    values = {
        "topic": TOPIC,
        "producer_group": "PG",
        "tran_state_table_offset": sent.queue_offset,
        "commit_log_offset": int(sent.msg_id[16:], 16),
        "commit_or_rollback": how,
        "msg_id": sent.transaction_id,
        "transaction_id": sent.transaction_id,
        "bname": "broker-a",
        **fields,
    }
    command = RemotingCommand(
        RequestCode.END_TRANSACTION,
        language=LanguageCode.JAVA,
        opaque=5,
        flag=command_flag,
        ext_fields=EndTransactionRequestHeader(**values).encode(),  # type: ignore[arg-type]
        body=body,
        serialize_type=kind,
    )
    for name in less:
        del command.ext_fields[name]
    return encode_frame(command)


class Wire:
    """One connection to one broker, bytes in and frames out."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller
        self._received = b""

    async def __aenter__(self) -> Wire:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._controller.port)
        self._address = b"%s:%d" % (b"127.0.0.1", self._writer.get_extra_info("sockname")[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def say(self, data: bytes) -> list[bytes]:
        """The answers to `data`; the last one says so when the broker hangs up."""
        answers = await self.ask(data)
        while self._controller.server.in_flight:
            await asyncio.sleep(0.001)
        return answers + await self.ask(b"")

    async def ask(self, data: bytes) -> list[bytes]:
        """What comes before the answer to a question that any broker refuses at once."""
        self._writer.write(data + encode_frame(RemotingCommand(31999, opaque=999_999)))
        answers: list[bytes] = []
        while True:
            while end := frame_end(self._received, 0, len(self._received)):
                frame, self._received = self._received[:end], self._received[end:]
                answer = decode_frame(memoryview(frame), 0, end)
                if answer.opaque == 999_999:
                    return answers
                frame = frame.replace(b"7F000001%08X" % self._controller.port, b"7F000001--------")
                answers.append(frame.replace(self._address, b"-" * len(self._address)))
            more = b""
            with contextlib.suppress(ConnectionError):
                more = await self._reader.read(1 << 20)
            if not more:
                return [*answers, b"hung up"]
            self._received += more


def log_of(controller: BrokerController) -> list[bytes]:
    """The records, without what differs between two brokers, and the four bytes behind them."""
    records = []
    for chunk in LogReader(controller.broker.store.commit_log_files).scan(0):
        view, scan = chunk.mapped_file.view, chunk.scan
        for start, size in zip(scan.position.tolist(), scan.size.tolist(), strict=True):
            record = bytearray(view[start : start + size])
            for place in RECORD_PLACES:
                record[place] = bytes(place.stop - place.start)
            records.append(bytes(record))
    assert chunk.end == controller.broker.store.max_phy_offset
    records.append(bytes(view[scan.end : scan.end + 4]))
    return records


def fast_path(controller: BrokerController) -> FastSend:
    found = controller.server.fast_paths[0]
    assert isinstance(found, FastSend)
    return found


def taken(controller: BrokerController) -> list[int]:
    """What the fast path takes from now on: the number of sends in each step."""
    path, numbers = fast_path(controller), []
    store = path._store

    def counting(*given: Any) -> int:
        done = store(*given)
        numbers.append(done)
        return done

    path._store = counting  # type: ignore[method-assign]
    path.native = CountedSends(path.native, numbers)
    return numbers


class CountedSends:
    """NativeSends that also says how many messages each call has stored."""

    def __init__(self, sends: Any, numbers: list[int]) -> None:
        vars(self).update(_sends=sends, _numbers=numbers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sends, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._sends, name, value)

    def take(self, *given: Any) -> int:
        return self._noted(self._sends.take(*given))

    def taker(self, fast: FastSend, connection: Connection, host: int) -> Any:
        taker = self._sends.taker(fast, connection, host)
        connection.read_by(counted_reader(connection, fast._scratch, taker, self._numbers))
        return taker

    def _noted(self, following: int) -> int:
        if self.messages and self.answers is not None:
            self._numbers.append(self.messages)
        return following


def counted_reader(connection: Connection, scratch: memoryview, taker: Any, numbers: list[int]) -> Any:
    """A TransportReader that says how many messages the taker has stored of each read, before what it leaves to others
    is counted."""
    reader = native.module("reader")
    assert reader is not None

    class CountedReader(reader.TransportReader):  # type: ignore[misc, name-defined]
        def buffer_updated(self, size: int) -> None:
            stored, at = taker.stored, len(numbers)
            super().buffer_updated(size)
            if taker.stored > stored:
                numbers.insert(at, taker.stored - stored)

    return CountedReader(connection, scratch)


Scene = Callable[[BrokerController, BrokerController], Awaitable[None]]


@contextlib.asynccontextmanager
async def two_brokers(
    directory: Path, **settings: str
) -> AsyncIterator[tuple[BrokerController, BrokerController]]:
    """A fast one and a plain one, that have stored a message of TOPIC already."""
    async with (
        running(directory / "fast", **settings) as fast,
        running(directory / "plain", **settings) as plain,
    ):
        await asyncio.to_thread(fast_path(fast).load)
        plain.server.fast_paths = ()
        for controller in (fast, plain):
            async with Wire(controller) as wire:
                await wire.say(send())
                assert controller.broker.topic_config_manager.select_topic_config(TOPIC) is not None
            while controller.broker.topic_config_manager.unsettled:
                await asyncio.sleep(0.005)
        yield fast, plain


def on_two_brokers(directory: Path, scene: Scene, **settings: str) -> None:
    async def play() -> None:
        async with two_brokers(directory, **settings) as (fast, plain), asyncio.timeout(SCENE_S):
            await scene(fast, plain)
            assert log_of(fast) == log_of(plain)

    run(play())


async def both_say(fast: BrokerController, plain: BrokerController, data: bytes) -> list[bytes]:
    async with Wire(fast) as one, Wire(plain) as other:
        said, expected = await asyncio.gather(one.say(data), other.say(data))
    if fast.broker.store_config.is_sync_flush:  # several flushes may answer them
        said, expected = sorted(said), sorted(expected)
    assert said == expected
    return said


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("kind", list(SerializeType))
def test_usual_sends_are_taken_together(tmp_path: Path, kind: SerializeType, flush: str) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        frames = [
            send(
                b"%d" % n * n,
                opaque=n,
                kind=kind,
                queue_id=n % 4,
                flag=n,
                reconsume_times=n % 3,
                sys_flag=n % 2,
            )
            for n in range(100)
        ]
        answers = await both_say(fast, plain, b"".join(frames))
        assert len(answers) == 100
        assert sum(numbers) == 100

    on_two_brokers(tmp_path, scene, flushDiskType=flush)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("kind", list(SerializeType))
def test_usual_batches_are_taken_together(tmp_path: Path, kind: SerializeType, flush: str) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        frames = [
            batch(
                *(item(b"%d" % n * n, own(n), flag=n - 3) for n in range(n, n + 1 + n * 7 % 40)),
                opaque=n,
                kind=kind,
                queue_id=n % 4,
                flag=n,
                reconsume_times=n % 3,
                sys_flag=n % 2,
            )
            for n in range(60)
        ]
        frames[7:7] = [send(opaque=100 + n, kind=kind, queue_id=n % 4) for n in range(7)]
        answers = await both_say(fast, plain, b"".join(frames))
        assert len(answers) == 67
        assert sum(numbers) == 7 + sum(1 + n * 7 % 40 for n in range(60))
        assert max(numbers) > 400
        for controller in (fast, plain):
            info = controller.broker.store.runtime_info()
            assert info["putMessageTimesTotal"] == str(1 + sum(numbers))
            stats = controller.broker.store.store_stats_service
            assert sum(stats._histogram) + sum(stats.fast_puts.histogram()) == 1 + 67

    on_two_brokers(tmp_path, scene, flushDiskType=flush)


@pytest.mark.parametrize("kind", list(SerializeType))
def test_usual_sends_with_long_names(tmp_path: Path, kind: SerializeType) -> None:
    """As Go's client sends them."""

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        frames = [
            send(b"%d" % n, opaque=n, code=code, long_names=code == RequestCode.SEND_MESSAGE, kind=kind)
            for n in range(20)
            for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)
        ]
        assert len(await both_say(fast, plain, b"".join(frames))) == 40
        assert sum(numbers) == 40

    on_two_brokers(tmp_path, scene)


def test_what_differs_between_sends_of_one_shape(tmp_path: Path) -> None:
    """The fourth one of each run is read by the shape of those before it, and is not usual or differs elsewhere."""

    def one(number: int, key: str = "", wait: str = "true", **fields: Any) -> bytes:
        values = properties(KEYS=f"k{number}", UNIQ_KEY=key or f"7F0000010001{number:04}", WAIT=wait)
        given = {"queue_id": number % 4, "born_timestamp": 1_700_000_000_000 + number, "properties": values}
        return send(opaque=number, **{**given, **fields})

    def changed(old: bytes, new: bytes) -> Callable[[int], bytes]:
        def frame(number: int) -> bytes:
            made = one(number, queue_id=1).replace(old, new)
            assert new in made
            return made

        return frame

    odd: list[Callable[[int], bytes]] = [
        lambda n: one(n, key="K" * 128),
        lambda n: one(n, key="K" * 129),
        lambda n: one(n, key="K\x7f"),
        lambda n: one(n, key="Ké"),
        lambda n: one(n, key='K"\\'),
        lambda n: one(n, wait="false"),
        lambda n: one(n, queue_id=7),
        lambda n: one(n, queue_id=17),
        lambda n: one(n, queue_id=-1),
        lambda n: one(n, sys_flag=1),
        lambda n: one(n, sys_flag=4),
        lambda n: one(n, flag=9),
        lambda n: one(n, reconsume_times=2),
        lambda n: one(n, born_timestamp=-5),
        lambda n: one(n, command_flag=ONEWAY_FLAG),
        lambda n: one(n, code=RequestCode.SEND_BATCH_MESSAGE),
        lambda n: one(n, topic="Others"),
        lambda n: one(n, properties=properties(UNIQ_KEY=f"{n}")),
        changed(b'"e":"1"', b'"e":"x"'),
        changed(b'"g":"17', b'"g":"1x'),
        changed(b"KEYS", b"KEYZ"),
        changed(b"KEYS", b"WAIT"),
        changed(b"\\u0002UNIQ", b"\\u0003UNIQ"),
        changed(b'"k":"false"', b'"k":"falsy"'),
    ]

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        frames = [
            (odd[n // 6](n) if n % 6 == 3 and n // 6 < len(odd) else one(n)) for n in range(6 * len(odd) + 40)
        ]
        await both_say(fast, plain, b"".join(frames))
        assert sum(numbers) > 5 * len(odd) + 30

    on_two_brokers(tmp_path, scene)


def with_header(frame: bytes, write: Callable[[dict[str, Any]], str]) -> bytes:
    """The same frame, its JSON header written as another client writes it."""
    size = int.from_bytes(frame[5:8], "big")
    header = write(json.loads(frame[8 : 8 + size])).encode()
    rest = len(header).to_bytes(4, "big") + header + frame[8 + size :]
    return len(rest).to_bytes(4, "big") + rest


def _typed(fields: dict[str, str], *texts: str) -> dict[str, object]:
    """Numbers and booleans as such, but for the fields named."""
    return {
        name: value if name in texts or not re.fullmatch(r"-?[0-9]+|true|false", value) else json.loads(value)
        for name, value in fields.items()
    }


def _as_go(header: dict[str, Any]) -> str:
    order = ("code", "language", "version", "opaque", "flag", "remark", "extFields")
    return _compact({name: {**header, "language": "GO", "remark": ""}[name] for name in order})


def _as_cpp(header: dict[str, Any]) -> str:
    texts = "bornTimestamp", "g", "reconsumeTimes", "j", "unitMode", "k", "batch", "m"
    own = {"AccessKey": "", "OnsChannel": "ALIYUN", "Signature": "zptCbZbKkZ7TbiTA5FS37s2a/kY="}
    fields = _typed(header["extFields"] | own, *texts)
    for name in ("unitMode", "k", "batch", "m"):
        if fields.get(name) == "false":
            fields[name] = "0"
    return _compact({**header, "language": "CPP", "extFields": fields}, sort_keys=True) + "\n"


def _as_rust(header: dict[str, Any]) -> str:
    """bname also beside names of one letter."""
    order = (
        "code",
        "language",
        "version",
        "opaque",
        "flag",
        "remark",
        "extFields",
        "serializeTypeCurrentRPC",
    )
    fields = dict(sorted({**header["extFields"], "bname": "broker-a"}.items()))
    whole = {**header, "language": "RUST", "remark": None, "extFields": fields}
    return _compact({name: whole[name] for name in order})


def _in_any_order(header: dict[str, Any]) -> str:
    """As a client whose maps have none."""
    fields = header["extFields"]
    return _compact(header | {"extFields": dict(sorted(fields.items(), key=lambda item: hash(item[1])))})


def _as_node(header: dict[str, Any]) -> str:
    order = ("code", "language", "opaque", "flag", "version", "extFields")
    return _compact({name: {**header, "extFields": _typed(header["extFields"])}[name] for name in order})


def _compact(header: dict[str, Any], **options: Any) -> str:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False, **options)


@pytest.mark.parametrize(
    "write",
    [
        _as_go,
        _as_cpp,
        _as_rust,
        _as_node,
        _in_any_order,
        json.dumps,
        lambda header: json.dumps(dict(reversed(header.items())), indent=2),
        lambda header: f" \r\n\t{json.dumps(header, separators=(' , ', ' : '))}\n",
    ],
    ids=["Go", "C++", "Rust", "Node", "any order", "spaces", "backwards", "spaces everywhere"],
)
def test_headers_as_clients_write_them(tmp_path: Path, write: Callable[[dict[str, Any]], str]) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        frames = [
            with_header(frame, write)
            for n in range(10)
            for frame in (
                send(b"%d" % n, opaque=n, properties=properties(UNIQ_KEY=f"U{n}", KEYS="é 你", WAIT="true")),
                send(opaque=n, code=RequestCode.SEND_MESSAGE, long_names=True, flag=-n),
                batch(item(own=own(n)), item(), opaque=n),
            )
        ]
        assert len(await both_say(fast, plain, b"".join(frames))) == 30
        assert sum(numbers) == 40

    on_two_brokers(tmp_path, scene)


def test_messages_without_a_key_get_one(tmp_path: Path) -> None:
    """As those of Node's client are."""

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        keyless = [
            send(b"%d" % n, opaque=n, properties=given)
            for n, given in enumerate(
                ["", properties(KEYS="k"), properties(a="b")[:-1], properties(TAGS="é", WAIT="true")] * 30
            )
        ]
        keyless += [send(less="i")]
        await both_say(fast, plain, keyless[0])  # has keys made for the next ones
        numbers = taken(fast)
        answers = await both_say(fast, plain, b"".join(keyless))
        assert all(b'"transactionId":"' + b"A" * 32 in answer for answer in answers)
        assert sum(numbers) == len(keyless)

    on_two_brokers(tmp_path, scene)


@pytest.mark.parametrize("later_s", [-3600, 3600])
def test_a_new_key_is_no_older_than_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_s: int
) -> None:
    """It says when it was made."""
    made: list[int] = []
    monkeypatch.setattr(ids, "create_uniq_id", lambda: made.append(1) or f"{len(made):032}")

    async def play() -> None:
        async with running(tmp_path) as controller, Wire(controller) as wire:
            fast = fast_path(controller)
            await asyncio.to_thread(fast.load)
            assert fast.native is not None
            frame = send(properties="")
            for _ in trying("the loop has made keys"):
                if fast._new_keys[KEYS_LEFT]:
                    break
                await wire.say(frame)
                fast._takes_sends()
            before = len(made)
            fast._new_keys[KEYS_WANTED] = 0
            fast._keys_made_at += later_s
            fast.native.open_until = 0
            (answer,) = await wire.say(frame)
            found = re.search(rb'"transactionId":"([0-9]{32})"', answer)
            assert found is not None
            assert (int(found[1]) > before) == (later_s < 0)

    run(play())


@pytest.mark.parametrize("frame", [send(), batch(item(), item())], ids=["sends", "batches"])
def test_the_second_of_a_kind_is_usual(tmp_path: Path, frame: bytes) -> None:
    """In a store that has had nothing else."""

    async def play() -> None:
        async with running(tmp_path) as controller, Wire(controller) as wire:
            await asyncio.to_thread(fast_path(controller).load)
            numbers = taken(controller)
            await wire.say(frame)
            while controller.broker.topic_config_manager.unsettled:
                await asyncio.sleep(0.005)
            await wire.say(frame + frame)
            assert [number for number in numbers if number] == [2 if frame[8:20] == b'{"code":310,' else 4]

    run(play())


def test_what_is_not_usual_goes_the_other_way_in_its_place(tmp_path: Path) -> None:
    usual = send(opaque=1)
    many = item(b"")
    unusual = {
        "heartbeat": encode_frame(RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, opaque=2)),
        "version 1": send(code=RequestCode.SEND_MESSAGE),
        "another topic": send(topic="Others"),
        "no queue": send(queue_id=-1),
        "too high a queue": send(queue_id=64),
        "an illegal topic": send(topic="a b"),
        "a forbidden topic": send(topic="SCHEDULE_TOPIC_XXXX"),
        "a retry topic": send(topic="%RETRY%G"),
        "delayed": send(properties=properties(UNIQ_KEY="U", DELAY=LATER)),
        "transactional": send(properties=properties(UNIQ_KEY="U", TRAN_MSG="true")),
        "prepared": send(sys_flag=4),
        "prepared, it says": half(properties=properties(UNIQ_KEY="U", TRAN_MSG="false", PGROUP="PG")),
        "prepared by no property": half(properties=properties(UNIQ_KEY="U", PGROUP="PG")),
        "prepared in capitals": half(properties=properties(UNIQ_KEY="U", TRAN_MSG="TRUE", PGROUP="PG")),
        "prepared by no group": half(properties=properties(UNIQ_KEY="U", TRAN_MSG="true")),
        "prepared without a key": half(properties=properties(TRAN_MSG="true", PGROUP="PG")),
        "prepared, delayed": half(DELAY=LATER),
        "prepared, of another topic": half(REAL_TOPIC="Others"),
        "prepared, of another queue": half(REAL_QID="1"),
        "prepared before": half(TRAN_PREPARED_QUEUE_OFFSET="0"),
        "prepared with an id": half(__transactionId__="x"),
        "prepared, not to be asked for": half(CHECK_IMMUNITY_TIME_IN_SECONDS="60"),
        "prepared and committed": half(sys_flag=12),
        "committed": half(sys_flag=8),
        "a half topic": half(topic="RMQ_SYS_TRANS_HALF_TOPIC"),
        "the half queue": send(topic="RMQ_SYS_TRANS_HALF_TOPIC", queue_id=0),
        "a prepared batch with its property": batch(
            item(), sys_flag=4, properties=properties(UNIQ_KEY="U", TRAN_MSG="true", PGROUP="PG")
        ),
        "a timer": send(properties=properties(UNIQ_KEY="U", TIMER_DELIVER_MS=str(now_ms() + 3_600_000))),
        "to light queues": send(properties=properties(UNIQ_KEY="U", INNER_MULTI_DISPATCH="%LMQ%a")),
        "to a lite topic": send(properties=properties(UNIQ_KEY="U", __LITE_TOPIC="child")),
        "prepared, to light queues": half(INNER_MULTI_DISPATCH="%LMQ%a"),
        "prepared, to a lite topic": half(__LITE_TOPIC="child"),
        "a batch to light queues": batch(item(), properties=properties(INNER_MULTI_DISPATCH="%LMQ%a")),
        "a batch of which one is to light queues": batch(
            item(), item(own=properties(TAGS="A", INNER_MULTI_DISPATCH="%LMQ%a").encode()), item()
        ),
        "a batch of which one is to a lite topic": batch(
            item(), item(own=properties(__LITE_TOPIC="child").encode()), item()
        ),
        "an inner batch": send(properties=properties(UNIQ_KEY="U", INNER_NUM="3")),
        "a region": send(properties=properties(UNIQ_KEY="U", MSG_REGION="x")),
        "a cluster": send(properties=properties(UNIQ_KEY="U", CLUSTER="x")),
        "no wait": send(properties=properties(UNIQ_KEY="U", WAIT="false")),
        "a name twice": send(properties=properties(UNIQ_KEY="U", a="1") + properties(a="2")),
        "no value": send(properties=properties(UNIQ_KEY="U", a="")),
        "no name": send(properties=properties(UNIQ_KEY="U") + "\x01b\x02"),
        "no separator": send(properties=properties(UNIQ_KEY="U") + "b\x02"),
        "a long key": send(properties=properties(UNIQ_KEY="U" * 200)),
        "a quoted key": send(properties=properties(UNIQ_KEY='U"V')),
        "many properties": send(properties=properties(UNIQ_KEY="U", **{f"p{n}": "v" for n in range(40)})),
        "a key beyond ASCII": send(properties=properties(UNIQ_KEY="\u4f60")),
        "a topic beyond ASCII": send(topic="\u4f60"),
        "too many bytes of properties": send(properties=properties(UNIQ_KEY="U", a="x" * 32_740)),
        "a huge body": send(bytes(5 << 20)),
        "a flag beyond 32 bits": send(flag=2**31),
        "no number": send(more={"h": "1x"}),
        "19 digits beyond 64 bits": send(more={"g": str(2**63)}),
        "20 digits": send(more={"g": "1" + "0" * 19}),
        "an odd number": send(more={"h": " 1"}),
        "leading zeros": send(more={"h": "007", "e": "01"}),
        "a plus": send(more={"h": "+1"}),
        "a long field": send(more={"lo": "true"}),
        "an answer": send(command_flag=1),
        "an odd flag": send(command_flag=4),
        "a long name": send(more={"topic": "Others"}),
        "short names": send(code=RequestCode.SEND_MESSAGE, long_names=True, more={"b": "Others"}),
        "another long name": send(code=RequestCode.SEND_MESSAGE, long_names=True, more={"lo": "true"}),
        "a long batch": send(item(), code=RequestCode.SEND_MESSAGE, long_names=True, batch=True),
        "a batch by its field": send(item(), batch=True),
        "no batch by its field": batch(item(), batch=False),
        "no batch": batch(item(), less="m"),
        "a batch of none": batch(),
        "a batch of bytes": batch(b"body"),
        "a batch and a byte": batch(item(), b"\0"),
        "half a batch": batch(item(), item()[:-1]),
        "too small a size": batch(item(size=21)),
        "a size of nothing": batch(item(size=0)),
        "a negative size": batch(item(size=-1)),
        "too large a size": batch(item(size=27)),
        "another size": batch(item(size=25), b"x" * 30),
        "too long a body": batch(item(body_length=5)),
        "a negative body": batch(item(body_length=-1)),
        "a body as long as none": batch(item(body_length=2**31 - 1)),
        "a negative length of properties": batch(item(own_length=-1)),
        "too many bytes of own properties": batch(item(), item(b"", b"x" * 32_700)),
        "a large message in a batch": batch(item(), item(bytes(2_100_000)), item(bytes(2_100_000))),
        "a large batch": batch(*[item(bytes(1000))] * 4200),
        "a batch of many": batch(*[many] * (SENDS_MAX + 1)),
        "a batch to another topic": batch(item(), topic="Elsewhere"),
        "a batch to a retry topic": batch(item(), topic="%RETRY%G"),
        "a batch to no queue": batch(item(), queue_id=-1),
        "a delayed batch": batch(item(), properties=properties(UNIQ_KEY="U", DELAY=LATER)),
        "a prepared batch": batch(item(), sys_flag=4),
        "an inner batch's flag": batch(item(), sys_flag=0x80),
        "a batch that waits not": batch(item(), properties=properties(WAIT="false")),
    } | {f"without {name}": send(less=name) for name in "abcdefgh"}

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        for name, frame in unusual.items():
            numbers.clear()
            await both_say(fast, plain, usual + frame + usual + usual)
            assert numbers == [1, 2], name

    on_two_brokers(tmp_path, scene)
    on_two_brokers(tmp_path / "sync", scene, flushDiskType="SYNC_FLUSH")


@pytest.mark.parametrize(
    ("attributes", "is_taken"),
    [
        *(({"message.type": kind}, kind != "PRIORITY") for kind in sorted(_CHOICES["message.type"])),
        ({"queue.type": "SimpleCQ", "cleanup.policy": "DELETE", "message.type": "FIFO"}, True),
        ({"queue.type": "BatchCQ"}, False),
    ],
    ids=str,
)
def test_topics_with_attributes(tmp_path: Path, attributes: dict[str, str], is_taken: bool) -> None:
    """Those that say how a topic's messages are sent took the ordinary way, as if they changed what a broker does."""

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        edits = {f"+{name}": value for name, value in attributes.items()}
        config = TopicConfig(topic_name="Typed", read_queue_nums=4, write_queue_nums=4, attributes=edits)
        for controller in (fast, plain):
            manager = controller.broker.topic_config_manager
            manager.update_topic_config(dataclasses.replace(config))
            assert manager.topic_config_table["Typed"].attributes == attributes
            async with Wire(controller) as wire:
                await wire.say(send(topic="Typed"))  # the store knows it from its first message on
        numbers = taken(fast)
        usual, urgent = send(topic="Typed"), properties(UNIQ_KEY="U", _SYS_MSG_PRIORITY_="2")
        await both_say(fast, plain, usual + send(topic="Typed", properties=urgent) + usual)
        assert sum(numbers) == (3 if is_taken else 0)

    on_two_brokers(tmp_path, scene)


def test_forms_of_a_usual_header(tmp_path: Path) -> None:
    properties_without_end = properties(UNIQ_KEY="U", a="b")[:-1]
    usual = {
        "no end": send(properties=properties_without_end),
        "no body": send(b""),
        "escapes": send(properties=properties(UNIQ_KEY="U", a='\t\n\r\b\f\x03"\\/ \x7f')),
        "an upper case escape": send().replace(rb"\u0001", rb"\u0001"),
        "names with NUL": send(
            properties=properties(UNIQ_KEY="U", **{"a\0": "1", "a": "2", "\0": "3", "\0\0": "4"})
        ),
        "the name of a key, and NUL": send(
            properties=properties(UNIQ_KEY="U", **{"DELAY\0": "3", "\0DELAY": "3"})
        ),
        "19 digits": send(born_timestamp=2**63 - 1),
        "19 digits and a sign": send(born_timestamp=-(2**63) + 1),
        "beyond ASCII": send(properties=properties(UNIQ_KEY="U", a="\u00e9\u4f60\U0001f600")),
        "oneway": send(command_flag=ONEWAY_FLAG),
        "unit": send(unit_mode=True),
        "negative": send(flag=-5, reconsume_times=-1),
        "without what may be missing": send(less="jklm"),
        "a broker's name": send(more={"n": "broker-a"}),
        "an empty group": send(more={"a": ""}),
        "an unknown field": send(more={"z": "1"}),
        "a batch of one": batch(item()),
        "a batch without a key": batch(item(), properties=properties(WAIT="true")),
        "a batch without properties": batch(item(), properties=""),
        "a batch without the field of properties": batch(item(), less="i"),
        "a batch whose properties have no end": batch(item(), properties=properties_without_end),
        "a batch of nothing": batch(item(b"")),
        "a oneway batch": batch(item(), command_flag=ONEWAY_FLAG),
        "a compressed batch": batch(item(), sys_flag=1),
    }

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        for name, frame in usual.items():
            numbers.clear()
            await both_say(fast, plain, frame)
            assert numbers == [1], name

    on_two_brokers(tmp_path, scene)


@pytest.mark.parametrize(
    "frames",
    [
        [send(bytes(10_000), opaque=n) for n in range(20)],
        [batch(item(bytes(5_000)), item(bytes(5_000)), opaque=n) for n in range(20)],
    ],
    ids=["sends", "batches"],
)
def test_a_full_file_is_left_to_the_other_way(tmp_path: Path, frames: list[bytes]) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        for _ in range(6):
            await both_say(fast, plain, b"".join(frames))
        messages = sum(numbers) // (2 if frames[0][8:20] == b'{"code":320,' else 1)
        assert 110 < messages < 120
        assert len(fast.broker.store.commit_log_files.mapped_files) > 2

    on_two_brokers(tmp_path, scene, mappedFileSizeCommitLog="400000")


def test_frames_in_pieces(tmp_path: Path) -> None:
    """A read may end anywhere."""

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        data = b"".join(send(b"%d" % n, opaque=n) for n in range(6))
        for controller in (fast, plain):
            async with Wire(controller) as wire:
                for start in range(0, len(data) - 40, 40):
                    wire._writer.write(data[start : start + 40])
                    await asyncio.sleep(0)
                answers = await wire.say(data[start + 40 :])
                assert len(answers) == 6

    on_two_brokers(tmp_path, scene)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_frames(tmp_path: Path, seed: int) -> None:
    """Bytes of the header changed, put in, left out: never another answer, never another record."""
    source = random.Random(seed)
    kind = SerializeType(seed % 2)

    def damaged(frame: bytes) -> bytes:
        data = bytearray(frame)
        header = 8 + int.from_bytes(frame[5:8], "big")
        for _ in range(source.randint(1, 3)):
            place = source.randrange(8, header)
            if kind is SerializeType.JSON and source.random() < 0.3:
                data[place] = source.choice(b'"\\,:{}[]0129-+eE.\x00\x1f\x7f\x80 u')
            else:
                data[place] ^= 1 << source.randrange(8)
        return bytes(data)

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        for _ in range(150):
            frames = [
                send(opaque=1, kind=kind),
                damaged(send(opaque=2, kind=kind)),
                send(opaque=3, kind=kind),
            ]
            await both_say(fast, plain, b"".join(frames))

    on_two_brokers(tmp_path, scene)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_batches(tmp_path: Path, seed: int) -> None:
    """As above, of the numbers in the bodies of batches, and of bytes anywhere; among sound ones, in reads that end
    anywhere."""
    source = random.Random(seed)
    kind = SerializeType(seed % 2)

    def damaged(frame: bytes) -> bytes:
        data = bytearray(frame)
        body = 8 + int.from_bytes(frame[5:8], "big")
        for _ in range(source.randint(0, 2)):
            place = source.randrange(body, len(data))
            if source.random() < 0.6:
                data[place : place + 4] = source.choice([-1, 0, 1, 20, 22, 23, 2**31 - 1, -(2**31)]).to_bytes(
                    4, "big", signed=True
                )
            else:
                data[place] ^= 1 << source.randrange(8)
        data[0:4] = (len(data) - 4).to_bytes(4, "big")
        return bytes(data)

    def some(opaque: int) -> bytes:
        if source.random() < 0.2:
            return send(opaque=opaque, kind=kind, queue_id=source.randrange(4))
        items = [
            item(bytes(source.randrange(40)), own(source.randrange(5)), flag=source.randrange(9))
            for _ in range(source.choice([1, 2, 5, 200]))
        ]
        frame = batch(*items, opaque=opaque, kind=kind, queue_id=source.randrange(4))
        return damaged(frame) if source.random() < 0.5 else frame

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        for _ in range(60):
            await both_say(fast, plain, b"".join(some(opaque) for opaque in range(source.randint(1, 12))))

    on_two_brokers(tmp_path, scene)


NO_OPS = {"transactionOpBatchInterval": "3600000", "transactionCheckInterval": "3600000"}
"""What has ended stays in memory, where the tests look for it."""


def transactions_of(controller: BrokerController) -> object:
    """What a broker knows of its transactions."""
    service = controller.transactional_message_service
    finished = {
        topic: (each.committed, each.rolled_back)
        for topic, each in controller.transaction_metrics.finished_by_topic.items()
    }
    count = {topic: each.count for topic, each in controller.transaction_metrics.transaction_counts.items()}
    removed = {queue: sorted(offsets) for queue, offsets in service._removed.items()}
    return service._ended, removed, service._removed_size, count, finished


def transactions_on_two_brokers(directory: Path, scene: Scene, **settings: str) -> None:
    async def and_compared(fast: BrokerController, plain: BrokerController) -> None:
        await scene(fast, plain)
        assert transactions_of(fast) == transactions_of(plain)

    on_two_brokers(directory, and_compared, **NO_OPS, **settings)


async def prepared(fast: BrokerController, plain: BrokerController, *frames: bytes) -> list[bytes]:
    """The answers to half messages, with a msgId that `end` understands."""
    answers = await both_say(fast, plain, b"".join(frames))
    return [answer.replace(b"--------", b"00000000") for answer in answers]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("kind", list(SerializeType))
def test_half_messages_and_their_commits(tmp_path: Path, kind: SerializeType, flush: str) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        halves = [
            half(b"%d" % n * n, opaque=n, kind=kind, queue_id=n % 4, flag=n, sys_flag=4 + n % 2, KEYS=f"é{n}")
            for n in range(60)
        ]
        answers = await prepared(fast, plain, *halves)
        answers.sort(key=lambda answer: decode_frame(memoryview(answer), 0, len(answer)).opaque)
        assert len(answers) == sum(numbers) == 60
        numbers.clear()
        order = [*answers[7::2], *answers[::2]]
        ends = [end(a, kind=kind, command_flag=ONEWAY_FLAG * (n % 2)) for n, a in enumerate(order)]
        assert len(await both_say(fast, plain, b"".join(ends[:10]))) == 5
        mixed = [
            frame
            for n, frame_of_end in enumerate(ends[10:])
            for frame in (frame_of_end, send(opaque=n, kind=kind), half(opaque=100 + n, kind=kind))
        ]
        await both_say(fast, plain, b"".join(mixed))
        assert sum(numbers) == 10 + 3 * len(order[10:])
        # whoever says it again finds it done, and who says the opposite is refused
        numbers.clear()
        for again in (8, 12):
            await both_say(fast, plain, b"".join(end(a, again, command_flag=0) for a in order))
        assert sum(numbers) == 0

    transactions_on_two_brokers(tmp_path, scene, flushDiskType=flush)


def test_ends_that_are_not_usual(tmp_path: Path) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)

        async def refused(**fields: object) -> None:
            (answer,) = await prepared(fast, plain, half())
            numbers.clear()
            await both_say(fast, plain, send() + end(answer, **fields) + send() + send())  # type: ignore[arg-type]
            assert [number for number in numbers if number] == [1, 2], fields

        for fields in (
            {"producer_group": "QG"},
            {"producer_group": "PG1"},
            {"producer_group": ""},
            {"tran_state_table_offset": 0},
            {"tran_state_table_offset": 1 << 40},
            {"tran_state_table_offset": -1},
            {"commit_log_offset": 0},
            {"commit_log_offset": -8},
            {"commit_log_offset": 1 << 62},
            {"how": 0},
            {"how": 4},
            {"how": 12},
            {"command_flag": 4},
            {"body": b"body"},
            {"less": ["producerGroup"]},
            {"less": ["tranStateTableOffset"]},
            {"less": ["commitLogOffset"]},
            {"less": ["commitOrRollback"]},
            {"less": ["msgId"]},
            {"ns": "namespace"},
        ):
            await refused(**fields)

        # other ends of the same half message
        (answer,) = await prepared(fast, plain, half())
        for how in (12, 8, 8, 12):
            await both_say(fast, plain, end(answer, how))
        (answer,) = await prepared(fast, plain, half())
        numbers.clear()
        await both_say(fast, plain, send() + end(answer) * 3 + send())
        assert numbers == [2, 1]
        (answer,) = await prepared(fast, plain, half())
        assert await both_say(fast, plain, end(answer, less=["transactionId", "topic", "bname"])) == []

    transactions_on_two_brokers(tmp_path, scene)


def test_a_half_message_of_an_earlier_file(tmp_path: Path) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        waiting: list[bytes] = []
        for n in range(12):
            ends = b"".join(map(end, waiting[-20:-10]))
            waiting += await prepared(fast, plain, *(half(bytes(9_000), opaque=n) for n in range(n, n + 10)))
            await both_say(fast, plain, ends)
        assert 120 < sum(numbers) < 120 + 110
        assert len(fast.broker.store.commit_log_files.mapped_files) > 3

    transactions_on_two_brokers(tmp_path, scene, mappedFileSizeCommitLog="400000")


def test_commits_after_topics_have_changed(tmp_path: Path) -> None:
    """What is known of half messages is forgotten with the queues."""

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        answers = await prepared(fast, plain, half(opaque=1), half(opaque=2))
        for controller in (fast, plain):
            controller.broker.topic_config_manager.data_version.next_version()
        await both_say(fast, plain, send() + end(answers[1]) + end(answers[0]))

    transactions_on_two_brokers(tmp_path, scene)


def test_half_messages_are_refused_where_they_are_not_allowed(tmp_path: Path) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        answers = await both_say(fast, plain, half(opaque=1) + send(opaque=2))
        assert b"forbidden" in answers[0] and sum(numbers) == 1

    transactions_on_two_brokers(tmp_path, scene, rejectTransactionMessage="true")


@pytest.mark.parametrize("seed", range(4))
def test_damaged_ends(tmp_path: Path, seed: int) -> None:
    """Bytes of the headers of half messages and ends changed."""
    source = random.Random(seed)
    kind = SerializeType(seed % 2)

    def damaged(frame: bytes) -> bytes:
        data = bytearray(frame)
        for _ in range(source.randint(0, 2)):
            place = source.randrange(8, 8 + int.from_bytes(frame[5:8], "big"))
            data[place] = source.choice(b'"\\,:{}0129 \x00\xff') if source.random() < 0.5 else data[place] ^ 1
        return bytes(data)

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        for _ in range(60):
            answers = await prepared(fast, plain, *(half(opaque=n, kind=kind) for n in range(3)))
            frames = [
                *(damaged(end(source.choice(answers), kind=kind)) for _ in range(3)),
                damaged(half(opaque=9, kind=kind)),
                end(answers[1], kind=kind),
            ]
            source.shuffle(frames)
            await both_say(fast, plain, b"".join(frames))

    transactions_on_two_brokers(tmp_path, scene)


def test_a_flush_of_commits_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        answers = await prepared(fast, plain, half(opaque=1), half(opaque=2))
        for controller in (fast, plain):
            monkeypatch.setattr(
                controller.broker.store.commit_log_files, "flush", no_flush_after(controller, 1 + 5)
            )
        numbers.clear()
        ends = end(answers[0]) + end(answers[1], command_flag=0)
        said = await both_say(fast, plain, ends + send())
        assert sum(numbers) == 3 and len(said) == 2

    transactions_on_two_brokers(tmp_path, scene, flushDiskType="SYNC_FLUSH")


def test_commits_are_found_again_after_a_crash(tmp_path: Path) -> None:
    """Their op messages are in memory only. What is open is asked for, before and after."""
    copy = tmp_path / "copy"

    async def asked_in_a_round(controller: BrokerController) -> list[bytes]:
        bodies = []

        async def ask(message: MessageExt) -> bool:
            bodies.append(bytes(message.body))
            return True

        await controller.transactional_message_service.check(ask)
        return sorted(bodies)

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        born = now_ms() - 60_000
        halves = [half(b"%02d" % n, opaque=n, queue_id=0, born_timestamp=born) for n in range(40)]
        answers = await prepared(fast, plain, *halves)
        await both_say(fast, plain, b"".join(end(answer) for answer in answers[::2]))
        assert sum(numbers) == 60
        for controller in (fast, plain):
            await asyncio.to_thread(controller.broker.store.wait_until_dispatched)
        await asyncio.to_thread(shutil.copytree, tmp_path / "fast", copy)

    async def after() -> None:
        async with running(copy, **NO_OPS) as controller:
            assert await asked_in_a_round(controller) == [b"%02d" % n for n in range(1, 40, 2)]
            store = controller.broker.store
            assert await asyncio.to_thread(store.wait_until_dispatched)
            found = store.get_message("g", TOPIC, 0, 0, 64)
            assert [bytes(message.body) for message in found.messages()] == [
                b"%02d" % n for n in range(0, 40, 2)
            ]
            assert all(message.sys_flag & 0xC == 8 for message in found.messages())

    transactions_on_two_brokers(tmp_path, scene)
    run(after())


def test_a_commit_of_a_half_message_that_was_put_back(tmp_path: Path) -> None:
    """Its place is the first one, and it ends once, whichever of the two is ended."""

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        born = now_ms() - 60_000
        answers = await prepared(fast, plain, *(half(opaque=n, born_timestamp=born) for n in range(2)))
        copies: list[MessageExt] = []

        async def ask(message: MessageExt) -> bool:
            copies.append(message)
            return True

        until_ms = now_ms()
        while now_ms() == until_ms:
            await asyncio.sleep(0.001)
        for controller in (fast, plain):
            assert await asyncio.to_thread(controller.broker.store.wait_until_dispatched)
            copies.clear()
            await controller.transactional_message_service.check(ask)
            assert [message.queue_offset for message in copies] == [2, 3]
        place = {"tran_state_table_offset": 2, "commit_log_offset": copies[0].physical_offset}
        await both_say(fast, plain, end(answers[0], **place) + end(answers[0], command_flag=0))
        place = {"tran_state_table_offset": 3, "commit_log_offset": copies[1].physical_offset}
        await both_say(fast, plain, end(answers[1]) + end(answers[1], 12, command_flag=0, **place))
        for controller in (fast, plain):
            assert controller.broker.store.commit_log.queue_offsets[TOPIC, 1] == 3

    transactions_on_two_brokers(tmp_path, scene)


def test_a_changed_topic_is_looked_at_again(tmp_path: Path) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        await both_say(fast, plain, send(queue_id=3))
        for controller in (fast, plain):
            controller.broker.topic_config_manager.delete_topic_config(TOPIC)
            controller.broker.topic_config_manager.data_version.next_version()
        answers = await both_say(fast, plain, send(queue_id=3, more={"d": "2", "e": "3"}))
        assert b"illegal" in answers[0]

    on_two_brokers(tmp_path, scene)


def test_a_flush_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        numbers = taken(fast)
        for controller in (fast, plain):
            monkeypatch.setattr(
                controller.broker.store.commit_log_files, "flush", no_flush_after(controller, 1 + 7)
            )
        frames = [
            send(opaque=1),
            send(opaque=2, command_flag=ONEWAY_FLAG),
            batch(item(), item(), opaque=3),
            batch(item(), opaque=4, command_flag=ONEWAY_FLAG),
            batch(item(), opaque=5, properties=""),
            send(opaque=6),
        ]
        answers = await both_say(fast, plain, b"".join(frames))
        assert sum(numbers) == 7
        assert len(answers) == 4
        assert all(b'"code":10,' in answer for answer in answers)

    on_two_brokers(tmp_path, scene, flushDiskType="SYNC_FLUSH")


def no_flush_after(controller: BrokerController, messages: int) -> Callable[[int], bool]:
    """A disk that fails when so many messages were put."""

    def flush(_least_pages: int) -> bool:
        stats = controller.broker.store.store_stats_service
        until(lambda: stats.put_message_times_total >= messages, "all are put")
        raise OSError(5, "Input/output error")

    return flush


def test_without_a_compiler_all_goes_the_other_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "module", lambda name: None)

    async def scene(fast: BrokerController, plain: BrokerController) -> None:
        assert len(await both_say(fast, plain, send(opaque=1) + send(opaque=2))) == 2
        assert fast_path(fast).native is None

    on_two_brokers(tmp_path, scene)


def test_the_first_send_loads_the_kernels(tmp_path: Path) -> None:
    async def play() -> None:
        async with running(tmp_path) as controller, Wire(controller) as wire:
            assert fast_path(controller).native is None
            await wire.say(send())  # to a topic that no message was stored of
            assert fast_path(controller).native is not None
            numbers = taken(controller)
            await wire.say(send())
            assert numbers == [1]

    run(play())
