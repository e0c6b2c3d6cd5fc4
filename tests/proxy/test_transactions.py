"""Transactions over gRPC: ended by the client, or recovered when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code, MessageType, TransactionResolution, TransactionSource
from mqlake.proxy.values import duration
from tests.proxy.live import Peer, message, on_a_broker, producer_settings, resource

pytestmark = pytest.mark.usefixtures("each_server")

COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK


def prepared(message_id: str, **more: object) -> object:
    return message("X", b"half", message_id, message_type=MessageType.TRANSACTION, **more)


def end(entry: v2.SendResultEntry, resolution: TransactionResolution) -> v2.EndTransactionRequest:
    return v2.EndTransactionRequest(
        topic=resource("X"),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=resolution,
        source=TransactionSource.SOURCE_CLIENT,
    )


@pytest.mark.parametrize(("resolution", "visible"), [(COMMIT, 1), (ROLLBACK, 0)])
def test_a_client_ends_its_transaction(tmp_path: Path, resolution: TransactionResolution, visible: int):
    async def scene(peer: Peer) -> None:
        peer.create_topic("X", "TRANSACTION")
        (entry,) = (await peer.send(prepared("tx"))).entries
        assert entry.transaction_id
        assert await peer.records("X") == []
        assert (await peer.call("EndTransaction", end(entry, resolution))).status.code == Code.OK
        found = await peer.records("X", visible)
        assert [record.uniq_key for record in found] == ["tx"] * visible

    on_a_broker(tmp_path, scene)


def test_an_open_transaction_is_asked_about(tmp_path: Path):
    """The broker's question reaches the client, whose answer works with the id that the question brought."""

    async def scene(peer: Peer) -> None:
        peer.create_topic("X", "TRANSACTION")
        stream, _ = await peer.settle(producer_settings("X"))
        await peer.send(prepared("tx", orphaned_transaction_recovery_duration=duration(1)))
        command = (await stream.read()).recover_orphaned_transaction_command
        assert command.message.system_properties.message_id == "tx"
        assert command.message.body == b"half"
        request = v2.EndTransactionRequest(
            topic=resource("X"),
            message_id="tx",
            transaction_id=command.transaction_id,
            resolution=COMMIT,
            source=TransactionSource.SOURCE_SERVER_CHECK,
        )
        assert (await peer.call("EndTransaction", request)).status.code == Code.OK
        assert len(await peer.records("X", 1)) == 1
        stream.cancel()

    on_a_broker(tmp_path, scene, transactionCheckInterval="200", transactionTimeOut="0")


def test_forged_ids(tmp_path: Path):
    async def scene(peer: Peer) -> None:
        for transaction_id in ("", " ", "garbage", "djEgYnJva2VyLWE="):
            request = v2.EndTransactionRequest(
                topic=resource("X"), transaction_id=transaction_id, resolution=COMMIT
            )
            answer = await peer.call("EndTransaction", request)
            assert answer.status.code == Code.INVALID_TRANSACTION_ID, transaction_id

    on_a_broker(tmp_path, scene)
