"""A broker with more topics, groups, connections or slaves: points of bench.scaling.

What is measured is the process of `mqlake serve`, name server included.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tests.interop.brokers import UNHURRIED, MqlakeBroker
from tests.interop.replicas import MqlakeSlave, ha_status
from tests.waiting import until

from bench.idle import wait_until_idle
from bench.scaling_cluster import MIB, CpuClock, raise_limit
from bench.sockets import fill, sends
from mqlake.base.clock import now_ms
from mqlake.client.admin import Admin
from mqlake.client.config import ClientConfig
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig, SubscriptionGroupWrapper
from mqlake.remoting.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import UpdateConsumerOffsetRequestHeader
from mqlake.remoting.loop import run

REGISTRATION_S = 10
"""The shortest period that a broker takes."""
LOOK_S = 4 * REGISTRATION_S + 1
CREATED = 10
OFFSET_QUEUES = 8
COMMITS_AT_ONCE = 64
PERSISTED_S = 11
"""Offsets are written every 5 s: two writes."""
SENDS = 200_000
SLAVE_SENDS = 150_000
LOG_FILE = 1 << 30


def broker(directory: Path, **settings: object) -> MqlakeBroker:
    return MqlakeBroker(directory / "broker", {**UNHURRIED, **settings}, small=False)


def config_directory(directory: Path) -> Path:
    """Where the broker will look for what it knew before."""
    config = directory / "broker" / "store" / "broker-0" / "config"
    config.mkdir(parents=True)
    return config


def cpu_of(server: MqlakeBroker, seconds: float) -> float:
    """The processor time that it takes by itself in so many seconds."""
    before = server.cpu_seconds()
    time.sleep(seconds)
    return server.cpu_seconds() - before


# --- topics


def topics(directory: Path, size: float) -> dict[str, float]:
    """A broker whose topics.json has `size` topics: its start, its registrations, one topic more."""
    table = {
        f"Topic-{number}": TopicConfig(topic_name=f"Topic-{number}", read_queue_nums=1, write_queue_nums=1)
        for number in range(int(size))
    }
    version = DataVersion(timestamp=now_ms(), counter=1)
    content = TopicConfigSerializeWrapper(topic_config_table=table, data_version=version).to_json()
    config_directory(directory).joinpath("topics.json").write_bytes(content)
    with broker(directory, registerNameServerPeriod=REGISTRATION_S * 1000) as server:
        started, resident = server.cpu_seconds(), server.resident()
        cpu_of(server, REGISTRATION_S / 2)
        idle = cpu_of(server, LOOK_S)
        created = run(CpuClock(server).of(_create(server.namesrv)))
        return {
            "topics.json, MB": len(content) / 1e6,
            "start, CPU s": started,
            "memory, MiB": resident / MIB,
            "memory after registrations, MiB": server.resident() / MIB,
            "idle with a registration every 30 s, CPU % of one": idle / (LOOK_S // REGISTRATION_S) / 30 * 100,
            "one topic more, CPU ms": created / CREATED * 1e3,
        }


async def _create(namesrv: str) -> None:
    async with Admin(ClientConfig(namesrv_addr=namesrv, timeout_s=60)) as admin:
        for number in range(CREATED):
            await admin.create_topic(f"More-{number}", queues=1)


# --- groups


def groups(directory: Path, size: float) -> dict[str, float]:
    """Offsets of `size` groups in a broker: a commit, and what it takes to keep them all."""
    table = {
        f"GID_{number}": SubscriptionGroupConfig(group_name=f"GID_{number}") for number in range(int(size))
    }
    wrapper = SubscriptionGroupWrapper(subscription_group_table=table, forbidden_table={})
    config_directory(directory).joinpath("subscriptionGroup.json").write_bytes(wrapper.to_json())
    with broker(directory) as server:
        started, resident, quiet = server.cpu_seconds(), server.resident(), cpu_of(server, PERSISTED_S)
        commits = run(CpuClock(server).of(_commit(server, int(size), 1)))
        cpu_of(server, PERSISTED_S / 2)
        again = run(CpuClock(server).of(_commit(server, int(size), 2)))
        cpu_of(server, PERSISTED_S / 2)
        before = server.cpu_seconds()
        for number in range(PERSISTED_S):
            run(_commit(server, 1, 3 + number))
            time.sleep(1)
        kept = server.cpu_seconds() - before - quiet
        file = next((directory / "broker").rglob("consumerOffset.json"))
        return {
            "start, CPU s": started,
            "first commit, µs": commits / (size * OFFSET_QUEUES) * 1e6,
            "later commit, µs": again / (size * OFFSET_QUEUES) * 1e6,
            "consumerOffset.json, MB": file.stat().st_size / 1e6,
            "kept while one group commits, CPU ms a second": kept / PERSISTED_S * 1e3,
            "memory at the start, MiB": resident / MIB,
            "memory with all offsets, MiB": server.resident() / MIB,
        }


async def _commit(server: MqlakeBroker, groups: int, offset: int) -> None:
    """Every group commits in each of OFFSET_QUEUES queues."""
    async with RemotingClient() as client, Admin(server.namesrv) as admin:
        if offset == 1:
            await admin.create_topic("Committed", queues=OFFSET_QUEUES)
        left = ((group, queue) for group in range(groups) for queue in range(OFFSET_QUEUES))

        async def some() -> None:
            for group, queue in left:
                header = UpdateConsumerOffsetRequestHeader(
                    consumer_group=f"GID_{group}", topic="Committed", queue_id=queue, commit_offset=offset
                )
                request = RemotingCommand.create_request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
                await client.call(server.address, request, 60)

        await asyncio.gather(*(some() for _ in range(COMMITS_AT_ONCE)))


# --- connections


@contextlib.contextmanager
def connected(address: str, count: int) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection((host, int(port))))
        yield


def connections(directory: Path, size: float) -> dict[str, float]:
    """A broker with `size` connections that say nothing, beside one that sends."""
    raise_limit()
    with broker(directory) as server:
        fill(server.address, "SocketSend", 64_000)
        before = server.resident()
        with connected(server.address, int(size)):
            time.sleep(1)
            resident, idle = server.resident(), cpu_of(server, 10)
            with contextlib.closing(sends(server.address, SENDS, in_flight=64)) as load:
                load.round()
                started = server.cpu_seconds()
                load.round()
                sent = server.cpu_seconds() - started
        gone = server.cpu_seconds()
        time.sleep(2)
        return {
            "memory, MiB more": (resident - before) / MIB,
            "idle, CPU % of one": idle / 10 * 100,
            "a send of 128 B beside them, µs": sent / SENDS * 1e6,
            "all close, CPU ms": (server.cpu_seconds() - gone) * 1e3,
        }


# --- slaves


def slaves(directory: Path, size: float) -> dict[str, float]:
    """A master with `size` slaves that are in step: what a send of 1 KB costs it, and what each slave."""
    with contextlib.ExitStack() as stack:
        config = {"mappedFileSizeCommitLog": LOG_FILE}
        master = stack.enter_context(broker(directory, **config, haListenPort=0))
        fill(master.address, "SocketSend", 6400)
        followers = [
            stack.enter_context(
                MqlakeSlave(
                    directory / f"slave-{n}", master.namesrv, "broker-0", {**config, "brokerId": n + 1}
                )
            )
            for n in range(int(size))
        ]
        in_step(master, len(followers))
        with contextlib.closing(
            sends(master.address, SLAVE_SENDS, connections=4, in_flight=16, size=1024)
        ) as load:
            load.round()
            in_step(master, len(followers))
            wait_until_idle()
            before, there = master.cpu_seconds(), sum(each.cpu_seconds() for each in followers)
            load.round()
            in_step(master, len(followers))
            sent = master.cpu_seconds() - before
            there = sum(each.cpu_seconds() for each in followers) - there
        return {
            "a send of 1 KB, CPU µs of the master": sent / SLAVE_SENDS * 1e6,
            "CPU µs of all slaves": there / SLAVE_SENDS * 1e6,
            "memory of the master, MiB": master.resident() / MIB,
        }


def in_step(master: MqlakeBroker, count: int) -> None:
    """Waits until so many slaves lack nothing."""

    def all_there() -> bool:
        found = ha_status(master.address).ha_connection_info
        return len(found) == count and all(each.diff == 0 for each in found)

    until(all_there, f"{count} slaves have all of the log")
