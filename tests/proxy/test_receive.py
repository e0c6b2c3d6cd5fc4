"""ReceiveMessage: what is asked of the broker, and what becomes of its answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mqlake.errors import RemotingConnectError
from mqlake.message import ReceiptHandle
from mqlake.proxy.acknowledge import Acknowledger
from mqlake.proxy.clients import Client
from mqlake.proxy.context import RequestContext
from mqlake.proxy.receive import Receiver, invisible_time, polling_time, popped_messages
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code, FilterExpression, FilterType, Settings
from mqlake.proxy.values import duration
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.route import BrokerData, QueueData, TopicRouteData
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)
from tests.proxy.popping import popped, popping, receive_request, record
from tests.proxy.scripted import ScriptedBackend, client, context
from tests.waiting import until_async


class Stream:
    """What is written to the client; `breaks_after` so many writes it does not take more."""

    def __init__(self, breaks_after: int = 1 << 30) -> None:
        self.written: list[v2.ReceiveMessageResponse] = []
        self._left = breaks_after

    async def write(self, answer: v2.ReceiveMessageResponse) -> None:
        if not self._left:
            raise ConnectionResetError("the stream broke")
        self._left -= 1
        self.written.append(answer)

    @property
    def kinds(self) -> list[str | None]:
        return [answer.WhichOneof("content") for answer in self.written]

    @property
    def bodies(self) -> list[bytes]:
        return [answer.message.body for answer in self.written if answer.WhichOneof("content") == "message"]


def received(
    backend: ScriptedBackend, request: v2.ReceiveMessageRequest | None = None, known: Client | None = None
) -> Stream:
    stream: Any = Stream()
    asyncio.run(
        Receiver(backend, Acknowledger()).receive_message(
            context(), known or client(backend), request or receive_request(), stream
        )
    )
    return stream  # type: ignore[no-any-return]


def test_a_stream_is_status_messages_and_a_time():
    stream = received(popping(record(0, b"a"), record(1, b"b", times=3)))
    assert stream.kinds == ["status", "message", "message", "delivery_timestamp"]
    assert stream.written[0].status.code == Code.OK
    first, second = (answer.message.system_properties for answer in stream.written[1:3])
    assert (first.delivery_attempt, second.delivery_attempt) == (1, 4)
    handle = ReceiptHandle.parse(second.receipt_handle)
    assert (handle.start_offset, handle.queue_id, handle.queue_offset, handle.physical_offset) == (
        0,
        1,
        1,
        1001,
    )
    assert (handle.revive_queue_id, handle.flag, handle.broker_name) == (2, 0, "b")


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT])
def test_nothing_is_a_status_of_its_own(code: int):
    backend = popping()
    backend.answers[RequestCode.POP_MESSAGE] = lambda _: RemotingCommand.create_response(code)
    stream = received(backend)
    assert stream.kinds == ["status", "delivery_timestamp"]
    assert stream.written[0].status.code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (ResponseCode.POLLING_FULL, Code.TOO_MANY_REQUESTS),
        (ResponseCode.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND),
    ],
)
def test_refusals_of_the_broker(answer: int, code: int):
    backend = popping()
    backend.answers[RequestCode.POP_MESSAGE] = lambda _: RemotingCommand.create_response(answer, "why")
    status = received(backend).written[0].status
    assert (status.code, status.message) == (code, "why")


def test_what_the_broker_is_asked():
    backend = popping(record(0))
    expression = FilterExpression(type=FilterType.SQL, expression="a > 1")
    received(backend, receive_request(filter_expression=expression, attempt_id="x"))
    ((broker, command),) = backend.asked
    header = command.decode_header(PopMessageRequestHeader)
    assert broker == "b"
    assert (header.consumer_group, header.topic, header.queue_id, header.max_msg_nums) == ("G", "T", -1, 32)
    assert (header.exp_type, header.exp, header.order, header.attempt_id) == ("SQL92", "a > 1", False, "x")
    assert (header.invisible_time, header.init_mode) == (30_000, 1)


def route_of(*brokers: tuple[str, int, int]) -> TopicRouteData:
    """Of (name, perm, queues to read)."""
    return TopicRouteData(
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=2, perm=perm)
            for name, perm, queues in brokers
        ],
        broker_datas=[
            BrokerData(
                cluster="c", broker_name=name, broker_addrs={1 if name == "slave" else 0: "10.0.0.1:1"}
            )
            for name, _, _ in brokers
        ],
    )


def test_who_names_no_broker_reads_from_those_of_the_route_in_turn():
    """At one of them alone the others' messages never came, and handles without a broker's name were refused."""

    class Several(ScriptedBackend):
        down = ""

        async def route(self, topic: str) -> TopicRouteData:
            return route_of(
                ("b-2", 6, 1),
                ("b-0", 4, 1),
                ("written", 2, 1),
                ("empty", 6, 0),
                ("slave", 6, 1),
                ("b-1", 6, 1),
            )

        async def invoke(
            self, broker_name: str, command: RemotingCommand, timeout_s: float | None = None
        ) -> RemotingCommand:
            if broker_name == self.down:
                raise RemotingConnectError("10.0.0.1:1", "refused")
            return await super().invoke(broker_name, command, timeout_s)

    backend = Several()
    backend.answers = popping(record(0)).answers
    request = receive_request()
    request.message_queue.ClearField("broker")
    known = client(backend)
    handles = []
    for _ in range(4):
        stream = received(backend, request, known)
        handles.append(
            ReceiptHandle.parse(stream.written[1].message.system_properties.receipt_handle).broker_name
        )
    assert handles == [broker for broker, _ in backend.asked] == ["b-0", "b-1", "b-2", "b-0"]
    named = [command.decode_header(PopMessageRequestHeader).bname for _, command in backend.asked]
    assert named == handles

    backend.down = "b-1"  # the next one is asked instead
    stream = received(backend, request, known)
    assert stream.written[0].status.code == Code.OK
    assert backend.asked[-1][0] == "b-2"

    class Down(Several):
        async def invoke(
            self, broker_name: str, command: RemotingCommand, timeout_s: float | None = None
        ) -> RemotingCommand:
            self.asked.append((broker_name, command))
            raise RemotingConnectError("10.0.0.1:1", f"{broker_name} is down")

    nowhere = Down()
    with pytest.raises(RemotingConnectError, match="b-2 is down"):
        received(nowhere, request)
    assert [broker for broker, _ in nowhere.asked] == ["b-0", "b-1", "b-2"]


def test_a_topic_that_no_broker_lets_read():
    class Written(ScriptedBackend):
        async def route(self, topic: str) -> TopicRouteData:
            return route_of(("b", 2, 2))

    request = receive_request()
    request.message_queue.ClearField("broker")
    with pytest.raises(StatusError, match="no readable queue") as refused:
        received(Written(), request)
    assert refused.value.code == Code.FORBIDDEN


def test_a_fifo_group_is_popped_in_order_and_attempts_are_counted_by_the_broker():
    backend = popping(record(0), record(1), counts="0 qo1%0 2;0 1 0", revive=999)
    backend.groups["G"] = SubscriptionGroupConfig(group_name="G", consume_message_orderly=True)
    request = receive_request()
    request.message_queue.id = 1
    stream = received(backend, request)
    header = backend.asked[0][1].decode_header(PopMessageRequestHeader)
    assert (header.order, header.queue_id) == (True, -1)
    attempts = [answer.message.system_properties.delivery_attempt for answer in stream.written[1:3]]
    assert attempts == [3, 1]


def test_other_tags_are_acknowledged_and_worn_out_messages_become_dead_letters():
    """A broker that filters by hash lets others through: Aa and BB have the same."""
    backend = popping(record(0, TAGS="Aa"), record(1, TAGS="BB"), record(2, TAGS="Aa", times=17))
    request = receive_request(filter_expression=FilterExpression(expression="Aa"))
    stream = received(backend, request)
    assert len(stream.bodies) == 1
    acks = [command.decode_header(AckMessageRequestHeader).offset for command in backend.asked_for(200051)]
    assert acks == [1, 2]
    (dead,) = backend.asked_for(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert (dead.ext_fields["offset"], dead.ext_fields["delayLevel"]) == ("1002", "-1")


@pytest.mark.parametrize("fifo", [False, True])
def test_every_queue_of_the_broker_is_popped_whichever_the_client_names(fifo: bool):
    """A simple consumer names the queues in turn: with one of them only, it polled each empty one to its end."""
    backend = popping(record(0))
    backend.groups["G"] = SubscriptionGroupConfig(group_name="G", consume_message_orderly=fifo)
    request = receive_request()
    request.message_queue.id = 1
    received(backend, request)
    assert backend.asked[0][1].decode_header(PopMessageRequestHeader).queue_id == -1


@pytest.mark.parametrize(("wanted", "asked"), [(-1, 1), (0, 1), (1, 1), (31, 31), (33, 32)])
def test_how_many_messages_are_asked_for(wanted: int, asked: int):
    backend = popping(record(0))
    request = receive_request()
    request.batch_size = wanted
    received(backend, request)
    assert backend.asked[0][1].decode_header(PopMessageRequestHeader).max_msg_nums == asked


@pytest.mark.parametrize(("times", "delivered"), [(15, True), (16, True), (17, False)])
def test_the_last_attempt_is_delivered(times: int, delivered: bool):
    """retryMaxTimes is 16: the message comes 17 times."""
    stream = received(popping(record(0, times=times)))
    assert bool(stream.bodies) is delivered
    assert stream.written[0].status.code == (Code.OK if delivered else Code.MESSAGE_NOT_FOUND)


def test_a_filter_takes_all_messages_or_those_of_its_tags():
    tagged = [record(0, TAGS="a"), record(1, TAGS="b"), record(2)]
    for expression, count in (("*", 3), ("", 3), ("a", 1), (" a || b ", 2), ("c", 0)):
        backend = popping(*tagged)
        request = receive_request(filter_expression=FilterExpression(expression=expression))
        assert len(received(backend, request).bodies) == count
        assert len(backend.asked_for(RequestCode.ACK_MESSAGE)) == 3 - count
    by_sql = FilterExpression(type=FilterType.SQL, expression="a = 1")
    assert len(received(popping(*tagged), receive_request(filter_expression=by_sql)).bodies) == 3


@pytest.mark.parametrize(
    ("counts", "handle_is_order", "attempt"),
    [
        (None, True, 3),
        ("0 1 4", True, 5),
        ("0 qo1%0 6;0 1 4", True, 7),
        ("0 2 4", True, 3),
        ("0 1 4", False, 3),
    ],
)
def test_attempts(counts: str | None, handle_is_order: bool, attempt: int):
    """Of a message popped in order the broker counts them, of others the message itself."""
    answer = popped(record(0, times=2), counts=counts, revive=999 if handle_is_order else 2)
    (one,) = popped_messages(answer, "b")
    assert (one.attempt, one.handle.is_order) == (attempt, handle_is_order)


def test_messages_of_a_queue_without_a_start_are_handed_over_all_the_same():
    """A retry topic's single start counts for them, or else their own place."""
    header = {"startOffsetInfo": "1 0 7", "msgOffsetInfo": "1 0 9"}
    answer = popped(record(9))
    answer.ext_fields.update(header)
    (one,) = popped_messages(answer, "b")
    assert (one.handle.start_offset, one.handle.flag, one.handle.queue_id) == (7, 1, 0)
    answer = popped(record(9))
    answer.ext_fields.update(startOffsetInfo="1 0 7;0 0 8", msgOffsetInfo="1 0 9;0 0 9")
    (one,) = popped_messages(answer, "b")
    assert (one.handle.start_offset, one.handle.flag, one.handle.queue_id) == (9, 0, 1)
    answer = popped(record(9))
    answer.ext_fields.update(startOffsetInfo="1 0 7", msgOffsetInfo="0 1 9")
    (one,) = popped_messages(answer, "b")
    assert (one.handle.start_offset, one.handle.flag, one.handle.queue_id) == (9, 0, 1)


def test_a_handle_from_the_broker_counts():
    """Messages of a retry topic carry it, since they have the name of the topic itself."""
    given = "5 1795310521607 30000 4 1 b 0 5"
    (one,) = popped_messages(popped(record(5, POP_CK=given)), "b")
    assert one.handle.text == f"{given} 1005"
    (one,) = popped_messages(popped(record(5, POP_CK="garbage"), start=5), "b")
    assert (one.handle.start_offset, one.handle.queue_offset) == (5, 5)


def test_what_cannot_be_written_is_visible_again_soon():
    async def main() -> None:
        backend = popping(record(0), record(1), record(2))
        stream: Any = Stream(breaks_after=2)
        receiver = Receiver(backend, Acknowledger())
        with pytest.raises(ConnectionResetError):
            await receiver.receive_message(context(), client(backend), receive_request(), stream)
        await until_async(lambda: len(backend.asked_for(200053)) == 2)
        headers = [
            command.decode_header(ChangeInvisibleTimeRequestHeader) for command in backend.asked_for(200053)
        ]
        assert [(header.offset, header.invisible_time, header.suspend) for header in headers] == [
            (1, 1000, True),
            (2, 1000, True),
        ]

    asyncio.run(main())


def test_what_arrives_when_the_client_has_gone_is_visible_again_soon():
    class Slow(ScriptedBackend):
        release = asyncio.Event()

        async def invoke(
            self, broker_name: str, command: RemotingCommand, timeout_s: float | None = None
        ) -> RemotingCommand:
            if command.code == RequestCode.POP_MESSAGE:
                await self.release.wait()
            return await super().invoke(broker_name, command, timeout_s)

    async def main() -> None:
        backend = Slow()
        backend.answers = popping(record(0)).answers
        backend.release = asyncio.Event()
        stream: Any = Stream()
        receiver = Receiver(backend, Acknowledger())
        call = asyncio.ensure_future(
            receiver.receive_message(context(), client(backend), receive_request(), stream)
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        backend.release.set()
        await until_async(lambda: len(backend.asked_for(200053)) == 1)
        assert stream.written == []

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["empty", "fails", "is cancelled"])
def test_nothing_is_given_back_of_a_pop_that_brought_nothing(ends: str):
    """When the client has gone meanwhile."""

    class Slow(ScriptedBackend):
        def __init__(self) -> None:
            super().__init__()
            self.asking: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

        async def invoke(
            self, broker_name: str, command: RemotingCommand, timeout_s: float | None = None
        ) -> RemotingCommand:
            self.asked.append((broker_name, command))
            return await self.asking

    async def main() -> None:
        backend = Slow()
        stream: Any = Stream()
        receiver = Receiver(backend, Acknowledger())
        call = asyncio.ensure_future(
            receiver.receive_message(context(), client(backend), receive_request(), stream)
        )
        await until_async(lambda: bool(backend.asked))
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        if ends == "empty":
            backend.asking.set_result(RemotingCommand.create_response(ResponseCode.PULL_NOT_FOUND))
        elif ends == "fails":
            backend.asking.set_exception(RemotingConnectError("10.0.0.1:1", "gone"))
        else:
            backend.asking.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(backend.asked) == 1 and not receiver._returning and failures == []

    asyncio.run(main())


def test_what_is_given_back_is_renewed_no_more():
    async def main() -> None:
        backend = popping(record(0), record(1))
        known = client(backend)
        stream: Any = Stream(breaks_after=2)
        receiver = Receiver(backend, Acknowledger())
        with pytest.raises(ConnectionResetError):
            await receiver.receive_message(context(), known, receive_request(auto_renew=True), stream)
        assert len(receiver._returning) == 1, "a task that nobody holds may be collected"
        await until_async(lambda: len(backend.asked_for(200053)) == 1)
        await until_async(lambda: not receiver._returning)
        assert list(known.renewals) == [("G", "id-0")]

    asyncio.run(main())


def test_what_cannot_be_given_back_is_visible_when_its_time_is_over(caplog: pytest.LogCaptureFixture):
    def refuse(_: RemotingCommand) -> RemotingCommand:
        raise RemotingConnectError("10.0.0.1:1", "refused")

    async def main() -> None:
        backend = popping(record(0), record(1))
        backend.answers[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = refuse
        stream: Any = Stream(breaks_after=1)
        receiver = Receiver(backend, Acknowledger())
        with caplog.at_level("INFO"), pytest.raises(ConnectionResetError):
            await receiver.receive_message(context(), client(backend), receive_request(), stream)
        (task,) = receiver._returning
        await task
        assert len(backend.asked_for(200053)) == 1, "the next one would fail as well"
        assert "visible again later: 10.0.0.1:1: refused" in caplog.text

    caplog.set_level("INFO")
    asyncio.run(main())


def test_no_more_handles_are_renewed_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mqlake.proxy.receive.RENEWALS_MAX", 2)
    backend = popping(record(0), record(1), record(2))
    known = client(backend)
    assert len(received(backend, receive_request(auto_renew=True), known).bodies) == 3
    assert list(known.renewals) == [("G", "id-0"), ("G", "id-1")]
    known = client(backend)
    received(backend, receive_request(), known)
    assert not known.renewals, "only where the client asks for it"


def test_handles_to_renew_are_kept():
    backend = popping(record(0))
    known = client(backend)
    received(backend, receive_request(auto_renew=True, invisible_duration=duration(1)), known)
    assert list(known.renewals) == [("G", "id-0")]
    assert backend.asked[0][1].decode_header(PopMessageRequestHeader).invisible_time == 60_000


# --- times


def client_with_timeout(ms: int) -> Client:
    known = client(ScriptedBackend())
    known.settings = Settings(request_timeout=duration(ms))
    return known


def wait_ms(
    wanted: int | None, remaining_s: float | None, version: str = "5.1.2", timeout_ms: int = 3000
) -> int:
    request = v2.ReceiveMessageRequest()
    if wanted is not None:
        request.long_polling_timeout.CopyFrom(duration(wanted))
    caller: RequestContext = context(remaining_s=remaining_s, x_mq_client_version=version)
    return polling_time(caller, client_with_timeout(timeout_ms), request)


def test_polling_times(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mqlake.proxy.context.time", SimpleNamespace(monotonic=lambda: 100.0))
    assert wait_ms(10_000, None) == 10_000
    assert wait_ms(1, None) == 5000
    assert wait_ms(60_000, None) == 20_000
    assert wait_ms(None, None) == 20_100 - 1500
    assert wait_ms(20_000, 10) == 9_900
    assert wait_ms(None, 10) == 8_500
    assert wait_ms(5000, 5.125) == 5000
    assert wait_ms(5000, 5.0625) == 4962
    assert wait_ms(5000, 5) == 4900
    assert wait_ms(None, 10, timeout_ms=0) == 8_500, "3 s without the client's settings"
    assert wait_ms(None, 10, timeout_ms=1000) == 9_500


@pytest.mark.parametrize(
    ("version", "code"), [("5.0.3", 40018), ("5.0.2", 40000), ("", 40000), ("5.10.0-x", 40018)]
)
def test_too_little_time_to_poll(version: str, code: int):
    with pytest.raises(StatusError, match="deadline time remaining is not enough") as caught:
        wait_ms(20_000, 1, version)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("ms", "sentence"),
    [(9_999, "too small. min is 10000"), (43_200_001, "too large. max is 43200000"), (-5, "too small")],
)
def test_invisible_times(ms: int, sentence: str):
    with pytest.raises(StatusError, match=sentence) as caught:
        invisible_time(v2.ReceiveMessageRequest(invisible_duration=duration(ms)))
    assert caught.value.code == Code.ILLEGAL_INVISIBLE_TIME


@pytest.mark.parametrize("ms", [10_000, 43_200_000])
def test_the_shortest_and_the_longest_invisible_time(ms: int):
    assert invisible_time(v2.ReceiveMessageRequest(invisible_duration=duration(ms))) == ms
