"""Settings changed by operators, and the broker's figures.

A live setting takes effect at once, any other at the next start. Both are written to the broker.conf that the broker
was started with; without one, a change that only the next start would see is refused. If one of the settings cannot
be used, none is changed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from mqlake.auth import config as auth_settings
from mqlake.base.durable import write_durably
from mqlake.base.java_properties import format_properties, parse_properties, read_properties
from mqlake.broker import config as broker_settings
from mqlake.broker.broker import Broker
from mqlake.broker.metrics.broker_stats import BrokerStats
from mqlake.broker.services.replication import Replication
from mqlake.broker.services.schedule_message import ScheduleMessageService
from mqlake.errors import ConfigError, ResponseError
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.remoting.bodies.topic import DataVersion, KVTable
from mqlake.remoting.codes import CURRENT_VERSION, RequestCode, ResponseCode, version_name
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.admin import GetBrokerConfigResponseHeader
from mqlake.remoting.processors import answers
from mqlake.store import config as store_settings
from mqlake.store.clean import disk_used_ratio
from mqlake.store.config import BrokerRole
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.timer.timer_message_store import TimerMessageStore

logger = logging.getLogger(__name__)

ROLE_KEYS = frozenset({"brokerRole", "brokerId"})
"""Keys that a promotion changes."""

NO_COLD_DATA_FLOW_CTR = (
    b'{"runtimeTable":{},"configTable":{},"cgColdReadThreshold":3145728,"globalColdReadThreshold":104857600,'
    b'"globalAcc":0}'
)
"""The groups' reads of data that is no longer in memory; mqlake does not count them."""
ALWAYS_REFUSED = (
    frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"}) | auth_settings.SETTINGS.keys()
)
"""Among them those of access control: whoever may change other settings must not switch it off."""


class ConfigAdmin:
    def __init__(
        self,
        broker: Broker,
        schedule_message_service: ScheduleMessageService,
        timers: TimerMessageStore | None,
        replication: Replication,
    ) -> None:
        self._replication = replication
        self._broker = broker
        self._schedule_message_service = schedule_message_service
        self._timers = timers
        self._broker_stats = BrokerStats(broker.broker_stats_manager, broker.clock_ms)
        self._data_version = DataVersion()
        self._pending: dict[str, str] = {}
        """Settings that were changed since the start, and are read only there."""

    # --- settings

    @answers(RequestCode.GET_BROKER_CONFIG)
    def get_broker_config(self) -> RemotingCommand:
        """26 GET_BROKER_CONFIG: RocketMQ's keys, those that are not acted on with Java's default."""
        version = self._data_version.to_json().decode()
        pending = format_properties(self._pending) if self._pending else None
        return RemotingCommand.create_response(
            header=GetBrokerConfigResponseHeader(version=version, pending_restart=pending),
            body=format_properties(
                broker_settings.all_values(self._broker.config, self._broker.store_config)
            ).encode(),
        )

    @answers(RequestCode.UPDATE_BROKER_CONFIG)
    async def update_broker_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """25 UPDATE_BROKER_CONFIG. The remark names the keys that wait for the next start."""
        try:
            properties = parse_properties(request.body_bytes().decode())
        except (ConfigError, UnicodeDecodeError) as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error
        self._check_black_list(properties)
        logger.info("%s: new settings %s", connection.remote_address, properties)
        waiting, idle = self._check(properties)
        if "brokerRole" in properties and self._broker.is_slave:
            # also brokerId, which no master has but 0
            properties.pop("brokerId", None)
            force = request.ext_fields.get("force") == "true"
            await self._replication.promote(BrokerRole[properties["brokerRole"]], force=force)
            properties["brokerId"] = str(MASTER_ID)
            waiting = [key for key in waiting if key not in ROLE_KEYS]
        try:
            await asyncio.to_thread(self._write, properties)
            later = {*waiting, *idle, *ROLE_KEYS}
            self._apply({key: text for key, text in properties.items() if key not in later})
        except OSError as error:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"the settings cannot be written, nothing is changed: {error}"
            ) from error
        self._note_pending(properties, waiting)
        if "brokerPermission" in properties:
            await self._register_again()
        return RemotingCommand.create_response(remark=_remark(waiting, idle))

    def _note_pending(self, properties: Mapping[str, str], waiting: list[str]) -> None:
        """Notes the changed settings that take effect at the next start. A setting changed back to its current value
        is no longer pending."""
        broker, wanted = self._broker, broker_settings.read_settings(properties)
        now = broker_settings.all_values(broker.config, broker.store_config)
        then = broker_settings.all_values(wanted.config, wanted.store_config)
        for key in waiting:
            text = then.get(key, properties[key])
            if text == now.get(key):
                self._pending.pop(key, None)
            else:
                self._pending[key] = text

    async def _register_again(self) -> None:
        """Reports the new permissions of every topic to the name servers; waits for them only briefly."""
        manager = self._broker.topic_config_manager
        manager.data_version.next_version()
        registered = manager.on_change(list(manager.topic_config_table.values()))
        if registered is not None:
            await registered

    def _check_black_list(self, properties: Mapping[str, str]) -> None:
        black_list = {key.strip() for key in self._broker.config.config_black_list.split(";")}
        refused = sorted((black_list | ALWAYS_REFUSED).intersection(properties))
        if refused:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"Can not update config in black list: {', '.join(refused)} can only be set in the broker.conf",
            )

    def _check(self, properties: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """The keys that wait for the next start, and those without effect. ResponseError for a wrong key or value."""
        try:
            broker_settings.require_known(properties)
            broker_settings.read_settings(properties)
        except ConfigError as error:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        waiting: list[str] = []
        idle: list[str] = []
        for key in properties:
            setting = broker_settings.KEYS.acted_on.get(key)
            if setting is None:
                (waiting if key.startswith("tls.") else idle).append(key)
                continue
            if setting.fixed:
                raise ResponseError(
                    ResponseCode.INVALID_PARAMETER,
                    f"{key}: cannot be changed, the files on disk were made with it",
                )
            if not setting.live:
                waiting.append(key)
        if idle:
            logger.info("settings without effect: %s", ", ".join(sorted(idle)))
        if self._broker.is_slave:
            waiting_here = [key for key in waiting if key not in ROLE_KEYS]
        else:
            waiting_here = waiting
        if waiting_here and not self._broker.config.broker_config_path:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"{', '.join(sorted(waiting_here))}: only read at the start, and this broker was started without a "
                "broker.conf to keep it in; set it with the command that starts the broker",
            )
        return waiting, idle

    def _apply(self, properties: Mapping[str, str]) -> None:
        broker = self._broker
        broker.config = broker.config.replaced(properties)
        broker.subscription_group_manager.auto_create = broker.config.auto_create_subscription_group
        broker.subscription_group_manager.create_sys_groups = broker.config.enable_create_sys_group
        broker.consumer_offset_manager.server_side_reset = broker.config.use_server_side_reset_offset
        broker.store_config.change(
            {key: text for key, text in properties.items() if key in store_settings.SETTINGS}
        )
        self._data_version.next_version()

    def _write(self, properties: Mapping[str, str]) -> None:
        """Writes to the broker.conf, and keeps its old content in .bak. OSError, ConfigError."""
        path = self._broker.config.broker_config_path
        if not path:
            return
        before = read_properties(path) if os.path.exists(path) else {}
        write_durably(f"{path}.bak", format_properties(before).encode())
        write_durably(path, format_properties({**before, **properties}).encode())

    # --- features that are always off: the answers are those of RocketMQ's broker with them off

    @answers(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON)
    def export_rocksdb_config_to_json(self) -> RemotingCommand:
        return RemotingCommand.create_response(remark="the config files are JSON already")

    @answers(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)
    def remove_cold_data_flow_ctr(self) -> RemotingCommand:
        """2002 REMOVE_COLD_DATA_FLOW_CTR_CONFIG: no group has a threshold."""
        return RemotingCommand.create_response()

    @answers(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    def get_cold_data_flow_ctr_info(self) -> RemotingCommand:
        return RemotingCommand.create_response(body=NO_COLD_DATA_FLOW_CTR)

    # --- figures

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO)
    def get_broker_runtime_info(self) -> RemotingCommand:
        return RemotingCommand.create_response(body=KVTable(table=self.runtime_info()).to_json())

    def runtime_info(self) -> dict[str, str]:
        """The keys of RocketMQ's getBrokerRuntimeInfo; figures of thread pools are 0, as there are no pools."""
        broker = self._broker
        store, store_config = broker.store, broker.store_config
        info = dict(store.runtime_info())
        info |= self._broker_stats.runtime_info()
        log_ratio = disk_used_ratio(store_config.commit_log_dir)
        info |= {
            "brokerActive": "true",
            "brokerVersion": str(CURRENT_VERSION),
            "brokerVersionDesc": version_name(CURRENT_VERSION),
            "commitLogDiskRatio": _ratio(log_ratio),
            f"commitLogDiskRatio_{store_config.commit_log_dir}": _ratio(log_ratio),
            "consumeQueueDiskRatio": _ratio(disk_used_ratio(store_config.consume_queue_dir)),
            "commitLogDirCapacity": _capacity(store_config.store_path_root_dir),
            "pageCacheLockTimeMills": str(self._lock_time_ms()),
            "earliestMessageTimeStamp": str(earliest_message_time(store)),
            "startAcceptSendRequestTimeStamp": str(broker.config.start_accept_send_request_time_stamp),
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
        }
        for name in ("remainHowManyDataToCommit", "remainHowManyDataToFlush"):
            if name in info:  # nothing is left to commit without a TransientStorePool
                info[name] = human_readable_byte_count(int(info[name]))
        capacity = str(broker.config.limits.in_flight_max)
        for pool in ("send", "pull", "litePull", "query", "ack"):
            info[f"{pool}ThreadPoolQueueSize"] = "0"
            info[f"{pool}ThreadPoolQueueCapacity"] = capacity
            info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        info |= self._schedule_message_service.running_stats()
        if self._timers is not None:
            info |= self._timers.runtime_info()
        info |= self._replication.status()
        if not broker.is_slave and (reasons := store.running_flags.reasons()):
            info["sendRefusal"] = "; ".join(reasons)  # mqlake's own: RocketMQ's broker does not tell
        info["EndTransactionQueueSize"] = "0"
        info["EndTransactionThreadPoolQueueCapacity"] = capacity
        return info

    def _lock_time_ms(self) -> int:
        begin = self._broker.store.commit_log.appender.begin_time_in_lock
        return max(self._broker.clock_ms() - begin, 0) if begin else 0


def earliest_message_time(store: DefaultMessageStore) -> int:
    """Store time (ms) of the first message in the log, -1 if it is empty."""
    first = store.min_phy_offset
    record = store.select_one_message_by_offset(first)
    return -1 if record is None else store.store_timestamp_at(first, len(record))


def human_readable_byte_count(count: int) -> str:
    """`1536` → `1.5 KiB`, as RocketMQ's tools print it."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"


def _capacity(path: str) -> str:
    try:
        disk = os.statvfs(path)
    except OSError:
        return "Total : 0 B, Free : 0 B."
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bfree * disk.f_frsize
    return f"Total : {human_readable_byte_count(total)}, Free : {human_readable_byte_count(free)}."


def _ratio(used: float | None) -> str:
    return "-1.0" if used is None else f"{used:.2f}"


def _remark(waiting: list[str], idle: list[str]) -> str | None:
    parts = []
    if waiting:
        parts.append(f"from the next start on: {', '.join(sorted(waiting))}")
    if idle:
        parts.append(f"without effect here: {', '.join(sorted(idle))}")
    return "; ".join(parts) or None
