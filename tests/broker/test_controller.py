from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path

import pytest
import trustme

from mqlake.errors import ConfigError, MqlakeError, NotAStoreError, StoreLockedError
from mqlake.message import MessageExtBrokerInner
from mqlake.remoting.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.loop import run
from mqlake.remoting.tls import client_context
from tests.broker.live import Peer, make_controller, on_a_broker, pull_header, running, send_header
from tests.ports import free_ports
from tests.waiting import until_async


def test_everything_is_there_after_a_restart(tmp_path):
    async def scene() -> None:
        async with (
            running(tmp_path, flushConsumerOffsetInterval="20") as controller,
            RemotingClient() as client,
        ):
            peer = Peer(controller, client)
            await peer.send("T", b"kept")
            await peer.dispatched()
            await peer.pull("T", 0, commit_offset=1, sys_flag=5)
            await until_async((tmp_path / "store/config/consumerOffset.json").exists)
        async with running(tmp_path) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            assert (await peer.pull("T", 0)).code == ResponseCode.SUCCESS
            assert controller.broker.consumer_offset_manager.query_offset("CG", "T", 0) == 1
            assert "CG" in controller.broker.subscription_group_manager.subscription_group_table
            assert (await peer.send("T")).ext_fields["queueOffset"] == "1"

    run(scene())


def test_the_vip_port_is_a_second_address(tmp_path):
    """RocketMQ's clients send to it with vipChannelEnabled."""
    port = free_ports(3) + 2

    async def scene(peer: Peer) -> None:
        assert peer.controller.port == port
        vip = f"127.0.0.1:{port - 2}"
        for request in (
            RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"x"),
            RemotingCommand.create_request(RequestCode.PULL_MESSAGE, pull_header("T")),
        ):
            assert (await peer.client.invoke(vip, request, 60)).code == ResponseCode.SUCCESS
        assert len(peer.controller.server.connections) == 1

    on_a_broker(tmp_path, scene, listenPort=str(port))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port - 2))


def test_an_unknown_request(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.ask(9999)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "9999" in answer.remark

    on_a_broker(tmp_path, scene)


def test_a_start_that_fails_leaves_nothing_behind(tmp_path):
    async def scene() -> None:
        async with running(tmp_path) as first:
            with pytest.raises(StoreLockedError):
                await make_controller(tmp_path).start()
            taken = make_controller(tmp_path / "other", listenPort=str(first.port))
            with pytest.raises(ConfigError, match=str(first.port)):
                await taken.start()
            assert not (tmp_path / "other").exists()
            assert (
                taken.broker.store.put_message(MessageExtBrokerInner("T")).reason
                == "the store is not running"
            )
        async with running(tmp_path / "other"):
            pass

    run(scene())


def test_a_file_as_its_directory_is_called_so(tmp_path: Path) -> None:
    """The error was about a journal of orderly pop that nobody had named."""
    (tmp_path / "store").touch()
    with pytest.raises(NotAStoreError, match="store: a store is a directory"):
        make_controller(tmp_path)


def written_times(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]}


@pytest.mark.parametrize("refused_for", ["users", "plain_acl", "topics", "metrics port", "metrics sources"])
def test_a_refused_start_writes_nothing(tmp_path: Path, refused_for: str) -> None:
    async def scene(taken: int) -> None:
        metrics = {"metricsExporterType": "PROM", "metricsPromExporterPort": str(taken)}
        bad, settings = {
            "users": ("config/accessControl.jsonl", {"authenticationEnabled": "true"}),
            "plain_acl": ("plain_acl.yml", {"aclEnable": "true", "aclDirectory": str(tmp_path / "store")}),
            "topics": ("config/topics.json", {}),
            "metrics port": ("", metrics),
            "metrics sources": (
                "",
                {**metrics, "metricsPromExporterPort": "0", "metricsSourceIps": "nowhere"},
            ),
        }[refused_for]
        async with running(tmp_path) as controller, RemotingClient() as client:
            await Peer(controller, client).send("T")
        for derived in ("consumequeue", "index", "checkpoint"):  # a start would make them again
            (tmp_path / "store" / derived).rename(tmp_path / derived)
        if bad:
            (tmp_path / "store" / bad).write_text("[")
            (tmp_path / "store" / f"{bad}.bak").unlink(missing_ok=True)
        before = written_times(tmp_path)
        with pytest.raises(MqlakeError):
            await make_controller(tmp_path, **settings).start()
        assert written_times(tmp_path) == before

    with socket.create_server(("127.0.0.1", 0)) as taken:
        run(scene(taken.getsockname()[1]))


def test_a_stop_is_a_stop(tmp_path):
    async def scene() -> None:
        async with running(tmp_path) as controller, RemotingClient() as client:
            await Peer(controller, client).send("T")
            before = asyncio.all_tasks()
            await controller.stop()
            await controller.stop()
            assert asyncio.all_tasks() <= before
        assert not (tmp_path / "store" / "abort").exists()

    run(scene())


def test_acknowledged_sends_survive_a_stop_under_load(tmp_path):
    async def scene() -> None:
        acknowledged = []
        async with running(tmp_path, flushDiskType="SYNC_FLUSH") as controller, RemotingClient() as client:
            peer = Peer(controller, client)

            async def load(number: int) -> None:
                for n in range(10_000):
                    try:
                        answer = await peer.send("T", b"%d-%d" % (number, n))
                    except Exception:
                        return
                    if answer.code != ResponseCode.SUCCESS:
                        return
                    acknowledged.append(answer.ext_fields["msgId"])

            sending = [asyncio.create_task(load(number)) for number in range(20)]
            await until_async(lambda: len(acknowledged) > 200)
            await controller.stop()
            await asyncio.wait(sending)
        async with running(tmp_path, flushDiskType="SYNC_FLUSH") as controller:
            for message_id in acknowledged:
                assert controller.broker.store.look_message_by_id(message_id).topic == "T"

    run(scene())


def test_tls_on_the_same_port(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )

    async def scene(peer: Peer) -> None:
        context = client_context(trust_cert_path=str(tmp_path / "ca.pem"))
        async with RemotingClient(tls=context) as client:
            secret = Peer(peer.controller, client)
            assert (await secret.send("T", b"x" * 100_000)).code == ResponseCode.SUCCESS
            await until_async(lambda: peer.controller.broker.store.max_offset_in_queue("T", 0) == 1)
            waiting = asyncio.ensure_future(secret.pull("T", 1, sys_flag=6))
            await until_async(lambda: peer.controller.pull_request_hold_service.held_count == 1)
            assert (await peer.send("T", b"plain")).code == ResponseCode.SUCCESS
            assert b"plain" in (await waiting).body_bytes()
            assert len((await secret.pull("T")).body_bytes()) > 100_000

    path = str(tmp_path / "server.pem")
    on_a_broker(tmp_path, scene, **{"tls.server.certPath": path, "tls.server.keyPath": path})


def test_topics_whose_table_is_gone_are_made_again_from_the_queues(tmp_path: Path, caplog) -> None:
    """A broker that is ready and knows no topic leaves every message unreachable, without a line."""

    async def scene() -> None:
        async with running(tmp_path) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            table = controller.broker.topic_config_manager
            table.update_topic_config(
                TopicConfig(
                    topic_name="Batches",
                    read_queue_nums=2,
                    write_queue_nums=2,
                    attributes={"+queue.type": "BatchCQ"},
                )
            )
            for topic, queue_id in (("T", 0), ("T", 2), ("Batches", 1)):
                await peer.send(topic, b"kept", queue_id=queue_id)
            await peer.dispatched()
        path = tmp_path / "store/config/topics.json"
        before = TopicConfigSerializeWrapper.from_json(path.read_bytes()).topic_config_table
        for each in path.parent.glob("topics.json*"):
            each.unlink()
        caplog.clear()
        async with running(tmp_path) as controller, RemotingClient() as client:
            (line,) = [text for text in caplog.messages if "topics were made again" in text]
            assert str(path) in line and "T (3)" in line and "Batches (2)" in line
            peer = Peer(controller, client)
            assert (await peer.pull("T", queue_id=2)).code == ResponseCode.SUCCESS
        after = TopicConfigSerializeWrapper.from_json(path.read_bytes()).topic_config_table
        assert before.keys() == after.keys() and before["Batches"] == after["Batches"]
        for name, (queues, attributes) in {
            "T": (3, {}),
            "Batches": (2, {"queue.type": "BatchCQ"}),
        }.items():
            made = after[name]
            assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (queues, queues, 6)
            assert made.attributes == attributes
        caplog.clear()
        async with running(tmp_path):
            assert "made again" not in caplog.text

    run(scene())


def test_topics_and_queues_that_are_gone_come_back_from_the_log(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as controller, RemotingClient() as client:
            await Peer(controller, client).send("T", b"kept")
        shutil.rmtree(tmp_path / "store/config")
        shutil.rmtree(tmp_path / "store/consumequeue")
        (tmp_path / "store/queue-ends.json").unlink()
        async with running(tmp_path) as controller, RemotingClient() as client:
            assert (await Peer(controller, client).pull("T", 0)).code == ResponseCode.SUCCESS

    run(scene())
