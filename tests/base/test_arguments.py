"""Wrong types at the call; and that every public class of the clients checks what it is given."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

import mqlake.client
import mqlake.metaq.client
from mqlake.base.arguments import checked, checked_function
from mqlake.client import (
    ClientConfig,
    ConsumerConfig,
    LocalTransactionState,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    blocking,
    select_by_hash,
)
from mqlake.errors import ConfigError
from mqlake.metaq.client import Message as MetaMessage
from mqlake.metaq.client import MetaMessageSessionFactory
from mqlake.remoting.loop import run


class Colour(enum.Enum):
    RED = 1


class Listener(Protocol):
    def heard(self) -> None: ...


class Ear:
    def heard(self) -> None: ...


@checked
@dataclass(frozen=True, kw_only=True)
class Settings:
    size: int = 0
    rate: float = 0.0


@checked
class Subject:
    def __init__(self, name: str, *, colour: Colour = Colour.RED) -> None:
        self.name = name

    def plain(self, count: int, data: bytes = b"", *more: int) -> int:
        return count + len(data) + sum(more)

    async def later(self, count: int | None = None) -> int | None:
        return count

    def many(self, names: Iterable[str], table: Mapping[str, int], call: Callable[[], None]) -> None: ...

    def other(self, listener: Listener, anything: Any, either: str | Settings | None = None) -> None: ...

    def _own(self, count: int) -> int:
        return count


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda _: Subject(1), "Subject: name has to be str, not int"),
        (lambda _: Subject("x", colour="RED"), "Subject: colour has to be Colour, not str"),
        (lambda s: s.plain("1"), "Subject.plain: count has to be int, not str"),
        (
            lambda s: s.plain(1, data="text"),
            "Subject.plain: data has to be bytes, not str: encode() makes bytes of it",
        ),
        (lambda s: s.later("1"), "Subject.later: count has to be int, not str"),
        (lambda s: s.many("abc", {}, nothing), "Subject.many: names has to be Iterable[str], not str"),
        (
            lambda s: s.many(["a", 1], {}, nothing),
            "Subject.many: names has to be str, not int, in Iterable[str]",
        ),
        (
            lambda s: s.many([], {"a": "b"}, nothing),
            "Subject.many: table has to be int, not str, in Mapping[str, int]",
        ),
        (lambda s: s.many([], [], nothing), "Subject.many: table has to be Mapping[str, int], not list"),
        (lambda s: s.many([], {}, 5), "Subject.many: call has to be a function, not int"),
        (lambda s: s.other(5, 5), "Subject.other: listener has to be Listener, not int, which has no heard"),
        (lambda s: s.other(Ear(), 5, 5), "Subject.other: either has to be str or Settings or None, not int"),
        (lambda _: Settings(rate="1"), "Settings: rate has to be float, not str"),
        (lambda _: Settings(size=Settings), "Settings: size has to be int, not Settings"),
        (lambda _: checked_function(_plain)(1), "_plain: name has to be str, not int"),
    ],
)
def test_what_is_wrong_is_named(call: Callable[[Subject], object], said: str) -> None:
    with pytest.raises(TypeError) as error:
        call(Subject("x"))
    assert str(error.value) == said


def _plain(name: str) -> str:
    return name


def test_what_is_right_goes_through() -> None:
    subject = Subject("x")
    assert subject.plain(1, bytearray(b"ab"), 3, 4) == 10 and subject.plain(count=1) == 1
    assert run(subject.later()) is None and run(subject.later(3)) == 3
    subject.many((each for each in "ab"), {"a": 1}, nothing)
    subject.many(["a"], {}, nothing)
    subject.other(Ear(), object(), Settings(size=1, rate=1))
    assert subject._own("x") == "x"  # type: ignore[arg-type, comparison-overlap]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'count'"):
        subject.plain()  # type: ignore[call-arg]


# --- the clients


def public_methods(module: Any) -> dict[str, Callable[..., object]]:
    found = {}
    for name in module.__all__:
        thing = getattr(module, name)
        if (
            not inspect.isclass(thing)
            or issubclass(thing, enum.Enum)
            or getattr(thing, "_is_protocol", False)
        ):
            continue
        for kind in thing.__mro__:
            if not kind.__module__.startswith(("mqlake.client", "mqlake.metaq.client")):
                continue
            for method, value in vars(kind).items():
                if inspect.isfunction(value) and not method.startswith("_"):
                    found.setdefault(f"{name}.{method}", value)
    return found


RESULTS = {"PullResult", "SendResult", "TransactionSendResult", "ConsumeContext", "MessageClientExt"}


@pytest.mark.parametrize("module", [mqlake.client, mqlake.metaq.client])
def test_every_public_method_is_checked(module: Any) -> None:
    methods = public_methods(module)
    assert len(methods) > 15
    unchecked = [
        name
        for name, method in methods.items()
        if len(inspect.signature(method).parameters) > 1
        and not hasattr(method, "__wrapped__")
        and name.partition(".")[0] not in RESULTS
    ]
    assert unchecked == []


def test_messages() -> None:
    message = Message("T", b"x")
    for name, value in (("body", "text"), ("topic", None), ("flag", "1"), ("properties", None)):
        changed = Message("T", b"x")
        setattr(changed, name, value)
        with pytest.raises(TypeError, match=f"Message: {name} has to be"):
            Producer("G", "127.0.0.1:1")._check(changed)
    with pytest.raises(TypeError, match="body has to be bytes, not str: encode"):
        Message("T", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tags has to be str, not list"):
        Message("T", b"x", ["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="property 'p' has to be str with a str, not 5"):
        Message("T", b"x", properties={"p": 5})  # type: ignore[dict-item]
    assert Message("T", bytearray(b"x")).body == message.body


def test_clients_say_it_at_the_call() -> None:
    async def main() -> None:
        producer, consumer = Producer("G", "127.0.0.1:1"), PullConsumer("G", "127.0.0.1:1")
        queue = MessageQueue(topic="T", broker_name="b", queue_id=0)
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: producer.send("x"), "Producer.send: message has to be Message, not str"),  # type: ignore[arg-type]
            (lambda: producer.send_batch(["x"]), "messages has to be Message, not str, in Sequence"),  # type: ignore[list-item]
            (lambda: producer.send(Message("T", b"x"), queue=1), "queue has to be MessageQueue, not int"),  # type: ignore[arg-type]
            (lambda: producer.send(Message("T", b"x"), timeout_s="3"), "timeout_s has to be float"),  # type: ignore[arg-type]
            (lambda: consumer.subscribe(5), "PullConsumer.subscribe: topic has to be str, not int"),  # type: ignore[arg-type]
            (lambda: consumer.assign("T"), "queues has to be Iterable"),  # type: ignore[arg-type]
            (lambda: consumer.seek(queue, "5"), "offset has to be int, not str"),  # type: ignore[arg-type]
            (lambda: consumer.commit({queue: "5"}), "offsets has to be int, not str, in Mapping"),  # type: ignore[dict-item]
            (lambda: ConsumerConfig(message_model="CLUSTERING"), "message_model has to be MessageModel"),  # type: ignore[arg-type]
        ]
        for call, said in calls:
            with pytest.raises(TypeError) as error:
                call()
            assert said in str(error.value)

    run(main())
    with pytest.raises(TypeError, match="Producer: group has to be str, not int"):
        blocking.Producer(1, "127.0.0.1:1")  # type: ignore[arg-type]


def test_a_state_that_is_none() -> None:
    class Words:
        def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
            return "COMMIT_MESSAGE"  # type: ignore[return-value]

        def check_local_transaction(self, message: Message) -> LocalTransactionState:
            return LocalTransactionState.UNKNOW

    producer = blocking.TransactionMQProducer("G", "127.0.0.1:1", Words())
    with pytest.raises(TypeError, match="end_transaction: sent has to be SendResult, not str"):
        producer.end_transaction("x", LocalTransactionState.UNKNOW)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has to be TransactionListener, not int, which has no check_local"):
        blocking.TransactionMQProducer("G", "127.0.0.1:1", 5)  # type: ignore[arg-type]


def test_metaq() -> None:
    async def main() -> None:
        session = MetaMessageSessionFactory(server_url="meta://127.0.0.1:1")
        producer = session.create_producer()
        with pytest.raises(TypeError, match="send_message: message has to be Message, not bytes"):
            await producer.send_message(b"x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="Message: data has to be bytes, not str"):
            await producer.send_message(MetaMessage("t", "text"))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="publish: topic has to be str, not int"):
            await producer.publish(5)  # type: ignore[arg-type]
        await producer.shutdown()

    run(main())


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: Subject(bad),
        lambda bad: Subject("ok").many([bad], {}, int),
        lambda bad: Subject("ok").many((), {bad: 1}, int),
        lambda bad: ClientConfig(access_key=bad),
        lambda bad: ClientConfig(namespace=bad),
        lambda bad: Producer(bad, "127.0.0.1:9876"),
        select_by_hash,
    ],
)
@pytest.mark.parametrize("bad", ["\ud800", b"\xc4\xe3".decode(errors="surrogateescape")])
def test_text_that_utf_8_cannot_hold(call: Callable[[str], object], bad: str):
    """Without it such text would end in a frame that a broker cannot read, or in a traceback of the encoder."""
    with pytest.raises(
        ConfigError, match=r"(name|names|table|access_key|namespace|group|key) holds .* UTF-8"
    ):
        call(bad)
