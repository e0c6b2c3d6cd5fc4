"""FastAck: acknowledgements of popped messages that come one after another, stored together.

    ACK 0 1795310521607 60000 3 0 broker-a 0 100 ─┐
    ACK 0 1795310521607 60000 3 0 broker-a 0 101 ─┼─▶ one record for the checkpoint, an answer for each
    ACK 0 1795310521607 60000 3 0 broker-a 0 102 ─┘

Consumers acknowledge each message, and each acknowledgement by itself is a record that goes through the timer. Those of
one checkpoint that lie in one read go into one. Whatever is not usual (in order, a wrong handle, SYNC_FLUSH, under
access control a wrong signature) ends the run and falls through to AckMessageProcessor unchanged.
"""

from __future__ import annotations

import time
from struct import Struct

import orjson

from mqlake.broker.fast.signed_acks import SignedAcks
from mqlake.broker.metrics.rpc_latency import Rpc, RpcLatencies
from mqlake.broker.pop.ack import AckMessageProcessor
from mqlake.broker.pop.checkpoint import CheckpointKey
from mqlake.broker.pop.state import PopState
from mqlake.errors import MessageError, ResponseError
from mqlake.message import ReceiptHandle, retry_flag
from mqlake.remoting.codec import encode_json_header
from mqlake.remoting.codes import RequestCode, ResponseCode, SerializeType
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.store.results import STORED

RUN_MAX = 512
HEADER_SIZE_MAX = 1024
_BEGIN = b'{"code":200051,'
_HEAD = Struct(">iI15s")  # length, type and header length, how the header begins
_PREFIX = Struct(">iI")
_OPAQUE_MARK = 1_357_924_444
_Place = tuple[str, str, str, str]
"""Topic, group, queue id and the handle without the message's offset."""


class _Checkpoint:
    """The common part of acknowledgements with the same handle."""

    __slots__ = ("high", "key", "low", "offsets", "revive_queue_id", "revive_time")

    def __init__(self, key: CheckpointKey, handle: ReceiptHandle, low: int, high: int) -> None:
        self.key = key
        self.revive_queue_id = handle.revive_queue_id
        self.revive_time = handle.visible_at
        self.low = low
        self.high = high
        self.offsets: list[int] = []


class FastAck:
    """The fast path of ACK_MESSAGE: `AckMessageProcessor` for many requests at once."""

    def __init__(
        self, state: PopState, processor: AckMessageProcessor, latencies: RpcLatencies | None
    ) -> None:
        self._state = state
        self._processor = processor
        self._latencies = latencies
        access = state.broker.access
        self._signed = None if access is None else SignedAcks(access)
        """Under access control."""
        self._rpc = Rpc(RequestCode.ACK_MESSAGE, ResponseCode.SUCCESS, is_long_polling=False, oneway=False)
        answer = RemotingCommand.create_response()
        answer.opaque = _OPAQUE_MARK
        self._answer = encode_json_header(answer).replace(b"%", b"%%").replace(b"%d" % _OPAQUE_MARK, b"%d")

    def __call__(self, connection: Connection, data: memoryview, start: int) -> int:
        """Answers the acknowledgements whose frames begin at data[start]; where the next frame begins, `start` when
        there is none for here."""
        end = len(data)
        if end - start < _HEAD.size or data[start + 8 : start + 23] != _BEGIN:
            return start
        broker = self._state.broker
        if broker.is_slave or broker.store_config.is_sync_flush:
            return start
        began = time.monotonic_ns()
        checkpoints: dict[_Place, _Checkpoint] = {}
        requests: list[tuple[_Checkpoint, int]] = []
        at = start
        while len(requests) < RUN_MAX and end - at >= _HEAD.size:
            size, word, begin = _HEAD.unpack_from(data, at)
            header_size = word & 0xFFFFFF
            if (
                begin != _BEGIN
                or word >> 24 != SerializeType.JSON
                or header_size + 4 != size
                or header_size > HEADER_SIZE_MAX
                or end - at < 4 + size
            ):
                break
            following = at + 4 + size
            request = self._read(data[at + 8 : following], checkpoints, connection)
            if request is None:
                break
            requests.append(request)
            at = following
        if requests and self._store(connection, checkpoints):
            self._answer_all(connection, requests)
            if self._latencies is not None:
                elapsed = (time.monotonic_ns() - began) // len(requests)
                self._latencies.record(self._rpc, elapsed, len(requests))
            return at
        return start

    def _read(
        self, header: memoryview, checkpoints: dict[_Place, _Checkpoint], connection: Connection
    ) -> tuple[_Checkpoint, int] | None:
        """The checkpoint and opaque of a request, whose offset is noted; None when it is not for here."""
        try:
            fields = orjson.loads(header)
            values = fields["extFields"]
            opaque, flag = fields["opaque"], fields.get("flag", 0)
            handle, _, tail = values["extraInfo"].rpartition(" ")
            offset = values["offset"]
            place = values["topic"], values["consumerGroup"], values["queueId"], handle
            known = checkpoints.get(place)
            if self._signed is not None and not (
                all(type(value) is str for value in values.values())
                and self._signed.may(values, fields.get("version", 0), connection.remote_address)
            ):
                return None
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return None
        if flag != 0 or type(opaque) is not int or not 0 <= opaque < 1 << 31:
            return None
        # the offset is in the header and in the handle; another order of digits is for the codec
        if tail != offset or len(offset) > 18 or not (offset.isascii() and offset.isdigit()):
            return None
        if known is None:
            known = self._checkpoint(place)
            if known is None:
                return None
            checkpoints[place] = known
        number = int(offset)
        if not known.low <= number <= known.high:
            return None
        known.offsets.append(number)
        return known, opaque

    def _checkpoint(self, place: _Place) -> _Checkpoint | None:
        topic, group, queue_text, handle_text = place
        try:
            handle = ReceiptHandle.parse(handle_text)
            low, high = self._processor.range_of(topic, handle.queue_id)
            self._processor.check_revive_queue(handle.revive_queue_id)
        except (MessageError, ResponseError):
            return None
        if (
            handle.queue_offset >= 0
            or handle.is_order
            or str(handle.queue_id) != queue_text
            or handle.flag != retry_flag(topic)
        ):
            return None
        key = CheckpointKey(
            topic, group, handle.queue_id, handle.start_offset, handle.pop_time, handle.broker_name
        )
        return _Checkpoint(key, handle, low, high)

    def _store(self, connection: Connection, checkpoints: dict[_Place, _Checkpoint]) -> bool:
        """False if one could not be stored: then all are done again one by one, which does no harm."""
        for checkpoint in checkpoints.values():
            future = self._processor.acknowledge(
                checkpoint.key, checkpoint.offsets, checkpoint.revive_queue_id, checkpoint.revive_time
            )
            if future is not None and not (future.done() and future.result().status in STORED):
                return False
        return True

    def _answer_all(self, connection: Connection, requests: list[tuple[_Checkpoint, int]]) -> None:
        frames = []
        for _, opaque in requests:
            head = self._answer % opaque
            frames.append(_PREFIX.pack(4 + len(head), len(head)) + head)
        connection.send_encoded(b"".join(frames))
