"""Failover: runs the machine of one broker, from its start to the end of this life.

machine ──▶ Read, Write ──▶ the consensus service, on a thread
        ──▶ Follow, Lead ──▶ Replication
        ──▶ End ──▶ `ended`: who runs the broker stops it, calls prepare_next_life(), and starts it again as a slave
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mqlake.base.throttled_log import ThrottledLog
from mqlake.broker.broker import Broker
from mqlake.broker.failover.etcd import open_service
from mqlake.broker.failover.local import Local
from mqlake.broker.failover.machine import (
    Action,
    Announce,
    Announced,
    End,
    Follow,
    Found,
    KeepEpoch,
    Lead,
    Machine,
    Read,
    Reply,
    Settings,
    Sleep,
    StopFollowing,
    Stuck,
    Write,
)
from mqlake.broker.failover.record import Announcement, Record
from mqlake.broker.failover.service import ConsensusService, parse_where
from mqlake.broker.services.registration import Registration
from mqlake.broker.services.replication import Replication
from mqlake.errors import FailoverError, FailoverUnavailableError, ResponseError
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.store.config import BrokerRole
from mqlake.store.ha.membership import Member, Membership, boot_time
from mqlake.store.truncate import truncate

logger = logging.getLogger(__name__)
T = TypeVar("T")

START_WAIT_S = 5.0
"""How long a start waits to know who is master."""
HAND_OVER_S = 12.0
STRANGER_ID = 2**31 - 1
"""The id under which replica 0 registers while it does not know who is master."""


class Failover:
    """`replica`: the brokerId of the configuration, which stays this broker's in the group whatever it registers as."""

    def __init__(self, broker: Broker, registration: Registration, replication: Replication) -> None:
        config = broker.config
        self._broker, self._registration, self._replication = broker, registration, replication
        self.replica = config.broker_id
        self.where = parse_where(config.failover)
        self._key = self.where.group(config.broker_cluster_name, config.broker_name)
        self._lease_s = config.failover_lease / 1000
        self._service: ConsensusService = open_service(self.where, self._lease_s / 4)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="Failover")
        self._local = Local(broker.store_config)
        self.machine: Machine | None = None
        self.membership: Membership | None = None
        self.ended = asyncio.Event()
        self.stuck = ""
        self.elections_won = 0
        self._no_puts = ""
        """As of the last question to the service."""
        self._cut: int | None = None
        self._decided = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leading: asyncio.Task[None] | None = None
        self._trouble = ThrottledLog(logger, logging.WARNING)
        broker.store_config.waits_for_in_sync_set()
        broker.failover_status = self.status
        broker.config = dataclasses.replace(config, broker_id=self.replica or STRANGER_ID)

    def load(self) -> None:
        """Before the store is opened, on any thread. FailoverError, OSError."""
        self._local.load()
        self.membership = Membership(self._local.member(self.replica))
        ha_service = self._replication.ha_service
        ha_service.membership = self.membership
        ha_service.on_confirmed = self._broker.store.more_confirmed

    async def start(self) -> None:
        """When the store runs and the ports are known; waits a little for a master to be known."""
        assert self.membership is not None
        broker = self._broker
        settings = Settings(
            lease_ms=broker.config.failover_lease,
            member_s=broker.config.failover_member_timeout / 1000,
            address=broker.broker_addr,
            ha_address=broker.ha_server_addr,
            founds=self.replica == MASTER_ID,
        )
        self.machine = Machine(self, self.membership, settings, epoch=self._local.epoch)
        loop = asyncio.get_running_loop()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._changed.set)

        self._replication.ha_service.on_change = changed
        self._task = asyncio.create_task(self._run(self.machine), name="Failover")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_WAIT_S):
                await self._decided.wait()

    async def shutdown(self) -> None:
        """Idempotent."""
        for task in (self._task, self._leading):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._task = self._leading = None
        if self.membership is not None:
            self.membership.stop("the broker stops")
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def hand_over(self) -> None:
        """Before a stop: lets another replica be master first, if there is one that can."""
        machine, membership = self.machine, self.membership
        if machine is None or membership is None or not membership.leads or self.ended.is_set():
            return
        record = machine.record
        if record is None or len(record.in_sync) < 2:
            return
        machine.resigning = "the broker stops"
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                await self.ended.wait()

    def prepare_next_life(self) -> None:
        """When the broker has stopped: cuts what is no part of the log. The errors of truncate()."""
        if self._cut is not None:
            config = self._broker.store_config
            done = truncate(
                config.store_path_root_dir,
                self._cut,
                config.to_mapping(),
                why="another replica was master from there on",
            )
            logger.warning(
                "%d records (%d bytes) from offset %d on were in no other log when another replica became master: they "
                "are kept in dropped/, `mqlake store dropped` puts them back as new messages",
                done.records,
                done.size,
                done.offset,
            )

    # --- what the machine sees

    def log_end(self) -> int:
        return self._broker.store.max_phy_offset

    def why_no_puts(self) -> str:
        return self._no_puts

    def acks(self) -> Mapping[Member, int]:
        return self._replication.ha_service.acks()

    # --- what it wants done

    async def _run(self, machine: Machine) -> None:
        steps = machine.run()
        try:
            action = next(steps)
            while not isinstance(action, End):
                asked_at = boot_time()
                reply = await self._do(action)
                action = steps.send(reply._replace(asked_at=asked_at, now=boot_time()))
                if machine.membership.leads:
                    self._replication.ha_service.membership_changed()
            logger.warning("this broker starts again as a slave: %s", action.reason)
            self._cut = action.cut
        except Exception:
            logger.exception("failover failed, this broker starts again as a slave")
        self._end()

    def _end(self) -> None:
        assert self.membership is not None
        self.membership.stop("the broker starts again as a slave")
        self._decided.set()
        self.ended.set()

    async def _do(self, action: Action) -> Reply:
        reply = Reply(0.0, 0.0)
        match action:
            case Read():
                return reply._replace(found=await self._ask(self._read))
            case Write(record, version):
                data = record.to_json()
                return reply._replace(
                    version=await self._ask(lambda: self._service.swap(f"{self._key}/record", data, version))
                )
            case Announce(announcement):
                key = f"{self._key}/stands/{announcement.replica}"
                return reply._replace(version=await self._ask(lambda: self._put(key, announcement)))
            case Announced():
                return reply._replace(announced=await self._ask(self._read_announced))
            case Sleep(seconds):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._changed.wait()
                self._changed.clear()
            case StopFollowing():
                await self._replication.stop_following()
            case Follow(record):
                self._follow(record)
            case KeepEpoch(epoch):
                await asyncio.to_thread(self._local.save, epoch)
            case Lead(record):
                self.stuck = ""
                self._leading = asyncio.create_task(self._lead(record), name="FailoverLead")
            case Stuck(reason):
                self.stuck = reason
                self._trouble.failed(f"failover: {reason}")
                self._decided.set()
        return reply

    def _read(self) -> Found:
        value = self._service.read(f"{self._key}/record")
        return Found(None if value.data is None else Record.from_json(value.data), value.version)

    def _put(self, key: str, announcement: Announcement) -> int:
        self._service.put(key, announcement.to_json())
        return 1

    def _read_announced(self) -> list[Announcement]:
        return [Announcement.from_json(each) for each in self._service.read_all(f"{self._key}/stands/")]

    async def _ask(self, what: Callable[[], T]) -> T | None:
        def ask() -> T:
            self._no_puts = self._broker.store.why_no_puts()  # it looks at the disk, so on this thread
            return what()

        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        except FailoverUnavailableError as error:
            self._trouble.failed(f"failover: {error}")
            return None
        except FailoverError as error:
            self.stuck = str(error)
            self._trouble.failed(f"failover: {error}")
            return None
        if not self.stuck:
            self._trouble.worked("failover: the service answers again")
        return answer

    def _follow(self, record: Record) -> None:
        broker = self._broker
        self.stuck = ""
        logger.info(
            "replica %d at %s is master in epoch %d: this broker follows it",
            record.master,
            record.address,
            record.epoch,
        )
        broker_id = self.replica or record.master
        if broker.config.broker_id != broker_id:
            broker.config = dataclasses.replace(broker.config, broker_id=broker_id)
            self._registration.register_soon()
        assert self.membership is not None
        self._replication.follow((record.epoch, *self.membership.own), record.address, record.ha_address)
        self._decided.set()

    async def _lead(self, record: Record) -> None:
        broker = self._broker
        # a name server that hears two masters of one name believes the one with the higher version
        broker.topic_config_manager.data_version.state_version = record.epoch
        broker.topic_config_manager.data_version.next_version()
        try:
            await self._replication.become_master(BrokerRole.SYNC_MASTER)
        except ResponseError as error:
            logger.error("this broker was elected and cannot be master: %s", error.remark)
            self._end()
            return
        self.elections_won += 1
        self._decided.set()

    # --- what operators see

    def status(self) -> dict[str, str]:
        """For 28, `mqlake admin broker` and metrics."""
        machine, membership = self.machine, self.membership
        if machine is None or membership is None:
            return {"failoverState": "starting"}
        now = membership.clock()
        state = "master" if membership.leads else ("stuck" if self.stuck else "slave")
        status = {
            "failoverState": state,
            "failoverEpoch": str(machine.epoch),
            "failoverReplica": str(self.replica),
        }
        if membership.leads:
            status["failoverLeaseMs"] = str(int(membership.lease_left(now) * 1000))
            status["failoverInSync"] = ",".join(str(each) for each, _ in sorted(membership.members))
        if self.stuck:
            status["failoverTrouble"] = self.stuck
        return status
