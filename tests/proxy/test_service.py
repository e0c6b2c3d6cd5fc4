"""MessagingService: whatever is sent, there is an answer with a status, and never an exception that nobody expected."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqlake.base.clock import now_ms
from mqlake.broker.controller import BrokerController
from mqlake.message import ReceiptHandle
from mqlake.proxy import service
from mqlake.proxy.context import RequestContext
from mqlake.proxy.local import LocalBackend
from mqlake.proxy.server import GrpcServer
from mqlake.proxy.service import SERVICE
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code, Language
from mqlake.remoting.loop import loop_factory
from tests.broker.live import make_controller
from tests.proxy.live import Peer, on_a_broker, producer_settings, resource
from tests.proxy.scripted import ScriptedBackend

pytestmark = pytest.mark.usefixtures("each_server")

HANDLE = ReceiptHandle(0, now_ms(), 3_600_000, 1, 0, "broker-a", 0, 0, 0).text
WORDS = [
    "",
    "T",
    "F",
    "X",
    "G",
    "broker-a",
    "a b",
    "%RETRY%G",
    "*",
    "a || b",
    "x > 1",
    HANDLE,
    "djEg",
    "\x01",
    "x" * 300,
]
NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31)]
LONGS = [0, 1, -1, 1000, 2**62, -(2**63), 2**63 - 1]


def value_of(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return messages(field.message_type, depth - 1)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values] + [99])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=20)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return st.floats(width=32)
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT32:
        return st.sampled_from(NUMBERS) | st.integers(-(2**31), 2**31 - 1)
    return st.sampled_from(LONGS) | st.integers(-(2**63), 2**63 - 1)


@st.composite
def messages(draw: st.DrawFn, descriptor: Any, depth: int = 4) -> Message:
    made = GetMessageClass(descriptor)()
    if descriptor.full_name == "google.protobuf.Duration":
        made.seconds = draw(st.sampled_from([0, 1, 20, -5, 10**6, 2**62]))
        return made
    for field in descriptor.fields:
        if depth <= 0 or not draw(st.integers(0, 3)):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(made, field.name).update(
                draw(st.dictionaries(st.sampled_from(WORDS), st.sampled_from(WORDS)))
            )
        elif field.is_repeated:
            values = draw(st.lists(value_of(field, depth), max_size=3))
            getattr(made, field.name).extend(values)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            getattr(made, field.name).CopyFrom(draw(value_of(field, depth)))
        else:
            setattr(made, field.name, draw(value_of(field, depth)))
    return made


class Served:
    """A broker with its endpoint, for many short calls."""

    def __init__(self, directory: Path) -> None:
        self.runner = asyncio.Runner(loop_factory=loop_factory())
        self.controller: BrokerController = make_controller(directory)
        self.runner.run(self.controller.start())
        self.server = GrpcServer(LocalBackend(self.controller))
        self.runner.run(self.server.start("127.0.0.1", 0))
        self.peer = self.runner.run(self._peer())

    async def _peer(self) -> Peer:
        peer = Peer(self.server, self.controller)
        for topic, kind in (("T", "NORMAL"), ("F", "FIFO"), ("X", "TRANSACTION")):
            peer.create_topic(topic, kind)
        return peer

    def close(self) -> None:
        self.runner.run(self.peer.close())
        self.runner.run(self.server.stop(0.1))
        self.runner.run(self.controller.stop())
        self.runner.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    one = Served(tmp_path_factory.mktemp("served"))
    yield one
    one.close()


UNARY = [
    method.name
    for method in SERVICE.methods
    if method.name not in ("Telemetry", "ReceiveMessage", "PullMessage")
]


@pytest.mark.parametrize("rpc", UNARY)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data())
def test_random_requests(rpc: str, served: Served, data: st.DataObject):
    request = data.draw(messages(SERVICE.methods_by_name[rpc].input_type))
    with expecting_no_surprise():
        answer = served.runner.run(served.peer.call(rpc, request))
    assert answer.status.code >= 20000
    assert answer.status.message


@pytest.mark.parametrize("rpc", ["ReceiveMessage", "PullMessage"])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data())
def test_random_requests_for_streams(rpc: str, served: Served, data: st.DataObject):
    request = data.draw(messages(SERVICE.methods_by_name[rpc].input_type))
    request.long_polling_timeout.seconds = 0
    with expecting_no_surprise():
        first, *_ = served.runner.run(served.peer.stream(rpc, request))
    assert first.WhichOneof("content") == "status"


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data())
def test_random_telemetry(served: Served, data: st.DataObject):
    """Whatever comes on a stream, the next one works."""
    command = data.draw(messages(v2.TelemetryCommand.DESCRIPTOR))

    async def scene() -> None:
        stream = served.peer.telemetry()
        await stream.write(command)
        stream.cancel()
        stream, answer = await served.peer.settle(producer_settings("T"))
        assert answer.status.code == Code.OK
        stream.cancel()

    with expecting_no_surprise():
        served.runner.run(scene())


class expecting_no_surprise(logging.Handler):  # noqa: N801 - a context manager
    """Nothing may be logged with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.records.append(self.format(record))

    def __enter__(self) -> None:
        logging.getLogger().addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
        assert not self.records, "\n".join(self.records)


class OnlyAlice:
    """An authenticator."""

    def check(self, context: RequestContext, request: Message) -> None:
        context.user = context.metadata.get("authorization", "")
        if context.user != "alice":
            raise StatusError(Code.UNAUTHORIZED, "who are you?")

    async def refresh(self) -> None: ...


def test_an_authenticator_is_asked_first():
    async def main() -> None:
        backend = ScriptedBackend()
        server = GrpcServer(backend, authenticator=OnlyAlice())
        await server.start("127.0.0.1", 0)
        peer = Peer(server, None)  # type: ignore[arg-type]
        route = v2.QueryRouteRequest(topic=resource("T"))
        assert (await peer.call("QueryRoute", route)).status.code == Code.UNAUTHORIZED
        peer.metadata["authorization"] = "alice"
        assert (await peer.call("QueryRoute", route)).status.code == Code.OK
        await peer.close()
        await server.stop(0.1)

    asyncio.run(main())


def test_lite_topics_are_refused_by_name(served: Served):
    answer = served.runner.run(served.peer.call("SyncLiteSubscription", v2.SyncLiteSubscriptionRequest()))
    assert (answer.status.code, answer.status.message) == (
        Code.NOT_IMPLEMENTED,
        "lite topics are not supported",
    )


def test_a_node_client_gets_its_settings_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It misses those that come before it waits for them."""
    monkeypatch.setattr(service, "REPEAT_AFTER_S", 0.01)

    async def scene(peer: Peer) -> None:
        peer.create_topic("T")
        command = producer_settings("T")
        command.settings.user_agent.language = Language.NODE_JS
        stream, first = await peer.settle(command)
        async with asyncio.timeout(30):
            second = await stream.read()
        assert first.settings == second.settings
        assert second.settings.publishing.topics[0].name == "T"
        stream.cancel()

    on_a_broker(tmp_path, scene)
