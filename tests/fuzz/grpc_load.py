"""A gRPC client of both brokers of a life (see `oracle`): the same RPCs, drawn by lot, and answers that must be alike.

    sends      SendMessage ─ EndTransaction, RecallMessage            their ids are kept, of each broker its own
    receives   ReceiveMessage ─ AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue
               PullMessage, the offsets, QueryRoute, QueryAssignment

Each client has topics of its own, and queues of its own of the topic that all share, so that their order is known.
Receives write the time into the log, so they are for lives whose logs are not compared by place.
"""

from __future__ import annotations

import datetime
import gzip
import hmac
import random
import re
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from mqlake.base.clock import now_ms
from mqlake.proxy.publish import jump_hash
from mqlake.proxy.service import SERVICE
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.values import duration, timestamp
from tests.waiting import PATIENCE_S

SHARED = "Both"
"""The topic that clients of both protocols send to."""
SHARED_QUEUES = 16
ANY_SIZE = [("grpc.max_receive_message_length", -1)]
HOUR_MS = 3600 * 1000
_TYPES = definition.MessageType
_MASKED = (
    "receiptHandle",
    "storeTimestamp",
    "storeHost",
    "deliveryTimestamp",
    "bornHost",
    "invisibleDuration",
)


def _resource(name: str) -> definition.Resource:
    return definition.Resource(name=name)


class GrpcLoad:
    """Raises AssertionError where the brokers' answers differ."""

    def __init__(
        self,
        addresses: Sequence[str],
        seed: int,
        number: int,
        queues: Sequence[int],
        *,
        signed: bool,
        places: bool,
    ) -> None:
        """`queues`: its own of SHARED. `places`: those in the log are alike, too."""
        self.dice = random.Random(f"{seed}-{number}")
        self.name = f"seed {seed}, gRPC client {number}"
        self.number, self.signed, self.places = number, signed, places
        self.channels = [grpc.insecure_channel(address, ANY_SIZE) for address in addresses]
        # kinds of messages by topic
        self.topics = {
            kind: f"Grpc{kind.title()}-{number}" for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
        }
        self.group = f"grpc-group-{number}"
        owned = set(queues)
        self.groups = [
            name for name in (f"group-{n}" for n in range(200)) if jump_hash(name, SHARED_QUEUES) in owned
        ]
        self.queues = sorted(owned)
        self.sent = self.asked = 0
        self.open: list[list[str]] = []
        """Transactions: their ids at each broker."""
        self.recalls: list[list[str]] = []
        self.handles: list[tuple[str, str, list[str]]] = []
        """Messages received: topic, message id, and their handles at each broker."""
        self.waiting: dict[str, int] = {}
        """Messages that wait in a topic of its own for its group."""

    def close(self) -> None:
        for channel in self.channels:
            channel.close()

    # --- asking

    def _metadata(self, who: str) -> list[tuple[str, str]]:
        found = [
            ("x-mq-client-id", f"grpc-{self.number}"),
            ("x-mq-client-version", "5.1.2"),
            ("x-mq-language", "JAVA"),
        ]
        if self.signed and who:
            date_time = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
            secret = f"{who}-secret"
            signature = hmac.digest(secret.encode(), date_time.encode(), "sha1").hex().upper()
            user = "alice" if who == "mallory" else who
            signed = f"Credential={user}/region/service, SignedHeaders=x-mq-date-time, Signature={signature}"
            found += [("x-mq-date-time", date_time), ("authorization", f"MQv2-HMAC-SHA1 {signed}")]
        return found

    def ask(self, rpc: str, requests: Sequence[Any], who: str = "admin") -> list[list[Any]]:
        """The answers of each broker, one or the many of a stream, which are compared."""
        method = SERVICE.methods_by_name[rpc]
        coders = {
            "request_serializer": GetMessageClass(method.input_type).SerializeToString,
            "response_deserializer": GetMessageClass(method.output_type).FromString,
        }
        answers: list[list[Any]] = []
        statuses = []
        for channel, request in zip(self.channels, requests, strict=True):
            path = f"/{SERVICE.full_name}/{rpc}"
            metadata = self._metadata(who)
            try:
                if method.server_streaming:
                    stub = channel.unary_stream(path, **coders)
                    answers.append(list(stub(request, metadata=metadata, timeout=PATIENCE_S)))
                else:
                    answers.append(
                        [channel.unary_unary(path, **coders)(request, metadata=metadata, timeout=PATIENCE_S)]
                    )
                statuses.append("OK")
            except grpc.RpcError as error:
                answers.append([])
                statuses.append(f"{error.code()} {error.details()}")
        self.asked += 1
        said = [[self._words(answer) for answer in some] for some in answers]
        assert said[0] == said[1] and statuses[0] == statuses[1], (
            f"{self.name}: {rpc} by {who!r}\nasked {str(requests[0])[:1500]}\nfast:  {statuses[0]} {said[0]}\n"
            f"plain: {statuses[1]} {said[1]}"
        )
        return answers

    def _words(self, answer: Any) -> Any:
        return self._stable(MessageToDict(answer))

    def _stable(self, value: Any) -> Any:
        """What does not differ between two brokers."""
        if isinstance(value, list):
            return [self._stable(each) for each in value]
        if isinstance(value, str):
            value = re.sub(r"127\.0\.0\.1:\d+", "address", value)
            return re.sub(r"\d+(\.\d+)? ?(ms|%|s\b)", "figure", value)
        if not isinstance(value, dict):
            return value
        hidden = (*_MASKED, "port", *(() if self.places else ("transactionId",)))
        return {key: "…" if key in hidden and each else self._stable(each) for key, each in value.items()}

    def _who(self) -> str:
        return (
            self.dice.choices(("admin", "alice", "mallory", ""), (12, 4, 1, 1))[0] if self.signed else "admin"
        )

    # --- sending

    def sends(self, count: int) -> None:
        for _ in range(count):
            lot = self.dice.random()
            if lot < 0.1 and self.open and not self.places:  # the op message holds what came in some seconds
                self._end()
            elif lot < 0.2 and self.recalls:
                self._recall()
            else:
                self._send()

    def _message(self, kind: str, topic: str) -> definition.Message:
        dice = self.dice
        self.sent += 1
        system = definition.SystemProperties(
            message_id=f"01{self.number:02X}{self.sent:028X}",
            message_type=_TYPES.Value(kind),
            born_timestamp=timestamp(1_700_000_000_000 + self.sent),
            born_host=dice.choice(("10.1.2.3", "10.1.2.3", "10.1.2.3", "host.example", "::1")),
            body_encoding=definition.Encoding.IDENTITY,
        )
        body = dice.randbytes(dice.choice((1, 20, 128, 128, 1000, 5000)))
        if dice.random() < 0.1:
            body, system.body_encoding = gzip.compress(body), definition.Encoding.GZIP
        if dice.random() < 0.5:
            system.tag = dice.choice(("A", "B", "é", "t" * 200))
        if dice.random() < 0.3:
            system.keys.extend(dice.choice((("k",), ("k", "l"), ("k" * 300,), ("é",))))
        if kind == "FIFO":
            system.message_group = dice.choice(self.groups) if topic == SHARED else dice.choice("abcdefgh")
        if kind == "DELAY":
            system.delivery_timestamp.CopyFrom(timestamp(now_ms() + dice.randrange(HOUR_MS, 23 * HOUR_MS)))
        if kind == "TRANSACTION" and dice.random() < 0.3:
            system.orphaned_transaction_recovery_duration.CopyFrom(duration(dice.choice((6000, 3_600_000))))
        if dice.random() < 0.2:
            system.trace_context = "trace"
        if dice.random() < 0.2:
            system.delivery_attempt = dice.choice((1, 2, 17))
        users = {}
        if dice.random() < 0.4:
            users["a"] = dice.choice(("1", "2", "é", "x" * dice.choice((10, 1000, 16_000))))
        found = definition.Message(
            topic=_resource(topic), system_properties=system, body=body, user_properties=users
        )
        if dice.random() < 0.08:
            self._spoil(found)
        return found

    def _spoil(self, message: definition.Message) -> None:
        dice, system = self.dice, message.system_properties
        what = dice.randrange(12)
        if what == 0:
            message.body = b""
        elif what == 1:
            message.body = bytes((4 << 20) + dice.choice((0, 1)))
        elif what == 2:
            system.tag = dice.choice((" ", "a|b", "a\x01"))
        elif what == 3:
            system.keys.append(dice.choice(("", " ", "\x02")))
        elif what == 4:
            system.message_id = ""
        elif what == 5:
            system.message_group = "g" * dice.choice((0, 64, 200))
        elif what == 6:
            message.user_properties["TAGS"] = "A"
        elif what == 7:
            message.user_properties["b"] = "x" * 17_000
        elif what == 8:
            message.topic.name = dice.choice(("", "a b", "x" * 200, "SCHEDULE_TOPIC_XXXX"))
        elif what == 9:
            system.delivery_timestamp.CopyFrom(timestamp(now_ms() + 25 * HOUR_MS))
        elif what == 10:
            system.body_encoding = definition.Encoding.GZIP
            message.body = b"\x1f\x8bno gzip"
        else:
            system.lite_topic = "lite"

    def _send(self) -> None:
        dice = self.dice
        kind = dice.choice(("NORMAL", "NORMAL", "FIFO", "FIFO", "DELAY", "TRANSACTION"))
        if self.number and kind in (
            "DELAY",
            "TRANSACTION",
        ):  # all of them go to one queue, in the first one's order
            kind = "NORMAL"
        topic = SHARED if kind == "FIFO" and dice.random() < 0.7 else self.topics[kind]
        wrong = dice.random() < 0.03
        count = dice.choice((1, 1, 1, 1, 1, 1, 2, 20)) if kind == "NORMAL" else 1
        if dice.random() < 0.01:
            count = 0
        messages = [
            self._message(dice.choice(("NORMAL", "FIFO")) if wrong else kind, topic) for _ in range(count)
        ]
        if (
            wrong and topic == SHARED
        ):  # without a group the endpoint takes the queues in turn, also those of others
            messages = messages[:1]
            for message in messages:
                message.system_properties.message_group = dice.choice(self.groups)
        request = v2.SendMessageRequest(messages=messages)
        answers = self.ask("SendMessage", [request, request], self._who())
        entries = [list(answer[0].entries) if answer else [] for answer in answers]
        for pair in zip(*entries, strict=True):
            if pair[0].transaction_id:
                self.open.append([entry.transaction_id for entry in pair])
            if pair[0].recall_handle:
                self.recalls.append([entry.recall_handle for entry in pair])
            if pair[0].status.code == definition.Code.OK and topic == self.topics["NORMAL"] and not wrong:
                self.waiting[topic] = self.waiting.get(topic, 0) + 1

    def _end(self) -> None:
        ids = self.dice.choice(self.open)
        if self.dice.random() < 0.9:
            self.open.remove(ids)  # else it may be ended twice
        resolution = self.dice.choice((1, 1, 2, 0))
        source = self.dice.choice((definition.SOURCE_CLIENT, definition.SOURCE_SERVER_CHECK))
        requests = [
            v2.EndTransactionRequest(
                topic=_resource(self.topics["TRANSACTION"]),
                message_id="m",
                transaction_id=each,
                resolution=resolution,
                source=source,
            )
            for each in ids
        ]
        self.ask("EndTransaction", requests, self._who())

    def _recall(self) -> None:
        handles = self.recalls.pop(self.dice.randrange(len(self.recalls)))
        if self.dice.random() < 0.1:
            handles = [self.dice.choice(("", "nonsense", "djEgYQ=="))] * 2
        topic = self.topics["DELAY"] if self.dice.random() < 0.9 else self.topics["NORMAL"]
        requests = [v2.RecallMessageRequest(topic=_resource(topic), recall_handle=each) for each in handles]
        self.ask("RecallMessage", requests, self._who())

    # --- receiving

    def receives(self, count: int) -> None:
        """Only when consumers can see everything that was sent."""
        for _ in range(count):
            lot = self.dice.random()
            if lot < 0.35 and not self.places and self.waiting.get(self.topics["NORMAL"]):
                self._receive()
            elif lot < 0.55 and self.handles:
                self._settle_one()
            elif lot < 0.75:
                self._pull()
            else:
                self._query()

    def _queue(self, topic: str, queue_id: int) -> definition.MessageQueue:
        return definition.MessageQueue(
            topic=_resource(topic), id=queue_id, broker=definition.Broker(name="broker-a")
        )

    def _receive(self) -> None:
        dice, topic = self.dice, self.topics["NORMAL"]
        request = v2.ReceiveMessageRequest(
            group=_resource(self.group),
            message_queue=self._queue(topic, -1),
            batch_size=dice.choice((1, 1, 5, 32)),
            invisible_duration=duration(dice.choice((HOUR_MS, HOUR_MS, 1000, 13 * HOUR_MS))),
            long_polling_timeout=duration(5000),
        )
        answers = self.ask("ReceiveMessage", [request, request])
        found = [[each.message for each in some if each.HasField("message")] for some in answers]
        # where none comes, the others were tried too often before: they are dead letters
        self.waiting[topic] = self.waiting[topic] - len(found[0]) if found[0] else 0
        for pair in zip(*found, strict=True):
            system = [message.system_properties for message in pair]
            self.handles.append((topic, system[0].message_id, [each.receipt_handle for each in system]))

    def _settle_one(self) -> None:
        dice = self.dice
        topic, message_id, handles = self.handles.pop(dice.randrange(len(self.handles)))
        if dice.random() < 0.05:
            handles = [dice.choice(("", "nonsense", "0 0 0 0 0 broker-a 0 0 0"))] * 2
        group, named = _resource(self.group), _resource(topic)
        what = dice.randrange(4)
        if what < 2:
            self.ask(
                "AckMessage",
                [
                    v2.AckMessageRequest(
                        group=group,
                        topic=named,
                        entries=[v2.AckMessageEntry(message_id=message_id, receipt_handle=each)],
                    )
                    for each in handles
                ],
                self._who(),
            )
        elif what == 2:
            span = duration(dice.choice((2 * HOUR_MS, 13 * HOUR_MS, -1000)))
            answers = self.ask(
                "ChangeInvisibleDuration",
                [
                    v2.ChangeInvisibleDurationRequest(
                        group=group,
                        topic=named,
                        receipt_handle=each,
                        invisible_duration=span,
                        message_id=message_id,
                    )
                    for each in handles
                ],
            )
            changed = [some[0].receipt_handle for some in answers if some]
            if all(changed) and len(changed) == 2:
                self.handles.append((topic, message_id, changed))
        else:
            self.ask(
                "ForwardMessageToDeadLetterQueue",
                [
                    v2.ForwardMessageToDeadLetterQueueRequest(
                        group=group,
                        topic=named,
                        receipt_handle=each,
                        message_id=message_id,
                        delivery_attempt=17,
                        max_delivery_attempts=16,
                    )
                    for each in handles
                ],
                self._who(),
            )

    def _pull(self) -> None:
        dice = self.dice
        topic, queue_id = dice.choice(
            (
                (SHARED, dice.choice(self.queues)),
                (self.topics["NORMAL"], 0),
                (self.topics["FIFO"], 1),
                (SHARED, 99),
            )
        )
        kind = dice.choice((definition.FilterType.TAG, definition.FilterType.TAG, definition.FilterType.SQL))
        expression = dice.choice(("*", "A", "A||é")) if kind == definition.FilterType.TAG else "a = '1'"
        request = v2.PullMessageRequest(
            group=_resource(self.group),
            message_queue=self._queue(topic, queue_id),
            offset=dice.choice((0, 0, 0, 3, -1, 10**9)),
            batch_size=dice.choice((1, 8, 32, 1000)),
            filter_expression=definition.FilterExpression(type=kind, expression=expression),
            long_polling_timeout=duration(0),
        )
        self.ask("PullMessage", [request, request], self._who())

    def _query(self) -> None:
        dice = self.dice
        topic = dice.choice((SHARED, *self.topics.values(), "Nobody"))
        queue = self._queue(topic, dice.choice((0, 0, 1, 50)))
        what = dice.randrange(5)
        request: Any
        if what == 0:
            rpc, request = "QueryRoute", v2.QueryRouteRequest(topic=_resource(topic))
        elif what == 1:
            rpc = "QueryAssignment"
            request = v2.QueryAssignmentRequest(topic=_resource(topic), group=_resource(self.group))
        elif what == 2:
            rpc = "QueryOffset"
            policy = dice.choice((definition.BEGINNING, definition.END))
            request = v2.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
        elif what == 3:
            rpc = "UpdateOffset"
            mine = self._queue(self.topics["FIFO"], dice.choice((0, 1)))
            request = v2.UpdateOffsetRequest(
                group=_resource(self.group), message_queue=mine, offset=dice.choice((0, 1, 10**6, -1))
            )
        else:
            rpc, request = "GetOffset", v2.GetOffsetRequest(group=_resource(self.group), message_queue=queue)
        self.ask(rpc, [request, request], self._who())
