"""`mqlake doctor`: what on this machine would keep a broker, or its clients, from working well; a line each."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

import mqlake
from mqlake import native
from mqlake.base.disk import DiskSpace
from mqlake.base.net import parse_address
from mqlake.cli.clients import cluster_options
from mqlake.cli.options import SMALL_STORE, json_option
from mqlake.cli.output import count_text, size_text
from mqlake.cli.table import Column, Table
from mqlake.client.api.name_servers import DEFAULT_ADDRESS
from mqlake.client.config import ClientConfig
from mqlake.errors import MqlakeError, NotAStoreError
from mqlake.remoting.loop import run

if TYPE_CHECKING:
    from mqlake.client.admin import Admin

EXIT_PROBLEM = 1
FILES_MIN = 65_536
MAPS_MIN = 65_530
CONNECT_S = 3.0
TIME_ERROR = 5
"""Result of adjtimex(2) for a clock that nothing keeps right."""
SERVE_PORTS = (("name server", 9876), ("broker", 10911))


class Status(enum.Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """A subject, what was found, and, unless it is OK, what to do."""

    name: str
    status: Status
    found: str
    todo: str = ""


TABLE: Table[Check] = Table(
    Column("status", lambda check: check.status.value),
    Column("check", lambda check: check.name),
    Column("found", lambda check: check.found),
    Column("todo", lambda check: check.todo, "what to do"),
)


@click.command()
@cluster_options
@click.option(
    "--store",
    metavar="DIR",
    default="mqlake-data",
    show_default=True,
    help="Data directory of `mqlake serve`.",
)
@json_option
def doctor(where: ClientConfig, store: str, as_json: bool) -> None:
    """Check this machine, a data directory and a cluster; say what to do.

    The exit status is 1 if there is a problem; warnings do not count. Nothing is modified.
    """
    source_of = click.get_current_context().get_parameter_source
    asked = source_of("namesrv") is not ParameterSource.DEFAULT or where.namesrv_addr != DEFAULT_ADDRESS
    named = source_of("store") is not ParameterSource.DEFAULT
    checks = [*machine(), *ports(), *directory(store, named=named), *run(cluster(where, asked=asked))]
    TABLE.show(checks, as_json=as_json)
    if any(check.status is Status.PROBLEM for check in checks):
        sys.exit(EXIT_PROBLEM)


def machine() -> Iterator[Check]:
    """Limits, the clock and compiled code."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = files == resource.RLIM_INFINITY or files >= FILES_MIN
    yield Check(
        "open files",
        Status.OK if enough else Status.WARNING,
        "unlimited" if files == resource.RLIM_INFINITY else f"up to {files:,}",
        ""
        if enough
        else f"connections and queues need more: ulimit -n {FILES_MIN}, or LimitNOFILE= of systemd",
    )
    try:
        maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        pass
    else:
        yield Check(
            "memory maps",
            Status.OK if maps >= MAPS_MIN else Status.WARNING,
            f"up to {maps:,}",
            ""
            if maps >= MAPS_MIN
            else f"each open file of a store is one: sysctl vm.max_map_count={MAPS_MIN}",
        )
    kept = clock_is_kept()
    yield Check(
        "clock",
        Status.OK if kept else Status.WARNING,
        "synchronized" if kept else "not synchronized",
        "" if kept else "delays, retention and searches by time go by it: run an NTP client such as chrony",
    )
    compiled = native.module("records") is not None
    yield Check(
        "native code",
        Status.OK if compiled else Status.WARNING,
        "it is there" if compiled else "none",
        ""
        if compiled
        else "all work is many times slower without: "
        + (
            "unset MQLAKE_NO_NATIVE"
            if mqlake.NO_NATIVE
            else "install mqlake where there is a C compiler (gcc, clang)"
        ),
    )


def clock_is_kept() -> bool:
    """True if the kernel counts the clock as synchronized, or cannot be asked."""
    ask: Callable[[object], int] | None = getattr(ctypes.CDLL(None), "adjtimex", None)
    return ask is None or ask(ctypes.create_string_buffer(1024)) != TIME_ERROR


def ports() -> Iterator[Check]:
    """Checks the ports of `mqlake serve`."""
    for name, port in SERVE_PORTS:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            option = "--namesrv-port" if name == "name server" else "--port"
            yield Check(
                f"port {port}",
                Status.WARNING,
                os.strerror(error.errno) if error.errno else str(error),
                f"if that is not your {name}, start `mqlake serve` with {option}",
            )
        else:
            yield Check(f"port {port}", Status.OK, f"free for a {name}")


def directory(path: str, *, named: bool) -> Iterator[Check]:
    """The disk that a data directory is on, and the stores in it; a directory that was named has to be there."""
    from mqlake.store.config import MessageStoreConfig
    from mqlake.store.files.store_directory import why_not_a_directory

    if text := why_not_a_directory(path, must_exist=named):
        yield Check(f"store {path}", Status.PROBLEM, text, "name the data directory of a broker with --store")
    there = Path(path).absolute()
    while not there.exists():
        there = there.parent
    stores = [
        store for store in (Path(path), *sorted(Path(path).glob("*"))) if (store / "commitlog").is_dir()
    ]
    yield disk(str(there), needed=0 if stores else MessageStoreConfig().new_store_size)
    for store in stores:
        yield _store(str(store))


def disk(path: str, needed: int = 0) -> Check:
    """Checks a disk by the rules of a broker with default settings; `needed`: bytes that it will allocate when it
    starts there."""
    from mqlake.store.clean import DiskThresholds, judge_disk
    from mqlake.store.config import MessageStoreConfig

    space = DiskSpace.of(path)
    verdict = judge_disk(DiskThresholds.of(MessageStoreConfig()), space.used_ratio)
    found = str(space)
    if not os.access(path, os.W_OK):
        return Check(f"disk of {path}", Status.PROBLEM, "not writable", "use another directory, or chown it")
    if verdict.full:
        return Check(
            f"disk of {path}",
            Status.PROBLEM,
            found,
            "brokers refuse messages: free some space, or move the store",
        )
    if verdict.over:
        return Check(
            f"disk of {path}",
            Status.WARNING,
            found,
            "brokers delete their oldest files: free some space, or raise diskMaxUsedSpaceRatio",
        )
    if space.free < needed:
        return Check(
            f"disk of {path}",
            Status.WARNING,
            found,
            f"a new broker allocates {size_text(needed)}: free some space, or make a smaller store: {SMALL_STORE}",
        )
    return Check(f"disk of {path}", Status.OK, found)


def _store(path: str) -> Check:
    from mqlake.store.check.info import store_info

    name = f"store {path}"
    try:
        info = store_info(path)
    except NotAStoreError:
        return Check(name, Status.OK, "empty")
    except (MqlakeError, OSError) as error:
        return Check(name, Status.PROBLEM, str(error), f"mqlake store verify {path}")
    found = f"{count_text(info.messages, 'message')} in {count_text(info.topics, 'topic')}, {size_text(info.size)}"
    if info.kept_copies:
        return Check(name, Status.WARNING, info.kept_copies, f"mqlake store dropped {path}")
    if info.writer is not None:
        return Check(name, Status.OK, f"{found}; a broker is running on it")
    if not info.clean_exit:
        return Check(name, Status.WARNING, f"{found}; not closed", "it recovers when a broker opens it")
    return Check(name, Status.OK, f"{found}; closed")


async def cluster(where: ClientConfig, *, asked: bool) -> list[Check]:
    """The name servers, and the brokers that they know. `asked`: the user named them, so they have to answer."""
    from mqlake.client.admin import Admin

    name = f"name server {where.namesrv_addr}"
    try:
        async with Admin(dataclasses.replace(where, timeout_s=CONNECT_S)) as admin:
            brokers = await admin.list_brokers()
            refusals = {broker.address: await _refusal(admin, broker.address) for broker in brokers}
    except (MqlakeError, OSError) as error:
        return [
            Check(
                name,
                Status.PROBLEM if asked else Status.WARNING,
                str(error),
                "start one with `mqlake serve`, or set yours with -n",
            )
        ]
    if not brokers:
        return [
            Check(name, Status.WARNING, "no broker is registered", "set namesrvAddr of your brokers to it")
        ]
    found = [Check(name, Status.OK, f"knows {count_text(len(brokers), 'broker')}")]
    return found + [
        _reachable(f"broker {broker.name}", broker.address, refusals[broker.address]) for broker in brokers
    ]


async def _refusal(admin: Admin, address: str) -> str:
    """Why a broker takes no messages now, as far as it tells: RocketMQ's does not. Empty if it takes them."""
    try:
        return (await admin.brokers.get_broker_runtime_info(address)).get("sendRefusal", "")
    except (MqlakeError, OSError):
        return ""


def _reachable(name: str, address: str, refusal: str) -> Check:
    try:
        socket.create_connection(parse_address(address), timeout=CONNECT_S).close()
    except (OSError, MqlakeError) as error:
        return Check(
            name,
            Status.PROBLEM,
            f"{address}: {error}",
            "start it; or set brokerIP1 to an address that clients can reach",
        )
    if refusal:
        found = f"{address} refuses messages: {refusal}"
        return Check(name, Status.PROBLEM, found, "free some space, or end the cause")
    return Check(name, Status.OK, f"{address} answers")
