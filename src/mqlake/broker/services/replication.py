"""Replication: the broker's part in a group of a master and its slaves, from start to stop.

    every broker     HAService listens on haListenPort; puts of a SYNC_MASTER wait for it
    a slave          HAClientService follows the master's log, SlaveSynchronize its topics, groups and offsets
    promotion        the slave stops following, dispatches what it has, and becomes master without a restart

A slave learns where its master is from the name servers, each time it registers; haMasterAddress takes precedence
for the log.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
import time
from collections.abc import Callable, Mapping

from mqlake.auth.signed_client import remoting_client
from mqlake.base.background import BackgroundTask, BackgroundWork
from mqlake.broker.broker import Broker
from mqlake.broker.services.outer_api import RegisterBrokerResult
from mqlake.broker.services.registration import Registration
from mqlake.broker.services.schedule_message import ScheduleMessageService
from mqlake.broker.services.slave_synchronize import SlaveSynchronize
from mqlake.errors import ConfigError, FormatError, MqlakeError, ResponseError
from mqlake.remoting.bodies.admin import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.tls import caller_context
from mqlake.store.config import BrokerRole, MessageStoreConfig
from mqlake.store.ha.ha_client import ClientSettings, HAClient, Trouble
from mqlake.store.ha.ha_client_service import HAClientService
from mqlake.store.ha.ha_service import HAService
from mqlake.store.timer.timer_message_store import TimerMessageStore

logger = logging.getLogger(__name__)

TICK_S = 3.0
SYNC_S = 10.0
"""Between two rounds of the master's metadata; RocketMQ's slave waits a minute."""
FAILOVER_SYNC_S = 1.0
"""The same in a group with failover: what is younger than that a new master does not have."""
FAILOVER_RETRY_S = 0.5
"""Between two tries to connect to a master that may be about to begin."""
AWAY_S = 5.0
"""A master that is not connected, and does not answer, for so long is away."""
ALIVE_TIMEOUT_S = 2.0
DISPATCH_S = 60.0
DEFAULT_HA_PORT = 10912


class Replication:
    def __init__(
        self,
        broker: Broker,
        registration: Registration,
        schedule_message_service: ScheduleMessageService,
        timers: TimerMessageStore | None,
    ) -> None:
        """ConfigError when the TLS files cannot be used."""
        self._broker = broker
        self._registration = registration
        self.ha_service = HAService(broker.store_config, broker.store.commit_log_files)
        broker.store.replicas = self.ha_service
        broker.is_master_away = self.is_master_away
        broker.slaves = self.ha_service.statuses
        broker.behind_master = self._behind_master
        self.ha_client: HAClient | None = None
        self.ha_client_service: HAClientService | None = None
        self._remoting = remoting_client(
            broker.config.auth.inner_credentials, caller_context(broker.config.tls)
        )
        self.slave_synchronize = SlaveSynchronize(broker, schedule_message_service, timers, self._remoting)
        self.master_flush_offset = 0
        """The flush offset of the master's start, as 906 and 908 tell; for information."""
        self.on_promoted: Callable[[], None] = lambda: None
        """Starts what only a master runs."""
        self._first_offset: int | None = None
        self._master_max: int | None = None
        self._master_waits = True
        """False if the master said that it waits for no slave."""
        self._was_asked = False
        """The master has answered where its log ends, or has not in time."""
        self._begins_at: int | None = None
        self.asked_at = 0.0
        """When the master last said where its log begins and ends; monotonic, 0: never."""
        self._sync_s = FAILOVER_SYNC_S if broker.config.failover else SYNC_S
        self._synchronizing = BackgroundTask(self._keep_synchronized, "SlaveSynchronize")
        self._tick = asyncio.Event()
        self._seen_at = time.monotonic()
        if broker.is_slave and not broker.config.failover:
            self._make_client()

    def _make_client(self, hello: tuple[int, int, int] | None = None) -> None:
        broker, config = self._broker, self._broker.store_config
        broker.consumer_offset_manager.keeps_own_commits = True
        self.ha_client = HAClient(
            broker.store.replica_log(),
            client_settings(config),
            first_offset=self._where_to_begin,
            master_begin=lambda: self._first_offset,
            master_end=lambda: self._master_max,
            hello=hello,
        )
        self.ha_client_service = HAClientService(self.ha_client)
        if hello is not None:
            self.ha_client_service.retry_s = FAILOVER_RETRY_S
        self.ha_client_service.is_awaited = lambda: self._master_waits
        self.ha_client_service.lacking = self._lacking
        # how much it lacks says whether compiled code is worth waiting for
        self.ha_client_service.may_connect = lambda: self._was_asked or not self.slave_synchronize.master_addr
        self.ha_client_service.set_master_address(config.ha_master_address)
        if hello is None:  # else the failover service says where the master is
            self._registration.on_answers = self._learn_master

    def _lacking(self) -> int:
        """As HAClientService.lacking."""
        return max(0, (self._master_max or 0) - self._broker.store.max_phy_offset)

    # --- life

    def bind(self) -> None:
        """Takes the port for slaves, after the broker has its own. ConfigError if it is taken and was asked for."""
        broker, config = self._broker, self._broker.store_config
        address = config.ha_bind_address or broker.config.bind_address
        asked_for = config.ha_listen_port != DEFAULT_HA_PORT
        port = config.ha_listen_port if asked_for else broker.port + 1
        if not asked_for and not broker.config.listen_port:
            port = 0
        try:
            self.ha_service.bind(address, port)
        except ConfigError as error:
            if asked_for or config.waits_for_replicas:
                raise
            logger.warning("no slave can connect: %s", error)
        broker.ha_port = self.ha_service.port
        if broker.ha_port:
            config.listens_for_slaves_on(broker.ha_port)
            if broker.access is not None and not config.ha_allowed_addresses and not _is_loopback(address):
                logger.warning(
                    "access control is on, but anyone who reaches port %d can read the log as a slave does: set "
                    "haAllowedAddresses to the addresses of the slaves",
                    broker.ha_port,
                )

    def start(self) -> None:
        """After the store's start."""
        self.master_flush_offset = self._broker.store.max_phy_offset
        self.ha_service.start()
        if self.ha_client_service is not None:
            self.ha_client_service.start()
            self._synchronizing.start()

    async def shutdown(self) -> None:
        """Before the store's end. Idempotent."""
        await self._stop_following()
        await asyncio.to_thread(self.ha_service.shutdown)
        await self._remoting.close()

    async def _stop_following(self) -> None:
        await self._synchronizing.stop()
        if self.ha_client_service is not None:
            await asyncio.to_thread(self.ha_client_service.shutdown)

    # --- the master of this slave

    def _learn_master(self, results: list[RegisterBrokerResult]) -> None:
        """A name server without the master says nothing of it: the last address stays."""
        if self.ha_client_service is None or not self._broker.is_slave:
            return
        for result in results:
            if result.master_addr:
                self.set_master(result.master_addr, result.ha_server_addr)
                return

    def set_master(self, master_addr: str | None, ha_address: str | None) -> None:
        """Sets the master's addresses, for metadata and for the log. An address without a host is on the other's."""
        service, config = self.ha_client_service, self._broker.store_config
        if service is None:
            return
        if master_addr and master_addr != self.slave_synchronize.master_addr:
            logger.info("the master is at %s", master_addr)
            self.slave_synchronize.master_addr = master_addr
            self._master_max = None
            self._was_asked = False
            self._tick.set()
        if ha_address and not config.ha_master_address:
            service.set_master_address(ha_address)

    def begin_at(self, offset: int) -> None:
        """An empty log begins at `offset`, a start of a file of the master's."""
        self._begins_at = offset

    def _where_to_begin(self) -> int | None:
        """The first offset of an empty log; None: not known yet."""
        if self._begins_at is not None:
            return self._begins_at
        if self._broker.store_config.sync_from_last_file:
            return -1
        if self._first_offset is None and not self.slave_synchronize.master_addr:
            # only its port for slaves is known: where its log begins cannot be asked
            return 0 if self._broker.store_config.ha_master_address else None
        return self._first_offset

    async def _keep_synchronized(self) -> None:
        next_round = 0.0
        work = BackgroundWork("synchronizing with the master", logger)
        while True:
            async with work.round():
                await self._ask_range()
                if not self._was_asked and self.ha_client_service is not None:
                    self._was_asked = True
                    self.ha_client_service.retry_now()
                if self._is_its_slave:
                    await self.slave_synchronize.sync_timer_check_point()
                is_lost = self.ha_client is not None and self.ha_client.trouble is Trouble.UNREACHABLE
                if is_lost or not self.slave_synchronize.master_addr:
                    self._registration.register_soon()  # the name servers may know where the master is by now
                if (
                    self._is_its_slave
                    and time.monotonic() >= next_round
                    and await self.slave_synchronize.sync_all()
                ):
                    next_round = time.monotonic() + self._sync_s
            self._tick.clear()
            try:
                async with asyncio.timeout(min(TICK_S, self._sync_s)):
                    await self._tick.wait()
            except TimeoutError:
                pass

    @property
    def _is_its_slave(self) -> bool:
        """True if the broker at master_addr is known to be this slave's master."""
        return bool(self.slave_synchronize.master_addr) and not (self.ha_client and self.ha_client.refusal)

    async def _ask_range(self) -> None:
        """Asks for the first and last offset of the master's log: an empty log begins there, and lag is measured by
        it."""
        if not self.slave_synchronize.master_addr or self.ha_client is None:
            return
        try:
            settings = (
                await self.slave_synchronize.settings()
            )  # each time: it may have started again with others
            self.ha_client.refuse(self._refusal(settings))
            self._master_waits = settings.get("brokerRole") != BrokerRole.ASYNC_MASTER.name
            info = await self.slave_synchronize.runtime_info()
            first, last = int(info["commitLogMinOffset"]), int(info["commitLogMaxOffset"])
        except (MqlakeError, FormatError, KeyError, ValueError) as error:
            logger.debug("the master at %s: %s", self.slave_synchronize.master_addr, error)
            return
        self._seen_at = self.asked_at = time.monotonic()
        self._master_max = last
        if self.ha_client.refusal:
            logger.warning("the master is not followed: %s", self.ha_client.refusal)
            self.asked_at = 0.0
            return
        if self._first_offset is None and self.ha_client_service is not None:
            self._first_offset = first
            self.ha_client_service.retry_now()
        self._first_offset = first
        self._explain(first, last)

    def _refusal(self, of_master: Mapping[str, str]) -> str:
        """Why a broker with these settings is no master of this slave; empty: it is one."""
        config, own_size = self._broker.config, self._broker.store_config.mapped_file_size_commit_log
        address = self.slave_synchronize.master_addr
        name, cluster = of_master.get("brokerName"), of_master.get("brokerClusterName")
        if (cluster, name) != (config.broker_cluster_name, config.broker_name):
            own = f"{config.broker_cluster_name}/{config.broker_name}"
            return f"the broker at {address} is {cluster}/{name}, this one is a slave of {own}"
        size = of_master.get("mappedFileSizeCommitLog")
        if size != str(own_size):
            return f"mappedFileSizeCommitLog is {size} at the master at {address}, and {own_size} here"
        return ""

    def _explain(self, first: int, last: int) -> None:
        """Logs why a master may send nothing, which the protocol does not say."""
        client, own = self.ha_client, self._broker.store.max_phy_offset
        assert client is not None
        if own > last and client.trouble is not Trouble.DIVERGED:
            client.trouble, client.diverged_at = Trouble.AHEAD, last
            client.trouble_text = (
                f"this slave is ahead of its master: the master's log ends at offset {last}, this one at {own}; "
                f"{own - last} bytes would have to be cut"
            )
        elif 0 < own < first:
            client.trouble = Trouble.NOT_SENT
            client.trouble_text = (
                f"the master's log begins at offset {first} and this one ends at {own}: the bytes between are deleted "
                "there. Move this store's log aside and start with an empty one"
            )

    def is_master_away(self) -> bool:
        """True if neither the log's connection nor requests reach the master."""
        client = self.ha_client
        if client is None:
            return False
        if client.is_following or self.slave_synchronize.is_reachable:
            self._seen_at = time.monotonic()
            return False
        return time.monotonic() - self._seen_at > AWAY_S

    # --- what operators see

    def runtime_info(self) -> HARuntimeInfo:
        """907: as RocketMQ's tools read it."""
        store = self._broker.store
        info = HARuntimeInfo(
            master=not self._broker.is_slave, master_commit_log_max_offset=store.max_phy_offset
        )
        info.ha_connection_info = [
            HAConnectionRuntimeInfo(
                addr=status.addr,
                slave_ack_offset=status.slave_ack_offset,
                transfer_from_where=status.transfer_from_where,
                diff=status.diff,
                in_sync=status.in_sync,
                transferred_byte_in_second=status.transferred_byte_in_second,
            )
            for status in self.ha_service.statuses()
        ]
        info.in_sync_slave_nums = self.ha_service.in_sync_slaves
        client, service = self.ha_client, self.ha_client_service
        if client is not None and service is not None and self._broker.is_slave:
            now, now_ms = time.monotonic(), self._broker.clock_ms()
            info.master_commit_log_max_offset = max(self.master_max, 0)
            info.ha_client_runtime_info = HAClientRuntimeInfo(
                master_addr=service.master_address,
                transferred_byte_in_second=client.flow.transferred_byte_in_second(now),
                max_offset=store.max_phy_offset,
                last_read_timestamp=now_ms - int((now - client.last_read) * 1000) if client.last_read else 0,
                last_write_timestamp=now_ms - int((now - client.last_write) * 1000)
                if client.last_write
                else 0,
                master_flush_offset=self.master_flush_offset,
            )
        return info

    @property
    def master_max(self) -> int:
        """End of the master's log, as far as it is known; -1: unknown."""
        sent = self.ha_client.master_offset if self.ha_client is not None else -1
        return max(sent, -1 if self._master_max is None else self._master_max)

    def _behind_master(self) -> tuple[int, bool]:
        is_following = self.ha_client is not None and self.ha_client.is_following
        return max(0, self.master_max - self._broker.store.max_phy_offset), is_following

    def status(self) -> dict[str, str]:
        """For 28 and `mqlake admin broker`: the role, and what keeps a slave from following."""
        client = self.ha_client
        info = {"brokerRole": self._broker.store_config.broker_role.name, **self._broker.failover_status()}
        if client is None or not self._broker.is_slave:
            info["inSyncSlaves"] = str(self.ha_service.in_sync_slaves)
            return info
        lag, _ = self._behind_master()
        info |= {
            "haState": client.state.name,
            "haTrouble": client.trouble.value,
            "haTroubleText": client.trouble_text,
            "haMasterAddress": self.ha_client_service.master_address if self.ha_client_service else "",
            "slaveFallBehindBytes": str(lag),
        }
        return info

    # --- promotion

    async def promote(self, role: BrokerRole, *, force: bool = False) -> None:
        """Makes this slave the master. ResponseError, with nothing changed, when its master still answers (unless
        `force`), or when the log is not dispatched whole."""
        broker = self._broker
        if broker.config.failover:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                "failover decides who is master: use `mqlake admin failover elect`",
            )
        if not broker.is_slave:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "this broker is the master already")
        if role is BrokerRole.SLAVE:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "a slave becomes ASYNC_MASTER or SYNC_MASTER")
        if not force and await self._master_answers():
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"the master at {self.slave_synchronize.master_addr} still answers: stop it first, or two brokers "
                "would take messages (--force promotes anyway)",
            )
        await self._stop_following()
        try:
            await self.become_master(role)
        except ResponseError:
            self._resume()
            raise

    async def become_master(self, role: BrokerRole) -> None:
        """Finishes a promotion when nothing is followed any more. ResponseError when the log is not dispatched
        whole."""
        broker = self._broker
        elected = bool(broker.config.failover)
        dispatched = await asyncio.to_thread(
            broker.store.become_master, role, DISPATCH_S, with_full_disk=elected
        )
        if dispatched:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"not promoted: {dispatched}")
        made = broker.topic_config_manager.make_from_queues(broker.store.consume_queues.on_disk())
        if made:
            names = ", ".join(each.topic_name for each in made)
            logger.warning(
                "topics that were new at the old master were made again from their queues: %s", names
            )
        broker.consumer_offset_manager.keeps_own_commits = False
        self.ha_client = self.ha_client_service = None

        def change() -> None:
            broker.config = dataclasses.replace(broker.config, broker_id=MASTER_ID)

        await self._registration.change_identity(change)
        self.on_promoted()
        logger.warning(
            "this broker is %s now, its log ends at offset %d", role.name, broker.store.max_phy_offset
        )

    # --- failover

    async def stop_following(self) -> None:
        """Nothing is appended to the log when it returns."""
        await self._stop_following()
        self.ha_client = self.ha_client_service = None

    def follow(self, hello: tuple[int, int, int], master_addr: str, ha_address: str) -> None:
        """The broker at `master_addr` is the master of the epoch that `hello` begins with; its log comes from
        `ha_address`."""
        self.slave_synchronize.master_addr = ""
        self._make_client(hello)
        self.set_master(master_addr, ha_address)
        assert self.ha_client_service is not None
        self.ha_client_service.start()
        self._synchronizing.start()

    def _resume(self) -> None:
        self._make_client()
        self.set_master(self.slave_synchronize.master_addr, None)
        assert self.ha_client_service is not None
        self.ha_client_service.start()
        self._synchronizing.start()
        self._registration.register_soon()

    async def _master_answers(self) -> bool:
        client = self.ha_client
        if client is not None and client.is_following:
            return True
        if not self.slave_synchronize.master_addr:
            return False
        try:
            await self.slave_synchronize.runtime_info(ALIVE_TIMEOUT_S)
        except ResponseError:
            return True
        except (MqlakeError, FormatError):
            return False
        return True


def client_settings(config: MessageStoreConfig) -> ClientSettings:
    return ClientSettings(
        heartbeat_s=config.ha_send_heartbeat_interval / 1000,
        housekeeping_s=config.ha_housekeeping_interval / 1000,
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
