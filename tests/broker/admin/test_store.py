from __future__ import annotations

import pytest

from mqlake.client.api.broker_api import BrokerAPI
from mqlake.errors import ResponseError
from mqlake.remoting.bodies.admin import CheckRocksdbCqWriteResult, HARuntimeInfo
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.store.files.mapped_file import MappedFile
from tests.broker.live import Peer, on_a_broker
from tests.waiting import PATIENCE_S


def test_units_of_a_queue(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        for _ in range(3):
            await peer.send("T")
        await peer.dispatched()
        told = await api.query_consume_queue(at, "T", 0, 1, 10, "G")
        assert (told.min_queue_index, told.max_queue_index, len(told.queue_data)) == (0, 3, 2)
        assert told.filter_data == "G@T is not online!"
        first, second = told.queue_data
        assert second.physic_offset == first.physic_offset + first.physic_size
        assert (await api.query_consume_queue(at, "T", 0, 3, 1)).queue_data == []
        assert (await api.query_consume_queue(at, "T", 0, 0, -1)).queue_data == []
        with pytest.raises(ResponseError, match="7@T is not exist!"):
            await api.query_consume_queue(at, "T", 7, 0, 1)

    on_a_broker(tmp_path, scene)


def test_counters(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        with pytest.raises(ResponseError, match="The stats <TOPIC_PUT_NUMS> <T> not exist"):
            await api.view_broker_stats_data(at, "TOPIC_PUT_NUMS", "T")
        await peer.send("T")
        await peer.dispatched()
        data = await api.view_broker_stats_data(at, "TOPIC_PUT_NUMS", "T")
        assert data.stats_minute is not None and data.stats_day is not None
        with pytest.raises(ResponseError):
            await api.view_broker_stats_data(at, "NO_SUCH", "T")

    on_a_broker(tmp_path, scene)


def test_queues_of_no_topic_are_cleaned(tmp_path):
    async def scene(peer: Peer) -> None:
        api, at = BrokerAPI(peer.client), peer.address
        for topic in ("T", "U"):
            await api.create_topic(at, TopicConfig(topic_name=topic))
            await peer.send(topic)
        await peer.dispatched()
        peer.controller.broker.topic_config_manager.delete_topic_config("U")
        await api.clean_unused_topic(at)
        queues = peer.controller.broker.store.consume_queues
        assert queues.queues("U") == {} and queues.queues("T")
        await api.clean_expired_consume_queue(at)
        await api.delete_expired_commit_log(at)
        assert queues.queues("T")

    on_a_broker(tmp_path, scene)


def test_no_queues_are_in_rocksdb(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS)
        told = CheckRocksdbCqWriteResult.from_json(answer.body_bytes())
        assert told.check_status == told.CHECK_ERROR and "RocksDB" in (told.check_result or "")

    on_a_broker(tmp_path, scene)


def test_a_master_without_slaves(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.GET_BROKER_HA_STATUS)
        info = HARuntimeInfo.from_json(answer.body_bytes())
        assert (info.master, info.in_sync_slave_nums, info.ha_connection_info) == (True, 0, [])

    on_a_broker(tmp_path, scene)


def test_the_word_to_slaves_is_taken_and_forgotten(tmp_path):
    async def scene(peer: Peer) -> None:
        assert (await peer.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET)).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path, scene)


def test_the_log_is_read_ahead_or_not(tmp_path, monkeypatch):
    asked: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        MappedFile, "set_read_ahead", lambda self, enabled: asked.append((self.file_from_offset, enabled))
    )

    async def scene(peer: Peer) -> None:
        async def mode(value: str) -> RemotingCommand:
            request = RemotingCommand.create_request(RequestCode.SET_COMMITLOG_READ_MODE)
            request.ext_fields["READ_AHEAD_MODE"] = value
            return await peer.client.invoke(peer.address, request, PATIENCE_S)

        await peer.send("T", b"x")
        wrong = await mode("7")
        assert (wrong.code, asked) == (ResponseCode.INVALID_PARAMETER, [])
        off = await mode("1")
        assert (off.code, off.remark) == (0, "set commitlog readahead mode success, mode: 1")
        assert asked and {each for _, each in asked} == {False}
        asked.clear()
        size = peer.controller.broker.store_config.mapped_file_size_commit_log
        for _ in range(3):
            await peer.send("T", bytes(size // 2))
        assert (size, False) in asked  # a file that came later
        asked.clear()
        assert (await mode("0")).code == 0
        assert asked[0] == (0, True) and {each for _, each in asked} == {True}

    on_a_broker(tmp_path, scene)


def test_a_log_that_is_not_read_ahead_from_the_start(tmp_path, monkeypatch):
    asked: list[bool] = []
    monkeypatch.setattr(MappedFile, "set_read_ahead", lambda self, enabled: asked.append(enabled))

    async def scene(peer: Peer) -> None:
        assert (await peer.send("T")).code == 0
        assert asked and not any(asked)

    on_a_broker(tmp_path, scene, dataReadAheadEnable="false")


def test_there_are_no_pop_records_to_export_or_they_are_rocketmqs(tmp_path):
    async def scene(peer: Peer) -> None:
        assert (await peer.ask(RequestCode.POP_ROLLBACK)).code == ResponseCode.SUCCESS
        left = tmp_path / "store" / "kvStore"
        left.mkdir()
        refused = await peer.ask(RequestCode.POP_ROLLBACK)
        assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert str(left) in (refused.remark or "")

    on_a_broker(tmp_path, scene)
