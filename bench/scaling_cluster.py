"""A name server and the brokers of a cluster, which this process plays over real sockets: points of bench.scaling.

Each broker has its own connection and registers with what a broker of mqlake sends; clients' queries are those of
mqlake's client. What is measured is the name server's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.brokers import OneProcess, Server

from mqlake.broker.services.outer_api import BrokerIdentity, BrokerOuterAPI
from mqlake.client.api.name_servers import NameServers
from mqlake.namesrv.route_info_manager import RouteInfoManager
from mqlake.remoting.bodies.topic import TopicConfig, TopicConfigAndMappingSerializeWrapper
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.namesrv import GetRouteInfoRequestHeader
from mqlake.remoting.loop import run

TOPICS = 1000
"""Of each broker."""
TIMEOUT_S = 120.0
QUERIES = 4000
IN_FLIGHT = 64
PERIOD_S = 30
"""Between two registrations of a broker."""
SCANS = 200
MIB = 1 << 20


class NameServer(OneProcess):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self) -> None:
        command = [sys.executable, "-m", "mqlake", "namesrv", "--json", "--host", "127.0.0.1", "-p", "0"]
        command += ["--kv-path", str(self._directory / "kv.json")]
        self._server = Server(command, r'"namesrv": *"([^"]+)"', self._directory / "namesrv.log", {})
        self.namesrv = self.address = self._server.match[1]


class CpuClock:
    """The processor time of a server, of one piece of work after the other."""

    def __init__(self, server: OneProcess) -> None:
        self._server = server

    async def of(self, work: Awaitable[object]) -> float:
        before = self._server.cpu_seconds()
        await work
        return self._server.cpu_seconds() - before


@dataclass(frozen=True)
class PlayedBroker:
    identity: BrokerIdentity
    topics: TopicConfigAndMappingSerializeWrapper
    api: BrokerOuterAPI

    async def register(self) -> None:
        (answer,) = await self.api.register_broker_all(self.identity, self.topics, TIMEOUT_S)
        assert answer is not None, self.identity


def played(namesrv: str, count: int, topic: Callable[[int, int], str]) -> list[PlayedBroker]:
    """Brokers with TOPICS topics each, named by broker and number."""
    brokers = []
    for number in range(count):
        names = [topic(number, n) for n in range(TOPICS)]
        wrapper = TopicConfigAndMappingSerializeWrapper(
            topic_config_table={name: TopicConfig(topic_name=name) for name in names}
        )
        wrapper.data_version.next_version()
        address = f"10.0.{number // 250}.{number % 250 + 1}"
        identity = BrokerIdentity(
            cluster_name="Cluster",
            broker_name=f"broker-{number}",
            broker_id=0,
            broker_addr=f"{address}:10911",
            ha_server_addr=f"{address}:10912",
        )
        brokers.append(PlayedBroker(identity, wrapper, BrokerOuterAPI([namesrv])))
    return brokers


async def register_all(brokers: Sequence[PlayedBroker]) -> None:
    for broker in brokers:
        await broker.register()


async def query(client: RemotingClient, namesrv: str, topics: Sequence[str]) -> list[int]:
    """The sizes of the topics' routes, IN_FLIGHT asked for at a time."""
    sizes: list[int] = []
    left = iter(topics)

    async def ask() -> None:
        for topic in left:
            sizes.append(len((await client.call(namesrv, route_request(topic))).body_bytes()))

    await asyncio.gather(*(ask() for _ in range(IN_FLIGHT)))
    return sizes


def route_request(topic: str) -> RemotingCommand:
    header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
    return RemotingCommand.create_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)


async def answer_of(server: NameServer, client: RemotingClient, code: RequestCode) -> tuple[int, float]:
    """Bytes of the answer to a request without a header, and the server's processor time for it."""
    before = server.cpu_seconds()
    answer = await client.call(server.namesrv, RemotingCommand.create_request(code), TIMEOUT_S)
    return len(answer.body_bytes()), server.cpu_seconds() - before


def scan_seconds(brokers: Sequence[PlayedBroker]) -> float:
    """Of one look for inactive brokers, none of which is."""
    routes = RouteInfoManager(lambda: 0)
    for broker in brokers:
        identity = broker.identity
        routes.register_broker(
            identity.cluster_name, identity.broker_addr, identity.broker_name, 0, "", broker.topics
        )
    began = time.process_time()
    for _ in range(SCANS):
        routes.scan_not_active_broker()
    return (time.process_time() - began) / SCANS


async def registered(server: NameServer, count: int, topic: Callable[[int, int], str]) -> dict[str, float]:
    """All figures of a name server with `count` brokers."""
    clock, brokers, empty = CpuClock(server), played(server.namesrv, count, topic), server.resident()
    first = await clock.of(register_all(brokers))
    again = await clock.of(register_all(brokers))
    resident = server.resident()
    async with RemotingClient() as client:
        asked = [topic(n % count, n * 7 % TOPICS) for n in range(QUERIES)]
        sizes = await query(client, server.namesrv, asked[:IN_FLIGHT])
        queries = await clock.of(query(client, server.namesrv, asked))
        list_size, list_s = await answer_of(server, client, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        info_size, info_s = await answer_of(server, client, RequestCode.GET_BROKER_CLUSTER_INFO)

        async def leave() -> None:
            await asyncio.gather(*(broker.api.close() for broker in brokers))
            known = NameServers(client, [server.namesrv])
            while (await known.get_broker_cluster_info()).broker_addr_table:
                await asyncio.sleep(0.05)

        gone = await clock.of(leave())
    return {
        "first registration, ms a broker": first / count * 1e3,
        "later registration, ms a broker": again / count * 1e3,
        "all, every 30 s, CPU % of one": again / PERIOD_S * 100,
        "memory, MiB more than empty": (resident - empty) / MIB,
        "route query, µs": queries / QUERIES * 1e6,
        "route answer, bytes": sum(sizes) / len(sizes),
        "list of topics, bytes": list_size,
        "list of topics, ms": list_s * 1e3,
        "cluster info, bytes": info_size,
        "cluster info, ms": info_s * 1e3,
        "scan of inactive brokers, µs": scan_seconds(brokers) * 1e6,
        "all brokers leave, ms": gone * 1e3,
    }


def own_topics(directory: Path, size: float) -> dict[str, float]:
    """`size` brokers, each with topics that no other has."""
    with NameServer(directory) as server:
        return run(registered(server, int(size), lambda broker, number: f"Topic-{broker}-{number}"))


def shared_topics(directory: Path, size: float) -> dict[str, float]:
    """`size` brokers that all have the same topics."""
    with NameServer(directory) as server:
        return run(registered(server, int(size), lambda broker, number: f"Topic-{number}"))


# --- a cluster at work


def live(directory: Path, size: float) -> dict[str, float]:
    """100 brokers that register every 30 s, and `size` clients, each on a connection of its own, that ask for a route
    each second: for as long as each broker registers once."""
    raise_limit()
    with NameServer(directory) as server:
        return run(_live(server, 100, int(size)))


def raise_limit() -> None:
    """Lets this process have as many sockets as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def paced(count: int, seconds: float) -> Iterator[float]:
    """When each of `count` is due, from now on."""
    began = time.monotonic()
    return (began + number * seconds / count for number in range(count))


async def _live(server: NameServer, brokers: int, clients: int) -> dict[str, float]:
    all_brokers = played(server.namesrv, brokers, lambda broker, number: f"Topic-{broker}-{number}")
    await register_all(all_brokers)
    async with contextlib.AsyncExitStack() as stack:
        asking = [await stack.enter_async_context(RemotingClient()) for _ in range(clients)]
        for client in asking:
            await client.call(server.namesrv, route_request("Topic-0-0"))
        registrations = await CpuClock(server).of(_registrations(all_brokers))
        both = await CpuClock(server).of(
            asyncio.gather(_registrations(all_brokers), _queries(server.namesrv, asking, brokers))
        )
        resident = server.resident()
    for broker in all_brokers:
        await broker.api.close()
    return {
        "registrations alone, CPU % of one": registrations / PERIOD_S * 100,
        "with the queries, CPU % of one": both / PERIOD_S * 100,
        "a query, µs": (both - registrations) / (clients * PERIOD_S) * 1e6,
        "memory, MiB": resident / MIB,
    }


async def _registrations(brokers: Sequence[PlayedBroker]) -> None:
    for broker, due in zip(brokers, paced(len(brokers), PERIOD_S), strict=True):
        await asyncio.sleep(due - time.monotonic())
        await broker.register()


async def _queries(namesrv: str, clients: Sequence[RemotingClient], brokers: int) -> None:
    """Each client asks once a second; those of 20 ms together, as an event loop wakes."""
    count = len(clients) * PERIOD_S
    pending: set[asyncio.Task[object]] = set()
    for number, due in enumerate(paced(count, PERIOD_S)):
        if due > time.monotonic():
            await asyncio.sleep(0.02)
        topic = f"Topic-{number % brokers}-{number * 7 % TOPICS}"
        call = clients[number % len(clients)].call(namesrv, route_request(topic))
        task: asyncio.Task[object] = asyncio.ensure_future(call)
        pending.add(task)
        task.add_done_callback(pending.discard)
    await asyncio.gather(*pending)
