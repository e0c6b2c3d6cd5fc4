"""Dashboard: the original's pages, as HTML or JSON.

    /dashboard         instance, version, system     /topics            topics with messages
    /cluster           the brokers in ZooKeeper      /topics/T          one of them; ?group=G: what is left for G
    /logging           the last lines of the log
    /java-properties   the process                   /thread-dump       the stacks of its threads
    POST /topics/T/groups/G/partitions/P/skip        the group continues at the end, if no consumer owns the partition

A page is a value; clients that accept HTML get it as tables (`as_html`), others as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import logging
import os
import platform
import resource
import sys
import threading
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mqlake.base.net import parse_address
from mqlake.errors import ConfigError, MqlakeError, RemotingError
from mqlake.metaq.broker.command_processor import VERSION
from mqlake.metaq.config.ini import parse_ini
from mqlake.metaq.config.meta_config import SystemConfig
from mqlake.metaq.formats.command import BooleanCommand, StatsCommand
from mqlake.metaq.message import Partition
from mqlake.metaq.wire.connection import Connection
from mqlake.metaq.zookeeper.paths import ConsumedOffset
from mqlake.metaq.zookeeper.session import ZkSession

if TYPE_CHECKING:
    from mqlake.metaq.broker.broker import MetaMorphosisBroker

Value = Any
"""A page: anything that orjson can write."""

LOG_LINES = 500
ASK_S = 2.0
PAGES = ("dashboard", "cluster", "topics", "stats", "config", "logging", "java-properties", "thread-dump")
"""The links of each page; `stats` and `config` are text."""


class _LastLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.lines: deque[str] = deque(maxlen=LOG_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Dashboard:
    """Keeps the last lines of the log from the constructor to `close`."""

    def __init__(self, broker: MetaMorphosisBroker) -> None:
        self._broker = broker
        self._started = time.time()
        self._logged = _LastLines()
        logging.getLogger("mqlake").addHandler(self._logged)

    def close(self) -> None:
        logging.getLogger("mqlake").removeHandler(self._logged)

    async def page(self, words: list[str], query: dict[str, str]) -> Value:
        """The page for the words of a path; None if there is no such page. MqlakeError, OSError."""
        match words:
            case []:
                return {"brokerId": self._broker.config.system.broker_id, "version": VERSION}
            case ["dashboard"]:
                return self._dashboard()
            case ["cluster"]:
                return await self._cluster()
            case ["topics"]:
                return [self._topic(topic) for topic in self._topics()]
            case ["topics", topic] if topic in self._topics():
                if group := query.get("group"):
                    return await asyncio.to_thread(self._group, topic, group)
                return self._topic(topic)
            case ["logging"]:
                return "\n".join(self._logged.lines) or "the log is empty"
            case ["java-properties"]:
                return _properties()
            case ["thread-dump"]:
                return _threads()
        return None

    async def skip(self, topic: str, group: str, partition: int) -> Value:
        """Moves the group to the end of the partition. ConfigError if a consumer owns it, RemotingError."""
        return await asyncio.to_thread(self._skip, topic, group, partition)

    # --- the pages

    def _dashboard(self) -> Value:
        system = self._broker.config.system
        return {
            "instance": {
                "startup": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._started)),
                "host": self._broker.broker_string,
                "data": system.effective_data_path,
                "transactionLog": system.effective_data_log_path,
                "cwd": os.getcwd(),
            },
            "version": {"metaq": VERSION, "brokerId": system.broker_id, "uri": self._broker.broker_string},
            "system": _system(),
        }

    async def _cluster(self) -> Value:
        session, paths = self._session, self._broker.zookeeper_paths

        def read() -> list[tuple[str, str, str]]:
            return [
                (broker_id, name, (session.read(f"{paths.broker_ids}/{broker_id}/{name}") or b"").decode())
                for broker_id in session.children(paths.broker_ids)
                for name in session.children(f"{paths.broker_ids}/{broker_id}")
                if name == "master" or name.startswith("slave")
            ]

        found = await asyncio.to_thread(read)
        pages = await asyncio.gather(*(_dashboard_of(address) for _, _, address in found))
        return [
            {
                "broker": broker_id,
                "slave": name != "master",
                "uri": address,
                "dashboard": page,
                "current": address == self._broker.broker_string,
            }
            for (broker_id, name, address), page in zip(found, pages, strict=True)
        ]

    def _topics(self) -> list[str]:
        return sorted({store.topic for store in self._broker.manager.stores()})

    def _topic(self, topic: str) -> dict[str, Value]:
        stores = self._broker.manager.stores(topic)
        config = self._broker.config.topic_config(topic)
        return {
            "topic": topic,
            "partitions": len(stores),
            "messages": sum(store.message_count for store in stores),
            "bytes": sum(store.size for store in stores),
            "averageSize": self._average_size(topic),
            "acceptPublish": config.accept_publish,
            "acceptSubscribe": config.accept_subscribe,
        }

    def _average_size(self, topic: str) -> int | None:
        """Bytes per record; None if no record was counted: those of old segments are not."""
        stores = self._broker.manager.stores(topic)
        counted = sum(store.message_count for store in stores)
        size = sum(store.segments[-1].message_set.size for store in stores)
        return round(size / counted) if counted else None

    def _group(self, topic: str, group: str) -> Value:
        session, paths = self._session, self._broker.zookeeper_paths
        if not session.children(f"{paths.consumers}/{group}"):
            raise ConfigError(f"there is no consumer group {group!r}")
        average, broker_id = self._average_size(topic), self._broker.config.system.broker_id
        rows = []
        for store in self._broker.manager.stores(topic):
            partition = Partition(broker_id, store.partition)
            raw = session.read(paths.consumer_offset(group, topic, partition))
            offset = ConsumedOffset.decode(raw).offset if raw else 0
            pending, consumed = store.max_offset - offset, offset - store.min_offset
            rows.append(
                {
                    "partition": store.partition,
                    "owner": (session.read(paths.consumer_owner(group, topic, partition)) or b"").decode(),
                    "pendingMessages": round(pending / average) if average else None,
                    "pendingBytes": pending,
                    "consumedMessages": round(consumed / average) if average else None,
                    "consumedBytes": consumed,
                    "skip": f"/topics/{quote(topic)}/groups/{quote(group)}/partitions/{store.partition}/skip",
                }
            )
        own_filter = self._broker.config.topic_config(topic).filter_class_names.get(group)
        return {"topic": self._topic(topic), "group": {"name": group, "filter": own_filter}, "pending": rows}

    def _skip(self, topic: str, group: str, number: int) -> Value:
        session, paths = self._session, self._broker.zookeeper_paths
        store = self._broker.manager.get(topic, number)
        if store is None:
            raise ConfigError(f"there is no partition {topic}-{number}")
        partition = Partition(self._broker.config.system.broker_id, number)
        owner = session.read(paths.consumer_owner(group, topic, partition))
        if owner:
            raise ConfigError(f"{owner.decode()} owns the partition; stop the consumers first")
        end = ConsumedOffset(store.max_offset)
        session.put_persistent(paths.consumer_offset(group, topic, partition), end.encode())
        return {"group": group, "partition": f"{topic}-{number}", "offset": end.offset}

    @property
    def _session(self) -> ZkSession:
        zookeeper = self._broker.zookeeper
        if zookeeper is None or zookeeper.session is None:
            raise ConfigError("the broker runs without ZooKeeper")
        if not zookeeper.session.connected:
            raise RemotingError("the connection to ZooKeeper is lost")
        return zookeeper.session


def _system() -> Value:
    memory = {}
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        memory = {
            name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in file)
        }
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "processors": os.cpu_count(),
        "memory": memory.get("MemTotal"),
        "memoryAvailable": memory.get("MemAvailable"),
        "swap": memory.get("SwapTotal"),
        "swapFree": memory.get("SwapFree"),
        "fileDescriptorsMax": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "fileDescriptors": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None,
        "peakMemory": used.ru_maxrss << 10,
        "cpuSeconds": round(used.ru_utime + used.ru_stime, 2),
    }


def _properties() -> Value:
    return {
        "python": sys.version,
        "executable": sys.executable,
        "arguments": " ".join(sys.argv),
        "platform": platform.platform(),
        "pid": os.getpid(),
        "cwd": os.getcwd(),
    }


def _threads() -> Value:
    frames = sys._current_frames()
    return {
        thread.name: "".join(traceback.format_stack(frames[thread.ident]))
        for thread in threading.enumerate()
        if thread.ident in frames
    }


async def _dashboard_of(address: str) -> str | None:
    """The URL of another broker's dashboard, from its configuration; None if that is not available."""
    try:
        host, port = parse_address(address.removeprefix("meta://"))
        async with asyncio.timeout(ASK_S):
            _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
            try:
                answer = await connection.invoke(StatsCommand("config", 1), ASK_S)
            finally:
                connection.close()
        text = answer.message if isinstance(answer, BooleanCommand) and answer.code == 200 else ""
        configured = parse_ini(text).get("system", {}).get("dashboardHttpPort")
        return f"http://{host}:{configured or SystemConfig.dashboard_http_port}" if text else None
    except (MqlakeError, OSError, TimeoutError):
        return None


# --- as HTML

_STYLE = (
    "body{font:15px sans-serif;margin:1.5em;color:#222}nav a{margin-right:1em}table{border-collapse:collapse;"
    "margin:.6em 0}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:left;vertical-align:top}"
    "th{background:#f2f2f2}pre{margin:0;overflow-x:auto}"
)


def as_html(path: str, value: Value) -> bytes:
    """A page: objects are tables with a row per field, lists of objects tables with a row each."""
    links = "".join(f'<a href="/{page}">{page}</a>' for page in PAGES)
    words = path.strip("/").split("/")
    form = (
        '<form><input name="group" placeholder="consumer group"><button>show what it has not consumed</button></form>'
        if words[0] == "topics" and len(words) == 2
        else ""
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>MetaQ {html.escape(path)}</title><style>{_STYLE}</style>"
        f"<nav>{links}</nav><h1>{html.escape(path)}</h1>{form}{_cell('', value)}\n"
    ).encode()


def _cell(name: str, value: Value) -> str:
    if isinstance(value, dict):
        rows = (f"<tr><th>{html.escape(key)}<td>{_cell(key, each)}" for key, each in value.items())
        return f"<table>{''.join(rows)}</table>"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        head = "".join(f"<th>{html.escape(key)}" for key in value[0])
        rows = ("<tr>" + "".join(f"<td>{_cell(key, row[key])}" for key in row) for row in value)
        return f"<table><tr>{head}{''.join(rows)}</table>"
    if isinstance(value, list):
        return ", ".join(_cell(name, each) for each in value) or "none"
    text = html.escape("" if value is None else str(value).lower() if isinstance(value, bool) else str(value))
    if name == "topic":
        return f'<a href="/topics/{html.escape(quote(value))}">{text}</a>'
    if name == "skip":
        return f'<form method="post" action="{text}"><button>skip what is pending</button></form>'
    if text.startswith("http://"):
        return f'<a href="{text}">{text}</a>'
    return f"<pre>{text}</pre>" if "\n" in text else text
