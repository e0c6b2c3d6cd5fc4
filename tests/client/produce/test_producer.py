"""The producer against brokers that answer as the test says: tries, refusals, limits, and a client's other failures."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trustme

from mqlake.base.background import KEEPS_FAILING, failing
from mqlake.client import (
    ClientConfig,
    Message,
    MessageQueue,
    MQClientInstance,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    SendResult,
    SendStatus,
    create_reply_message,
    mq_client,
    select_by_hash,
)
from mqlake.errors import (
    ClientClosedError,
    ConfigError,
    IllegalTopicError,
    MessageError,
    MessageTooLargeError,
    MqlakeError,
    NoNameServerError,
    PropertiesTooLargeError,
    SendError,
    TopicNotFoundError,
)
from mqlake.remoting.bodies.route import BrokerData, QueueData, TopicRouteData
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.namesrv import GetRouteInfoRequestHeader
from mqlake.remoting.headers.produce import SendMessageRequestHeaderV2, SendMessageResponseHeader
from mqlake.remoting.loop import run
from mqlake.remoting.server import RemotingServer
from mqlake.remoting.tls import TlsConfig, TlsMode, client_context
from tests.waiting import until_async

Answers = Callable[[str, int], int | None]
"""(broker name, which send of all) → its response code; None: no answer."""


class Cluster:
    """A name server and two brokers, a and b, with topic T: all in one server process of the test's."""

    def __init__(self, answers: Answers, tls: TlsConfig | None = None) -> None:
        self.answers = answers
        self.tls = tls
        self.sends: list[tuple[str, SendMessageRequestHeaderV2]] = []
        self.fields: list[dict[str, str]] = []
        self.servers: dict[str, RemotingServer] = {}
        self.addresses: dict[str, str] = {}

    async def start(self) -> None:
        for name in ("namesrv", "a", "b"):
            server = self.servers[name] = RemotingServer(tls=self.tls)
            server.processors.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
            server.processors.register(RequestCode.HEART_BEAT, lambda *_: RemotingCommand.create_response())
            server.processors.register(
                RequestCode.UNREGISTER_CLIENT, lambda *_: RemotingCommand.create_response()
            )
            server.processors.register(
                (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), self._sender(name)
            )
            await server.start("127.0.0.1", 0)
            self.addresses[name] = f"127.0.0.1:{server.port}"

    def _route(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        topic = command.decode_header(GetRouteInfoRequestHeader).topic
        if topic != "T":
            return RemotingCommand.create_response(ResponseCode.TOPIC_NOT_EXIST, "none")
        route = TopicRouteData(
            queue_datas=[
                QueueData(broker_name=b, read_queue_nums=2, write_queue_nums=2, perm=6) for b in "ab"
            ],
            broker_datas=[BrokerData(broker_name=b, broker_addrs={0: self.addresses[b]}) for b in "ab"],
        )
        return RemotingCommand.create_response(body=route.to_json(strict=True))

    def _sender(self, name: str) -> Callable[[Connection, RemotingCommand], RemotingCommand | None]:
        def send(_: Connection, command: RemotingCommand) -> RemotingCommand | None:
            header = command.decode_header(SendMessageRequestHeaderV2)
            self.sends.append((name, header))
            self.fields.append(dict(command.ext_fields))
            code = self.answers(name, len(self.sends) - 1)
            if code is None:
                return None
            answer = SendMessageResponseHeader(msg_id="M", queue_id=header.queue_id, queue_offset=5)
            return RemotingCommand.create_response(code, f"code {code}", answer)

        return send

    async def stop(self, grace_s: float = 3.0) -> None:
        for server in self.servers.values():
            await server.stop(grace_s)


@contextlib.asynccontextmanager
async def cluster(answers: Answers, **settings: object) -> AsyncIterator[tuple[Cluster, Producer]]:
    servers = Cluster(answers)
    await servers.start()
    try:
        config = ProducerConfig(**settings)  # type: ignore[arg-type]
        async with Producer("G", servers.addresses["namesrv"], config) as producer:
            yield servers, producer
    finally:
        await servers.stop()


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
def test_another_broker_is_tried(code: int) -> None:
    async def main() -> None:
        async with cluster(lambda _, n: code if n == 0 else 0) as (servers, producer):
            result = await producer.send(Message("T", b"x"))
            assert result.send_status is SendStatus.SEND_OK and result.queue_offset == 5
            (first, _), (second, header) = servers.sends
            assert {first, second} == {"a", "b"} and header.broker_name == second
            assert result.message_queue.broker_name == second

    run(main())


def test_a_refusal_for_good_is_not_tried_again() -> None:
    async def main() -> None:
        async with cluster(lambda *_: 13) as (servers, producer):
            with pytest.raises(SendError, match=r"not stored, tried once: [ab]: code 13") as error:
                await producer.send(Message("T", b"x"))
            assert error.value.code == 13 and len(servers.sends) == 1

    run(main())


def test_three_tries_and_what_came_of_each() -> None:
    async def main() -> None:
        async with cluster(lambda *_: 14) as (servers, producer):
            with pytest.raises(SendError, match="tried 3 times") as error:
                await producer.send(Message("T", b"x"))
            assert [broker for broker, _ in error.value.tried] == [broker for broker, _ in servers.sends]
            assert len({broker for broker, _ in servers.sends[:2]}) == 2
            assert all(str(error.value).count(f"{tried}: ") == 1 for tried in dict(error.value.tried))
            # a queue of the caller's choice is tried once
            queue = (await producer.fetch_publish_message_queues("T"))[0]
            with pytest.raises(SendError, match="tried once"):
                await producer.send(Message("T", b"x"), queue=queue)

    run(main())


def test_a_broker_that_is_gone_and_one_that_says_nothing() -> None:
    async def main() -> None:
        async with cluster(lambda name, _: 0 if name == "b" else None) as (servers, producer):
            queues = await producer.fetch_publish_message_queues("T")
            with pytest.raises(SendError, match=r"no answer within 0\.\d+ s") as error:
                await producer.send(Message("T", b"x"), queue=queues[0], timeout_s=0.5)
            assert error.value.code is None
            await servers.servers["a"].stop()
            for _ in range(4):
                assert (await producer.send(Message("T", b"x"))).message_queue.broker_name == "b"

    run(main())


@pytest.mark.parametrize("status", [s for s in SendStatus if s is not SendStatus.SEND_OK])
def test_stored_but_not_as_safe_as_wanted(status: SendStatus) -> None:
    async def main() -> None:
        async with cluster(lambda *_: status.value) as (servers, producer):
            assert (await producer.send(Message("T", b"x"))).send_status is status and len(servers.sends) == 1
        async with cluster(lambda *_: status.value, retry_another_broker_when_not_store_ok=True) as (
            servers,
            producer,
        ):
            assert (await producer.send(Message("T", b"x"))).send_status is status and len(servers.sends) == 3

    run(main())


def test_the_time_of_a_send_begins_with_its_turn() -> None:
    async def main() -> None:
        silent = {0, 2}
        settings = {"send_msg_timeout_s": 1.0, "back_pressure_for_async_send_num": 1, "auto_batch": False}
        async with cluster(lambda _, n: None if n in silent else 0, **settings) as (_, producer):
            queue = (await producer.fetch_publish_message_queues("T"))[0]
            sends = (producer.send(Message("T", b"x"), queue=queue) for _ in range(4))
            first, second, third, fourth = await asyncio.gather(*sends, return_exceptions=True)
            assert str(first).endswith("no answer within 1 s")
            assert isinstance(second, SendResult) and isinstance(fourth, SendResult)
            said = r"topic T: not stored, tried once: a: 127.0.0.1:\d+: no answer within 1 s "
            where = r"\([\d.]+ s in the producer's queue before, 0 other sends in flight\)"
            assert re.fullmatch(said + where, str(third))

    run(main())


def test_sends_at_the_same_time_travel_in_batches_where_that_makes_no_difference() -> None:
    async def main() -> None:
        async with cluster(lambda *_: 0, max_message_size=9000) as (servers, producer):
            alone = [Message("T", b"x") for _ in range(5)]
            alone[0].delay_time_level = 1
            alone[1].properties["TIMER_DELAY_SEC"] = "9"
            alone[2].properties["TRAN_MSG"] = "true"
            alone[3].properties["INNER_MULTI_DISPATCH"] = "a"
            alone[4].body = b"x" * 5000
            await asyncio.gather(*(producer.send(message) for message in alone))
            await asyncio.gather(*(producer.send(Message("T", b"x"), timeout_s=9) for _ in range(5)))
            by_key = select_by_hash("k")
            await asyncio.gather(*(producer.send(Message("T", b"x"), selector=by_key) for _ in range(5)))
            assert [header.batch for _, header in servers.sends] == [False] * 15
            await producer.send(Message("T", b"x"))
            assert not servers.sends[-1][1].batch
            await asyncio.gather(*(producer.send(Message("T", b"x" * 100)) for _ in range(50)))
            assert servers.sends[-1][1].batch and len(servers.sends) < 30

    run(main())


def test_one_message_that_cannot_be_sent_fails_alone() -> None:
    async def main() -> None:
        async with cluster(lambda *_: 0) as (_, producer):
            messages = [Message("T", b"x") for _ in range(20)]
            messages[7].properties["p"] = "a\x01b"
            results = await asyncio.gather(*map(producer.send, messages), return_exceptions=True)
            assert [i for i, each in enumerate(results) if isinstance(each, MessageError)] == [7]
            assert sum(isinstance(each, SendResult) for each in results) == 19

    run(main())


def test_a_message_without_a_body_is_sent_where_that_is_meant() -> None:
    """A tombstone; in a batch a broker that refuses it would refuse the others, too."""

    async def main() -> None:
        async with cluster(lambda *_: 0, allow_empty_body=True) as (servers, producer):
            await asyncio.gather(*(producer.send(Message("T", b"", keys="k")) for _ in range(5)))
            assert [header.batch for _, header in servers.sends] == [False] * 5

    run(main())


def test_a_slow_broker_is_left_out() -> None:
    async def main() -> None:
        async with cluster(lambda name, _: 14 if name == "a" else 0, send_latency_fault_enable=True) as (
            servers,
            producer,
        ):
            for _ in range(8):
                await producer.send(Message("T", b"x"))
            assert [broker for broker, _ in servers.sends].count("a") <= 1

    run(main())


def test_messages_that_cannot_be_sent() -> None:
    async def main() -> None:
        async with cluster(lambda *_: 0, max_message_size=100) as (servers, producer):
            delayed = Message("T", b"x")
            delayed.delay_time_level = 1
            half_a_character = Message("T", b"x")
            half_a_character.properties["colour"] = "\ud800"
            hasty = Message("T", b"x")
            hasty.wait_store_msg_ok = False
            for kind, messages in [
                (IllegalTopicError, [Message("a b", b"x")]),
                (IllegalTopicError, [Message("SCHEDULE_TOPIC_XXXX", b"x")]),
                (MessageError, [Message("T", b"")]),
                (MessageTooLargeError, [Message("T", b"x" * 101)]),
                (PropertiesTooLargeError, [Message("T", b"x", properties={"p": "ü" * 16384})]),
                (MessageError, [Message("T", b"x", properties={"p": "a\x02b"})]),
                (MessageError, [Message("T", b"x", properties={"p\x01": "a"})]),
                (MessageError, [Message("T", b"x"), Message("T", b"x", properties={"p": "a\x01b"})]),
                (MessageTooLargeError, [Message("T", b"x" * 60), Message("T", b"x" * 60)]),
                (MessageError, [Message("T", b"x"), Message("U", b"x")]),
                (MessageError, [Message("T", b"x"), hasty]),
                (MessageError, [delayed, delayed]),
                (MessageError, [half_a_character]),
                (MessageError, [Message("T", b"x"), half_a_character]),
                (MessageError, [Message("%RETRY%G", b"x"), Message("%RETRY%G", b"x")]),
            ]:
                with pytest.raises(kind):
                    await (
                        producer.send(messages[0]) if len(messages) == 1 else producer.send_batch(messages)
                    )
            with pytest.raises(MessageError, match="empty"):
                await producer.send_batch([])
            with pytest.raises(MessageError, match="not a request"):
                create_reply_message(Message("T"), b"x")
            assert servers.sends == []

    run(main())


def test_a_topic_that_nobody_has_or_makes() -> None:
    async def main() -> None:
        async with cluster(lambda *_: 0) as (_, producer):
            with pytest.raises(TopicNotFoundError, match="none makes topics by itself"):
                await producer.send(Message("U", b"x"))

    run(main())


def test_name_servers() -> None:
    async def main() -> None:
        async with cluster(lambda *_: 0) as (servers, _):
            addresses = f"127.0.0.1:1;{servers.addresses['namesrv']}"
            async with Producer("G2", addresses) as producer:
                for _ in range(3):
                    producer.client.topic_route_table.clear()
                    assert (await producer.send(Message("T", b"x"))).queue_offset == 5
            async with Producer("G3", "127.0.0.1:1;127.0.0.1:2") as producer:
                with pytest.raises(
                    NoNameServerError, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: |0\.1:2: .*0\.1:1: "
                ):
                    await producer.send(Message("T", b"x"))
            consumer = PushConsumer("G4", "127.0.0.1:1", lambda messages, context: None)
            consumer.subscribe("T")
            with pytest.raises(NoNameServerError):
                await consumer.start()
        with pytest.raises(ConfigError):
            Producer("G5", " ; ")

    run(main())


def test_tls_and_signatures(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    path = str(tmp_path / "server.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(path)

    async def main() -> None:
        servers = Cluster(lambda *_: 0, TlsConfig(mode=TlsMode.ENFORCING, cert_path=path, key_path=path))
        await servers.start()
        try:
            where = ClientConfig(
                namesrv_addr=servers.addresses["namesrv"],
                tls=client_context(trust_cert_path=str(tmp_path / "ca.pem")),
                access_key="key",
                secret_key="secret",
            )
            async with Producer("G", where) as producer:
                assert (await producer.send(Message("T", b"x"))).queue_offset == 5
            assert servers.fields[0]["AccessKey"] == "key" and len(servers.fields[0]["Signature"]) == 28
            async with Producer("G", servers.addresses["namesrv"]) as plain:
                with pytest.raises(NoNameServerError):
                    await plain.send(Message("T", b"x"))
        finally:
            await servers.stop()

    run(main())


def test_before_the_start_and_after_the_end() -> None:
    async def main() -> None:
        async with cluster(lambda *_: 0) as (servers, producer):
            other = Producer("H", servers.addresses["namesrv"])
            with pytest.raises(ClientClosedError, match="not started"):
                await other.send(Message("T", b"x"))
            async with other:
                await other.start()
                await other.send(Message("T", b"x"))
            with pytest.raises(ClientClosedError, match="closed"):
                await other.send(Message("T", b"x"))
            with pytest.raises(ClientClosedError, match="make a new one"):
                await other.start()
            await other.close()
            # one client, two of a group
            with pytest.raises(ClientClosedError, match="has a producer of group G"):
                await Producer("G", producer.client).start()
            assert (await producer.send(Message("T", b"x"))).queue_offset == 5
            pull = PullConsumer("P", producer.client)
            pull.subscribe("T")
            with pytest.raises(ClientClosedError):
                await pull.assign([MessageQueue(topic="T", broker_name="a", queue_id=0)])

    run(main())


def test_a_closed_client_starts_nothing() -> None:
    async def main() -> None:
        async with MQClientInstance(ClientConfig(namesrv_addr="127.0.0.1:1")) as client:
            pass
        with pytest.raises(ClientClosedError):
            await Producer("G", client).start()

    run(main())


class FailingAtFirst:
    """A consumer whose first rebalance fails, and whose commits do until `is_well`."""

    group = "G"

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.rebalances = self.commits = 0
        self.is_well = False

    async def do_rebalance(self) -> bool:
        self.rebalances += 1
        if self.rebalances == 1:
            raise self.error
        return True

    async def persist_consumer_offset(self) -> None:
        self.commits += 1
        if not self.is_well:
            raise self.error


@pytest.mark.parametrize("error", [ZeroDivisionError("strategy"), MemoryError(), ConfigError("x")])
def test_no_error_of_one_consumer_ends_the_clients_work(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it an allocate strategy that raises once ends all receiving, and an error the commits of all offsets."""
    monkeypatch.setattr(mq_client, "REBALANCE_AGAIN_S", 0.0)

    async def main() -> None:
        bad, good = FailingAtFirst(error), FailingAtFirst(error)
        good.rebalances, good.is_well = 100, True
        client = MQClientInstance(
            ClientConfig(namesrv_addr="127.0.0.1:1", persist_consumer_offset_interval_s=0.01)
        )
        client.consumer_table = {"bad": bad, "good": good}  # type: ignore[dict-item]
        await client.start()
        client.rebalance_immediately()
        await until_async(lambda: any("commits of offsets" in each for each in failing()))
        assert bad.commits >= KEEPS_FAILING
        bad.is_well, before = True, bad.commits
        await until_async(lambda: bad.rebalances > 1 and bad.commits > before + 1)
        assert good.rebalances > 101 and good.commits > KEEPS_FAILING
        assert not any("commits of offsets" in each for each in failing())
        await client.close()

    run(main())
    said = [record for record in caplog.records if "group G: rebalancing: " in record.getMessage()]
    assert [record.levelname for record in said][:1] == ["WARNING"]
    assert bool(said[0].exc_info) is not isinstance(error, MqlakeError)
