"""Operators' and slaves' requests on the store: units of queues, counters, timers, and cleaning at any hour."""

from __future__ import annotations

import asyncio
import logging
import os

from mqlake.broker.broker import Broker
from mqlake.errors import ResponseError
from mqlake.message import LMQ_PREFIX, is_system_topic
from mqlake.remoting.bodies.admin import (
    BrokerStatsData,
    BrokerStatsItem,
    CheckRocksdbCqWriteResult,
    ConsumeQueueData,
    QueryConsumeQueueResponseBody,
)
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.admin import QueryConsumeQueueRequestHeader, ViewBrokerStatsDataRequestHeader
from mqlake.remoting.processors import answers
from mqlake.store.broker_stats import StatsSnapshot
from mqlake.store.timer.timer_message_store import TimerMessageStore

logger = logging.getLogger(__name__)

POP_STORE = "kvStore"
"""The directory of RocketMQ's pop records with popConsumerKVServiceEnable."""
_READ_AHEAD = {"0": True, "1": False}
"""MADV_NORMAL and MADV_RANDOM."""
UNITS_MAX = 1 << 16
"""Maximum units in one answer: more would not fit into a frame."""


class StoreAdmin:
    def __init__(self, broker: Broker, timers: TimerMessageStore | None) -> None:
        self._broker = broker
        self._timers = timers

    @answers(RequestCode.QUERY_CONSUME_QUEUE)
    def query_consume_queue(self, header: QueryConsumeQueueRequestHeader) -> RemotingCommand:
        broker, topic = self._broker, header.topic or ""
        queue = broker.store.consume_queues.get(topic, header.queue_id)
        if queue is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{topic} is not exist!")
        low, high = queue.min_offset_in_queue, queue.max_offset_in_queue
        body = QueryConsumeQueueResponseBody(min_queue_index=low, max_queue_index=high)
        if header.consumer_group is not None:
            subscription = broker.consumer_manager.find_subscription_data(header.consumer_group, topic)
            body.subscription_data = subscription
            if subscription is None:
                body.filter_data = f"{header.consumer_group}@{topic} is not online!"
        if not low <= header.index < high:
            return RemotingCommand.create_response(
                remark=f"Index {header.index} of {header.queue_id}@{topic} is not exist!", body=body.to_json()
            )
        units = queue.get_range(header.index, max(0, min(header.count, UNITS_MAX)))
        body.queue_data = [
            ConsumeQueueData(physic_offset=offset, physic_size=size, tags_code=tags_code)
            for offset, size, tags_code in zip(
                units["offset"].tolist(), units["size"].tolist(), units["tags_code"].tolist(), strict=True
            )
        ]
        return RemotingCommand.create_response(body=body.to_json())

    @answers(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS)
    def check_rocksdb_cq_write_progress(self) -> RemotingCommand:
        result = CheckRocksdbCqWriteResult(
            check_result="this broker writes no consume queues to RocksDB",
            check_status=CheckRocksdbCqWriteResult.CHECK_ERROR,
        )
        return RemotingCommand.create_response(body=result.to_json())

    @answers(RequestCode.VIEW_BROKER_STATS_DATA)
    def view_broker_stats_data(self, header: ViewBrokerStatsDataRequestHeader) -> RemotingCommand:
        item = self._broker.broker_stats_manager.item(header.stats_name, header.stats_key)
        if item is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        body = BrokerStatsData(
            stats_minute=_stats_item(item.minute.difference()),
            stats_hour=_stats_item(item.hour.difference()),
            stats_day=_stats_item(item.day.difference()),
        )
        return RemotingCommand.create_response(body=body.to_json())

    # --- timers

    def _existing_timers(self) -> TimerMessageStore:
        if self._timers is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, "The timer message store is null: timerWheelEnable is false"
            )
        return self._timers

    @answers(RequestCode.GET_TIMER_CHECK_POINT)
    def get_timer_check_point(self) -> RemotingCommand:
        """60 GET_TIMER_CHECK_POINT: the 56 bytes of the checkpoint."""
        return RemotingCommand.create_response(body=self._existing_timers().checkpoint_bytes())

    @answers(RequestCode.GET_TIMER_METRICS)
    def get_timer_metrics(self) -> RemotingCommand:
        """61 GET_TIMER_METRICS: how many messages wait, by topic."""
        return RemotingCommand.create_response(body=self._existing_timers().metrics.encode())

    # --- cleaning

    @answers(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    async def clean_expired_consume_queue(self, connection: Connection) -> RemotingCommand:
        """306 CLEAN_EXPIRED_CONSUMEQUEUE: answered after the cleaning."""
        store = self._broker.store
        deleted = await asyncio.to_thread(store.consume_queues.clean_expired, store.min_phy_offset)
        logger.info("%s: %d expired consume queues are deleted", connection.remote_address, deleted)
        return RemotingCommand.create_response()

    @answers(RequestCode.DELETE_EXPIRED_COMMITLOG)
    def delete_expired_commit_log(self, connection: Connection) -> RemotingCommand:
        """329 DELETE_EXPIRED_COMMITLOG: the next cleaning rounds do it, at any hour."""
        logger.info("%s: expired commit log files may go now", connection.remote_address)
        self._broker.store.execute_delete_files_manually()
        return RemotingCommand.create_response()

    @answers(RequestCode.CLEAN_UNUSED_TOPIC)
    async def clean_unused_topic(self, connection: Connection) -> RemotingCommand:
        """316 CLEAN_UNUSED_TOPIC: deletes queues of topics that no longer exist; answered when that is done."""
        broker = self._broker
        queues = broker.store.consume_queues
        unused = [
            topic
            for topic in queues.topics()
            if topic not in broker.topic_config_manager.topic_config_table
            and not is_system_topic(topic)
            and not topic.startswith(LMQ_PREFIX)
        ]
        for topic in unused:
            logger.info(
                "%s: the queues of %s, which is no longer a topic, are deleted",
                connection.remote_address,
                topic,
            )
            await asyncio.to_thread(queues.delete_topic, topic)
        return RemotingCommand.create_response()

    # --- the log's files

    @answers(RequestCode.SET_COMMITLOG_READ_MODE)
    async def set_commit_log_read_ahead_mode(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """2004 SET_COMMITLOG_READ_MODE: turns the kernel's read-ahead in the log on or off, until the next start."""
        mode = request.ext_fields.get("READ_AHEAD_MODE", "")
        if mode not in _READ_AHEAD:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"READ_AHEAD_MODE is {mode[:80]!r}: it can be 0 (read ahead) or 1 (do not)",
            )
        logger.info("%s: the log is read ahead: %s", connection.remote_address, _READ_AHEAD[mode])
        await asyncio.to_thread(self._broker.store.set_data_read_ahead, _READ_AHEAD[mode])
        return RemotingCommand.create_response(remark=f"set commitlog readahead mode success, mode: {mode}")

    @answers(RequestCode.POP_ROLLBACK)
    def export_pop_records(self) -> RemotingCommand:
        """200056 POP_ROLLBACK: moves pop records from RocketMQ's separate store to topics.

        Nothing to do without such a store, which is RocketMQ's default; mqlake does not read one."""
        path = os.path.join(self._broker.store_config.store_path_root_dir, POP_STORE)
        if os.path.isdir(path):
            raise ResponseError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"{path} holds pop records in RocksDB, which only RocketMQ's broker can export",
            )
        return RemotingCommand.create_response()


def _stats_item(snapshot: StatsSnapshot) -> BrokerStatsItem:
    return BrokerStatsItem(sum=snapshot.sum, tps=snapshot.tps, avgpt=snapshot.avgpt)
