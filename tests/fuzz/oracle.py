"""Two brokers as processes get the same bytes from several connections; what they answer and keep is the same.

    python -m tests.fuzz.oracle [--minutes M] [--seed N] [--against CHECKOUT]     lives with settings drawn by lot

    Load ─ bursts of many connections, cut at random ─┬▶ Side: native code, gRPC on nghttp2
           gRPC clients beside them (`grpc_load`)     └▶ Side: MQLAKE_NO_NATIVE=1, gRPC on grpcio
         ─ barrier ─ changes of topics and settings          answers, at the end logs, queues, offsets, counters:
         ─ barrier ─ pulls, offsets, …                       compared

A queue belongs to one connection while messages are sent, so that its order is known; with one connection the logs are
equal to the byte. Times, ports and, with several connections, places in the log are left out; so is what brokers write
for themselves at times of their own, when gRPC clients receive and end transactions. With `--against` the side without
native code is of another checkout, and there are no gRPC clients.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import re
import select
import shutil
import socket
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mqlake.auth.signature import sign
from mqlake.base.json_config import loads as load_json
from mqlake.formats.record import decode_record
from mqlake.message import PROPERTY_REAL_TOPIC, TIMER_TOPIC
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import RequestCode, SerializeType
from mqlake.remoting.command import ONEWAY_FLAG, RemotingCommand
from mqlake.store.read_only import ReadOnlyStore
from tests.broker.fast.test_fast_send import batch, half, item, own, properties, send
from tests.broker.live import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, pull_header
from tests.fuzz.grpc_load import SHARED, SHARED_QUEUES, GrpcLoad
from tests.interop.brokers import MQLAKE, MqlakeBroker
from tests.interop.mqlake_peer import records
from tests.ports import free_ports
from tests.waiting import PATIENCE_S

TOPICS = ("Usual", "Odd-" + "t" * 123, "Many_Tags", SHARED)
CHANGED = TOPICS[:3]
"""Topics whose rights, queues and types change."""
QUEUES = SHARED_QUEUES
OF_ITS_OWN = re.compile(r"rmq_sys_REVIVE_LOG|RMQ_SYS_TRANS_OP_HALF_TOPIC")
"""Topics that a broker writes to when it likes."""
ALIKE = """
from mqlake.broker.requests import send_message
from mqlake.message import ids
ids.create_uniq_id = lambda: "A" * 32
send_message.random.randrange = lambda stop: stop - 1
"""
LOADED = """
import sys
from mqlake.broker.controller import BrokerController

async def start(self, start=BrokerController.start, **more):
    for path in (self.server.fast_paths or self.server.guarded_fast_paths)[:2]:
        path.load()
    await start(self, **more)


async def stop(self, *given, stop=BrokerController.stop, **more):
    fast_put = self.broker.store.commit_log.fast_put
    print("by native code:", fast_put.puts, file=sys.stderr)
    await stop(self, *given, **more)

BrokerController.start, BrokerController.stop = start, stop
"""
SETTINGS: dict[str, tuple[object, ...]] = {
    "flushDiskType": ("ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH"),
    "transientStorePoolEnable": ("false",) * 5 + ("true",),
    "mappedFileSizeCommitLog": (120_000, 1 << 20, 16 << 20),
    "writeWithoutMmap": ("false",) * 5 + ("true",),
    "enableConsumeQueueExt": ("false", "false", "true"),
    "enabledAppendPropCRC": ("false",) * 5 + ("true",),
}
WITHOUT_NATIVE = ("transientStorePoolEnable", "writeWithoutMmap", "enabledAppendPropCRC")
"""Settings with which native code stores no send."""

SIGNED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
    "accessFailuresMax": "1000000",
}


def stable(record: bytes, *, places: bool) -> bytes:
    """Of a record what does not differ between two brokers; `places`: the log's are the same."""
    kept = bytearray(record)
    for start, stop in ((52, 56), (56, 64), (68, 72), *(() if places else ((28, 36), (76, 84)))):
        kept[start:stop] = bytes(stop - start)
    own = rb"(__CRC32#|ORIGIN_MESSAGE_ID)\x01[0-9A-F]+"
    return re.sub(own, rb"\1", bytes(kept))


class Side(MqlakeBroker):
    """One of the two."""

    def __init__(
        self, directory: Path, config: Mapping[str, Any], *, compiled: bool, source: Path | None = None
    ) -> None:
        self.metrics_port = free_ports(1)
        super().__init__(
            directory,
            {
                "brokerIP1": "127.0.0.1",
                "brokerName": "broker-a",
                "metricsExporterType": "PROM",
                "metricsPromExporterPort": self.metrics_port,
                "transientStorePoolSize": 50,
                # what asks producers about half messages writes to the log when it likes
                "transactionCheckInterval": 3_600_000,
                "enableMixedMessageType": "true",
                **({"grpcServer": "nghttp2" if compiled else "grpcio"} if source is None else {}),
                **config,
            },
            grpc=True,
        )
        self.compiled, self.source = compiled, source
        code = ALIKE + (LOADED if compiled else "") + MQLAKE[-1]
        self._command = [*MQLAKE[:-1], code]

    def start(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if self.compiled:
                patch.delenv("MQLAKE_NO_NATIVE", raising=False)
            else:
                patch.setenv("MQLAKE_NO_NATIVE", "1")
            if self.source is not None:
                patch.setenv("PYTHONPATH", str(self.source))
            super().start()

    def metrics(self) -> dict[str, float]:
        who = base64.b64encode(b"admin:admin-secret").decode()
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        asked = urllib.request.Request(url, headers={"Authorization": f"Basic {who}"})
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as page:
            lines = page.read().decode().splitlines()
        found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in found}

    @property
    def store(self) -> Path:
        return self._directory / "store" / "broker-0"


class Line:
    """The same connection to both."""

    def __init__(self, sides: list[Side]) -> None:
        self.sides = sides
        self.sockets = [
            socket.create_connection(("127.0.0.1", int(side.address.rpartition(":")[2])), PATIENCE_S)
            for side in sides
        ]
        for each in self.sockets:
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = [bytearray() for _ in sides]
        self.unsent = [bytearray() for _ in sides]
        self.answers: list[list[RemotingCommand]] = [[] for _ in sides]
        self.closed = [False for _ in sides]

    def send(self, data: bytes) -> None:
        for unsent in self.unsent:
            unsent += data
        self.flush()

    def flush(self) -> bool:
        for each, unsent in zip(self.sockets, self.unsent, strict=True):
            if unsent:
                try:
                    del unsent[: each.send(unsent)]
                except BlockingIOError:
                    pass
                except OSError:
                    unsent.clear()
        return not any(self.unsent)

    def read(self) -> None:
        for n, each in enumerate(self.sockets):
            try:
                came = each.recv(1 << 20)
                self.closed[n] = self.closed[n] or not came
            except BlockingIOError:
                continue
            except OSError:
                self.closed[n] = True
                continue
            received = self.received[n]
            received += came
            start = 0
            view = bytes(received)
            while stop := frame_end(view, start, len(view)):
                command = decode_frame(memoryview(view), start, stop)
                if command.flag & 1:  # else the broker asks
                    self.answers[n].append(command)
                start = stop
            del received[:start]

    def close(self) -> None:
        for each in self.sockets:
            each.close()


class Life:
    """One pair of brokers."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        config: Mapping[str, Any] | None = None,
        rounds: int = 4,
        against: Path | None = None,
    ) -> None:
        self.dice = random.Random(seed)
        self.seed, self.rounds = seed, rounds
        drawn = {key: self.dice.choice(values) for key, values in SETTINGS.items()}
        if drawn["transientStorePoolEnable"] == "true":
            drawn["writeWithoutMmap"] = "false"
        self.signed = self.dice.random() < 0.3
        self.config = {**drawn, **(SIGNED if self.signed else {}), **(config or {})}
        self.sides = [
            Side(directory / "fast", self.config, compiled=True),
            Side(directory / "plain", self.config, compiled=False, source=against),
        ]
        self.alone = self.dice.random() < 0.4
        self.lines: list[Line] = []
        self.clients: list[GrpcLoad] = []
        self.with_grpc = against is None
        self.owners = 0
        """Clients of both protocols, each of which has queues of its own."""
        self.opaque = 0
        self.ends: dict[tuple[str, int], int] = {}
        self.asked = 0

    # --- frames

    def number(self) -> int:
        self.opaque += 1
        return self.opaque if self.dice.random() < 0.95 else 5

    def sends(self, who: int, count: int) -> list[tuple[bytes, bool]]:
        """(Frame, whether it is answered), to the queues of a connection."""
        return [self._send(who) for _ in range(count)]

    def _send(self, who: int) -> tuple[bytes, bool]:
        dice, opaque = self.dice, self.number()
        kind = dice.choice(list(SerializeType))
        many = self.owners
        queue_id = (
            who + many * dice.randrange(QUEUES // many)
            if dice.random() < 0.97
            else dice.choice((16, 99, -5 if self.alone else 17))
        )
        oneway = dice.random() < 0.1
        given: dict[str, str] = {"UNIQ_KEY": f"7F00{self.seed:04X}{opaque:024X}"[:32]}
        if dice.random() < 0.8:
            given["TAGS"] = dice.choice(("A", "B", "é", "A||B", "t" * 200))
        if dice.random() < 0.3:
            given["KEYS"] = dice.choice(("k", "k l", "k" * 300, " "))
        if dice.random() < 0.3:
            given["a"] = dice.choice(
                ("1", "2", "x" * dice.choice((10, 1000, 30_000, 32_500, 32_700, 33_000)))
            )
        if dice.random() < 0.2:
            given["WAIT"] = dice.choice(("true", "false"))
        if dice.random() < 0.05:
            given["INNER_MULTI_DISPATCH"] = f"%LMQ%{who}a,%LMQ%{who}b"
        if dice.random() < 0.03:
            given["DELAY"] = str(10 + who)
        if dice.random() < 0.03:
            del given["UNIQ_KEY"]
        if dice.random() < 0.02:
            given["__CRC32#"] = "123"
        if dice.random() < 0.02:
            given["PGROUP"] = "G"
        text = properties(**given)
        if dice.random() < 0.05:
            text = text[:-1]
        body = dice.randbytes(dice.choice((0, 1, 20, 128, 128, 1000, 5000)))
        if dice.random() < 0.01:
            body = bytes(dice.choice((70_000, 119_000, 300_000)))
        if dice.random() < 0.004:
            body = bytes((4 << 20) + dice.choice((0, 1)))
        topic = dice.choice(TOPICS) if dice.random() < 0.95 else "Inner"
        fields: dict[str, Any] = {
            "opaque": opaque,
            "kind": kind,
            "topic": topic,
            "queue_id": queue_id,
            "command_flag": ONEWAY_FLAG if oneway else 0,
            "properties": text,
            "flag": dice.choice((0, 0, 7, -1)),
            "born_timestamp": dice.choice((0, 1_700_000_000_000, -1)),
            "unit_mode": dice.random() < 0.1,
            "reconsume_times": dice.choice((0, 0, 0, 3)),
        }
        lot = dice.random()
        if lot < 0.15:
            items = [
                item(dice.randbytes(dice.choice((0, 5, 400))), own(n), flag=n % 3)
                for n in range(dice.choice((1, 2, 20, 300)))
            ]
            if dice.random() < 0.05:
                items.append(item(body_length=dice.choice((-1, 10**6))))
            frame = batch(*items, **fields)
        elif lot < 0.2:
            code = dice.choice((31998, RequestCode.GET_TOPIC_CONFIG))
            frame = encode_frame(
                RemotingCommand(
                    code,
                    opaque=opaque,
                    ext_fields={"topic": topic, "queueId": str(queue_id)},
                    serialize_type=kind,
                )
            )
            oneway = False
        elif lot < 0.24:
            frame = self._offset(who, opaque, kind, settled=False)
            oneway = False
        elif lot < 0.3:
            bad = dice.choice(("long", "lmq", "retry", "chars", "empty", "tbw", "fields", "flags", "new"))
            if bad == "long":
                fields["topic"] = "x" * dice.choice((127, 128, 255, 256, 300))
                fields["queue_id"] = 0 if who == 0 else 999
            elif bad == "lmq":
                fields["topic"] = f"%LMQ%{who}direct"
            elif bad == "retry":
                fields["topic"] = "%RETRY%" + f"g{who}"
                fields["queue_id"] = 0
            elif bad == "chars":
                fields["topic"] = dice.choice(("a b", "é", "a/b", "\x01", "SCHEDULE_TOPIC_XXXX", "TBW102"))
            elif bad == "empty":
                fields["topic"] = ""
            elif bad == "tbw":
                fields["default_topic"] = "nothing"
                fields["topic"] = f"Unknown{who}"
            elif bad == "fields":
                fields["less"] = dice.choice("abcdefghi")
            elif bad == "flags":
                fields["sys_flag"] = dice.choice((1, 2, 3, 8, 0xC, 0x10, 0x700, -1))
            else:
                fields["topic"] = f"New-{who}-{dice.randrange(3)}"
                fields["queue_id"] = dice.randrange(4)
            frame = send(body, **fields)
        elif lot < 0.33 and self.alone:
            frame = half(body, opaque=opaque, kind=kind, topic=topic, queue_id=queue_id)
            oneway = False
        elif lot < 0.4:
            frame = send(body, **{**fields, "code": RequestCode.SEND_MESSAGE, "long_names": True})
        else:
            frame = send(body, **fields)
        return frame, not oneway

    def _offset(self, who: int, opaque: int, kind: SerializeType, *, settled: bool) -> bytes:
        dice = self.dice
        fields = {
            "consumerGroup": f"group{who}",
            "topic": dice.choice((*TOPICS, "Nobody")),
            "queueId": str(dice.choice((0, 1, 15, 16, -1))),
            "commitOffset": str(dice.choice((0, 3, -1, 10**12))),
        }
        codes = RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET
        code = dice.choice(codes) if settled else codes[0]  # what was not dispatched has an answer of its own
        return encode_frame(RemotingCommand(code, opaque=opaque, ext_fields=fields, serialize_type=kind))

    def pulls(self, who: int) -> list[tuple[bytes, bool]]:
        """Some runs of pulls, each of a consumer that reads on."""
        dice, frames = self.dice, []
        for _ in range(dice.randrange(1, 6)):
            topic = dice.choice((*TOPICS, f"%LMQ%{who}a", "Inner") if dice.random() < 0.9 else ("Nobody", ""))
            queue_id = dice.randrange(QUEUES) if dice.random() < 0.95 else dice.choice((-1, 16, 77))
            count = dice.choice((1, 8, 32, 32, 1000, 0, -1))
            offset = dice.choice((0, 0, 0, 5, self.ends.get((topic, queue_id), 0), -1, 10**9))
            expression = dice.choice(
                (("*", None), ("A", None), ("A||é", "TAG"), ("a = '1'", "SQL92"), ("(", "SQL92"), ("", None))
            )
            code = dice.choice(
                (RequestCode.PULL_MESSAGE, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
            )
            kind = dice.choice((SerializeType.JSON, SerializeType.JSON, SerializeType.ROCKETMQ))
            flag = dice.choice((SUBSCRIPTION, SUBSCRIPTION, SUBSCRIPTION | COMMIT_OFFSET, 0, COMMIT_OFFSET))
            more = {"max_msg_bytes": dice.choice((1, 4000, 10**6))} if dice.random() < 0.1 else {}
            group = f"group{who}" if dice.random() < 0.95 else dice.choice(("", "CID_RMQ_SYS_x", "g" * 256))
            for _ in range(dice.choice((1, 3, 20))):
                header = pull_header(
                    topic,
                    offset,
                    consumer_group=group,
                    queue_id=queue_id,
                    max_msg_nums=count,
                    sys_flag=flag,
                    commit_offset=max(0, offset),
                    subscription=expression[0],
                    expression_type=expression[1],
                    **more,
                )
                command = RemotingCommand(
                    code, opaque=self.number(), ext_fields=header.encode(), serialize_type=kind
                )
                frames.append((encode_frame(command), True))
                offset += max(1, min(count, 32))
            if dice.random() < 0.3:
                frames.append((self._offset(who, self.number(), kind, settled=True), True))
            if dice.random() < 0.1:
                fields = {"topic": topic, "queueId": str(queue_id)}
                asked = RemotingCommand(RequestCode.GET_MIN_OFFSET, opaque=self.number(), ext_fields=fields)
                frames.append((encode_frame(asked), True))
        return frames

    def _beat(self, who: int) -> bytes:
        expression = self.dice.choice((("*", "TAG"), ("A", "TAG"), ("a = '1'", "SQL92")))
        data = {
            "clientID": f"client{who}",
            "producerDataSet": [{"groupName": "PG"}],
            "consumerDataSet": [
                {
                    "groupName": f"group{who}",
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "subscriptionDataSet": [
                        {
                            "topic": topic,
                            "subString": expression[0],
                            "tagsSet": [] if expression[0] == "*" else ["A"],
                            "codeSet": [] if expression[0] == "*" else [65],
                            "subVersion": self.opaque,
                            "expressionType": expression[1],
                        }
                        for topic in TOPICS
                    ],
                    "unitMode": False,
                }
            ],
        }
        return encode_frame(
            RemotingCommand(RequestCode.HEART_BEAT, opaque=self.number(), body=json.dumps(data).encode())
        )

    # --- talking

    def say(self, frames: dict[int, list[tuple[bytes, bool]]]) -> None:
        """Bursts of all connections, in pieces that take turns; compares the answers."""
        pieces: list[tuple[int, bytes]] = []
        if self.signed:
            frames = {
                who: [(self.as_somebody(frame), answered) for frame, answered in some]
                for who, some in frames.items()
            }
        left = {}
        for who, some in frames.items():
            data = b"".join(frame for frame, _ in some)
            cuts = sorted(
                self.dice.randrange(len(data) + 1) for _ in range(self.dice.choice((0, 0, 1, 5, 30)))
            )
            left[who] = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        while left:
            who = self.dice.choice(list(left))
            pieces.append((who, left[who].pop(0)))
            if not left[who]:
                del left[who]
        slowly = self.dice.random() < 0.3
        for who, piece in pieces:
            self.lines[who].send(piece)
            for line in self.lines:
                line.flush()
                line.read()
            if slowly:
                time.sleep(0.0005)
        for who, some in frames.items():
            line, expected = self.lines[who], sum(answered for _, answered in some)
            self.wait(line, expected)
            self.compare(line, some)

    def wait(self, line: Line, expected: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not line.flush() or any(
            len(answers) < expected and not closed
            for answers, closed in zip(line.answers, line.closed, strict=True)
        ):
            for each in self.lines:
                each.flush()
            select.select([s for s, c in zip(line.sockets, line.closed, strict=True) if not c], [], [], 0.01)
            for each in self.lines:
                each.read()
            assert time.monotonic() < deadline, (
                f"seed {self.seed}: {[len(a) for a in line.answers]} of {expected} answers, closed {line.closed}"
            )

    def compare(self, line: Line, frames: list[tuple[bytes, bool]]) -> None:
        said = [sorted(self.words(n, answer) for answer in answers) for n, answers in enumerate(line.answers)]
        self.asked += len(frames)
        if said[0] != said[1] or line.closed[0] != line.closed[1]:
            for a, b in zip(*said, strict=False):
                if a != b:
                    asked = [
                        repr(decode_frame(memoryview(f), 0, len(f)))[:1500]
                        for f, _ in frames
                        if decode_frame(memoryview(f), 0, len(f)).opaque == a[0]
                    ]
                    raise AssertionError(
                        f"seed {self.seed}: asked {asked}\nfast:  {a}\nplain: {b}\n{self.config}"
                    )
            more = [answer for one, other in (said, said[::-1]) for answer in one if answer not in other]
            raise AssertionError(
                f"seed {self.seed}: {[len(s) for s in said]} closed {line.closed}, only one says {more}\n{self.config}"
            )
        line.answers = [[] for _ in self.sides]

    def words(self, _side: int, answer: RemotingCommand) -> tuple[Any, ...]:
        fields = dict(answer.ext_fields or {})
        if "msgId" in fields:
            ids = [each[:8] + (each[16:] if self.alone else "") for each in fields["msgId"].split(",")]
            fields["msgId"] = ",".join(ids)
        fields.pop("offsetMsgId", None)
        remark = re.sub(r"127\.0\.0\.1:\d+", "address", answer.remark or "")
        remark = re.sub(r"\d+(\.\d+)? ?(ms|%)", "figure", remark)
        body = answer.body_bytes()
        if answer.code == 0 and "nextBeginOffset" in fields and body:
            found, at = [], 0
            while at < len(body):
                size = int.from_bytes(body[at : at + 4], "big")
                found.append(stable(body[at : at + size], places=self.alone))
                at += size
            body = b"".join(found)
        return answer.opaque, answer.code, remark, answer.flag, sorted(fields.items()), body

    def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> list[RemotingCommand]:
        """Both, on a line of its own."""
        line = self.lines[-1]
        command = RemotingCommand(code, opaque=1, ext_fields=fields or {}, body=body)
        if self.signed:
            sign(command, "admin", "admin-secret")
        line.send(encode_frame(command))
        self.wait(line, 1)
        answers = [answer[0] for answer in line.answers]
        assert answers[0].code == answers[1].code, (code, fields, answers)
        line.answers = [[] for _ in self.sides]
        return answers

    # --- rounds

    def settle(self) -> None:
        """Until consumers can see everything."""
        deadline = time.monotonic() + PATIENCE_S
        while True:  # of a TransientStorePool: what is in its buffers does not count as behind
            infos = [
                load_json(a.body_bytes())["table"] for a in self.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            ]
            left = [info.get("remainHowManyDataToCommit", "0 B") for info in infos]
            if left == ["0 B", "0 B"]:
                break
            assert time.monotonic() < deadline, f"seed {self.seed}: to be committed: {left}"
            time.sleep(0.005)
        for side in self.sides:
            while True:
                found = side.metrics()
                behind = [
                    v for k, v in found.items() if k.startswith("rocketmq_storage_dispatch_behind_bytes")
                ]
                if behind == [0.0]:
                    break
                assert time.monotonic() < deadline, f"seed {self.seed}: {side.log} is {behind} behind"
                time.sleep(0.005)
        for topic in (*TOPICS, "Inner"):
            for queue_id in range(QUEUES):
                while True:  # one-way sends may be on their way
                    a, b = self.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
                    if a.ext_fields == b.ext_fields or time.monotonic() > deadline:
                        break
                assert a.ext_fields == b.ext_fields, (self.seed, topic, queue_id, a.ext_fields, b.ext_fields)
                self.ends[topic, queue_id] = int((a.ext_fields or {}).get("offset", 0))

    def topic(self, name: str, **fields: str) -> None:
        given = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            **fields,
        }
        for answer in self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, given):
            assert answer.code == 0, answer

    def allow(self, topic: str, decision: str, code: RequestCode = RequestCode.AUTH_UPDATE_ACL) -> None:
        """What alice may do."""
        entries = [
            {"resource": f"Topic:{topic}", "actions": ["Pub", "Sub"], "decision": decision},
            {"resource": "Group:group*", "actions": ["Sub"], "decision": "ALLOW"},
        ]
        acl = {"subject": "User:alice", "policies": [{"policyType": "CUSTOM", "entries": entries}]}
        for answer in self.ask(code, {"subject": "User:alice"}, json.dumps(acl).encode()):
            assert answer.code == 0, answer

    def as_somebody(self, frame: bytes) -> bytes:
        """Signed by one who may do everything, or some of it, or by nobody."""
        who = self.dice.choices(("admin", "alice", "mallory", ""), (8, 4, 1, 1))[0]
        command = decode_frame(memoryview(frame), 0, len(frame))
        if who:
            sign(command, "alice" if who == "mallory" else who, f"{who}-secret")
        return encode_frame(command)

    def change(self) -> None:
        """Something of the brokers, while nobody sends."""
        dice = self.dice
        what = dice.randrange(9)
        if what == 0:
            self.topic(TOPICS[0], perm=dice.choice(("2", "4", "6")))
        elif what == 1:
            self.topic(
                TOPICS[1], writeQueueNums=dice.choice(("4", "16")), readQueueNums=dice.choice(("4", "16"))
            )
        elif what == 2:
            self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": dice.choice(CHANGED)})
        elif what == 3:
            self.topic(TOPICS[2], topicFilterType="MULTI_TAG")
        elif what == 4:
            setting = dice.choice(
                (b"maxMessageSize=100000", b"regionId=elsewhere", b"traceOn=false", b"brokerPermission=4",
                 b"brokerPermission=6", b"rejectTransactionMessage=true", b"autoCreateTopicEnable=false",
                 b"maxMessageSize=4194304", b"transferMsgByHeap=false", b"longPollingEnable=false")
            )  # fmt: skip
            self.ask(RequestCode.UPDATE_BROKER_CONFIG, body=setting)
        elif what == 5:
            for side in self.sides:  # as if they were old
                logs = sorted((side.store / "commitlog").iterdir())
                for path in logs[:-3]:
                    os.utime(path, (0, 0))
            self.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        elif what == 6 and len(self.lines) > 2:
            who = dice.randrange(len(self.lines) - 1)
            self.lines[who].send(send()[: dice.randrange(1, 100)])
            self.lines[who].close()
            self.lines[who] = Line(self.sides)
        elif what == 7:
            self.held()
        elif self.signed:
            self.allow(dice.choice(("Usual", "Many*", "*")), dice.choice(("ALLOW", "DENY")))

    def held(self) -> None:
        """A pull that waits, and one message."""
        topic, queue_id = TOPICS[0], self.dice.randrange(len(self.lines) - 1)
        header = pull_header(
            topic,
            self.ends.get((topic, queue_id), 0),
            consumer_group="holder",
            queue_id=queue_id,
            sys_flag=SUSPEND | SUBSCRIPTION,
            suspend_timeout_millis=20_000 if self.config.get("longPollingEnable") != "false" else 100,
        )
        line = self.lines[-1]
        command = RemotingCommand(RequestCode.PULL_MESSAGE, opaque=9, ext_fields=header.encode())
        if self.signed:
            sign(command, "admin", "admin-secret")
        line.send(encode_frame(command))
        line.read()
        frames = {queue_id: [(send(opaque=self.number(), queue_id=queue_id, topic=topic), True)]}
        self.say(frames)
        # where one is answered, so is the other
        began = time.monotonic()
        while not all(line.answers) and time.monotonic() < began + (PATIENCE_S if any(line.answers) else 3):
            select.select(line.sockets, [], [], 0.05)
            line.read()
        assert bool(line.answers[0]) == bool(line.answers[1]), (self.seed, line.answers)
        if not line.answers[
            0
        ]:  # nothing came, as the topic cannot be written to: a line of its own from now on
            line.close()
            self.lines[-1] = Line(self.sides)
        else:
            self.compare(line, [])

    def live(self) -> str:
        """How many requests there were, messages, and of them by the fast loop. AssertionError at a difference, or when
        the loop had nothing that it might have had."""
        count = 1 if self.alone else self.dice.choice((2, 4, 8))
        for _ in range(count + 1):
            self.lines.append(Line(self.sides))
        self._grpc_clients(count)
        for name in CHANGED:
            self.topic(name)
        self.topic(SHARED, attributes="+message.type=MIXED")
        self.topic("Inner", attributes="+queue.type=BatchCQ")
        if self.signed:
            user = {"username": "alice", "password": "alice-secret", "userType": "Normal"}
            self.ask(RequestCode.AUTH_CREATE_USER, {"username": "alice"}, json.dumps(user).encode())
            self.allow("Usual", "ALLOW", RequestCode.AUTH_CREATE_ACL)
        for number in range(self.rounds):
            workers = len(self.lines) - 1
            if number == 0 or self.dice.random() < 0.3:
                for _ in range(self.dice.choice((20, 40))):  # one at a time: they are moved to the fast loop
                    self.say(
                        {
                            who: [(send(opaque=self.number(), topic=TOPICS[0], queue_id=who), True)]
                            for who in range(workers)
                        }
                    )
            for _ in range(3):
                frames = {who: self.sends(who, self.dice.choice((1, 5, 60))) for who in range(workers)}
                count = self.dice.choice((0, 5, 40))
                self.beside(lambda client, n=count: client.sends(n), lambda some=frames: self.say(some))
            self.settle()
            # not beside pulls: those wait where a message is not dispatched yet, and commit their offsets later
            count = self.dice.choice((0, 10, 60))
            self.beside(lambda client, n=count: client.receives(n), lambda: None)
            self.settle()
            for _ in range(2):
                self.say({who: self.pulls(who) for who in range(workers)})
                # by themselves: a broker writes for itself, too, and a pull that waits for its dispatch is overtaken
                beats = [who for who in range(workers) if self.dice.random() < 0.5]
                self.say({who: [(self._beat(who), True)] for who in beats})
            for _ in range(self.dice.choice((0, 1, 2))):
                self.change()
        self.settle()
        self.compare_states()
        for line in self.lines:
            line.close()
        for client in self.clients:
            client.close()
        for side in self.sides:
            side.stop()
        for side in self.sides:
            assert "Traceback" not in side.log.read_text(), side.log
        self.compare_stores()
        native = int(re.findall("by native code: ([0-9]+)", self.sides[0].log.read_text())[0])
        assert (native > 0) == self.has_native, f"seed {self.seed}: {native} by native code, {self.config}"
        rpcs = sum(client.asked for client in self.clients)
        return (
            f"{self.asked} requests, {rpcs} RPCs, {self.log_size} messages, {native} of them by native code, "
            f"{self.config}"
        )

    def _grpc_clients(self, connections: int) -> None:
        """Makes them, with their topics. A life with one connection has one, which takes turns with it."""
        many = 0 if not self.with_grpc else 1 if self.alone else self.dice.choice((0, 1, 3))
        self.owners = connections + many
        addresses = [side.grpc for side in self.sides]
        for number in range(many):
            queues = range(connections + number, QUEUES, self.owners)
            client = GrpcLoad(addresses, self.seed, number, queues, signed=self.signed, places=self.alone)
            self.clients.append(client)
            for kind, name in client.topics.items():
                few = "4" if kind == "FIFO" else "1"
                self.topic(name, attributes=f"+message.type={kind}", readQueueNums=few, writeQueueNums=few)
            begin = {
                "consumerGroup": client.group,
                "topic": client.topics["NORMAL"],
                "queueId": "0",
                "commitOffset": "0",
            }
            self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, begin)

    def beside(self, work: Callable[[GrpcLoad], None], say: Callable[[], None]) -> None:
        """What gRPC clients do, each in a thread, while connections say something; in turn when there is one."""
        if self.alone:
            for client in self.clients:
                work(client)
            say()
            return
        with ThreadPoolExecutor(max_workers=max(1, len(self.clients))) as threads:
            done = [threads.submit(work, client) for client in self.clients]
            say()
            for each in done:
                each.result()

    @property
    def has_native(self) -> bool:
        """True if the settings allow messages to be stored by native code: then some have to be."""
        return all(self.config[setting] == "false" for setting in WITHOUT_NATIVE)

    # --- what is left

    def compare_states(self) -> None:
        offsets = [load_json(a.body_bytes()) for a in self.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)]
        known = [
            {name: value for name, value in each["offsetTable"].items() if not OF_ITS_OWN.match(name)}
            for each in offsets
        ]
        assert known[0] == known[1], (self.seed, known)
        topics = [
            load_json(a.body_bytes())["topicConfigTable"] for a in self.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        ]
        assert topics[0] == topics[1], (self.seed, topics)
        deadline = time.monotonic() + PATIENCE_S
        while True:  # statistics of pulls are counted a moment later
            counters = [self.counters(side) for side in self.sides]
            if counters[0] == counters[1] or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        names = sorted(counters[0].keys() | counters[1].keys())
        unlike = [
            f"{name}: {counters[0].get(name)} and {counters[1].get(name)}"
            for name in names
            if counters[0].get(name) != counters[1].get(name)
        ]
        assert not unlike, "\n".join((f"seed {self.seed}:", *unlike, str(self.config)))

    def counters(self, side: Side) -> dict[str, float]:
        """By name. A pull that is sent beside its message is held or not, as it comes."""
        found: dict[str, float] = defaultdict(float)
        for name, value in side.metrics().items():
            if (
                name.startswith("rocketmq_")
                and not re.search(
                    "_bucket|_sum|milliseconds(_created|{)|reserve_time|_created|lag|behind|cpu|inflight|ready|queueing",
                    name,
                )
                and "storage_size" not in name
            ):
                found[re.sub('is_long_polling="[a-z]*",', "", name)] += value
        return found

    def compare_stores(self) -> None:
        found = []
        for side in self.sides:
            with ReadOnlyStore(side.store) as view:
                log = [
                    stable(bytes(record), places=self.alone)
                    for record in records(view)
                    if self._expected(record)
                ]
                queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
                for queue in view.consume_queues:
                    if OF_ITS_OWN.match(queue.topic) or (queue.topic == TIMER_TOPIC and not self.alone):
                        continue
                    queues[queue.topic, queue.queue_id] = _units(queue, places=self.alone)
            found.append((log, queues))
        (log, queues), (other_log, other_queues) = found
        self.log_size = len(log)
        if not self.alone:
            log.sort()
            other_log.sort()
        assert len(log) == len(other_log), (self.seed, len(log), len(other_log), self.config)
        for a, b in zip(log, other_log, strict=True):
            assert a == b, f"seed {self.seed}:\n{a!r}\n{b!r}\n{self.config}"
        assert queues.keys() == other_queues.keys(), (self.seed, queues.keys() ^ other_queues.keys())
        for name, units in queues.items():
            assert units == other_queues[name], (self.seed, name, self.config)

    @staticmethod
    def _expected(record: memoryview) -> bool:
        """False for what a broker writes for itself: where the time of a pop stands in it, too."""
        message = decode_record(record)
        real = message.properties.get(PROPERTY_REAL_TOPIC, "") if message.topic == TIMER_TOPIC else ""
        return not OF_ITS_OWN.match(message.topic) and not OF_ITS_OWN.match(real)


def _units(queue: Any, *, places: bool) -> list[bytes]:
    units = []
    for offset in range(queue.min_offset_in_queue, queue.max_offset_in_queue):
        unit = queue.get(offset)
        if unit is not None and not places:
            unit = unit._replace(physical_offset=0)
        if unit is not None and queue.topic == "SCHEDULE_TOPIC_XXXX":
            unit = unit._replace(tags_code=0)  # when it is due
        units.append(repr(unit).encode())
    return units


def run(seed: int, directory: Path, rounds: int = 4, against: Path | None = None, **config: object) -> str:
    life = Life(directory, seed, config, rounds, against)
    with life.sides[0], life.sides[1]:
        return life.live()


def main() -> int:
    """The exit status: 1 when a life differed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--against", type=Path, help="another checkout")
    arguments = parser.parse_args()
    source = arguments.against and arguments.against.resolve() / "src"
    config = dict(each.split("=", 1) for each in arguments.set)
    ends, seed, differ = time.monotonic() + 60 * arguments.minutes, arguments.seed, 0
    while time.monotonic() < ends:
        directory = Path(tempfile.mkdtemp(prefix="oracle-"))
        began = time.monotonic()
        try:
            asked = run(seed, directory, arguments.rounds, source, **config)
        except AssertionError as error:
            print("DIFFERS:", error, directory, flush=True)
            seed, differ = seed + 1, differ + 1
            continue
        print(f"seed {seed}: {asked} in {time.monotonic() - began:.0f} s", flush=True)
        shutil.rmtree(directory)
        seed += 1
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main())
