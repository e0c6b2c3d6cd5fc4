"""A group of brokers with failover, in processes that can be killed, with a name server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from pathlib import Path

from mqlake.broker.failover.record import Record
from mqlake.broker.failover.service import parse_where
from mqlake.client import Message, Producer
from mqlake.client.config import ClientConfig
from mqlake.errors import MqlakeError, ResponseError
from mqlake.message import MessageExtBrokerInner
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import QueryConsumerOffsetRequestHeader
from mqlake.remoting.headers.produce import SendMessageRequestHeader
from mqlake.store.message_store import open_store
from mqlake.store.results import PUT_OK
from tests.campaign.cluster import STORE as CAMPAIGN
from tests.campaign.cluster import Node, read_log
from tests.campaign.forker import Forker
from tests.campaign.proxy import HALinks
from tests.ports import free_ports
from tests.waiting import PATIENCE_S, trying, until_async

STORE = {
    "flushDiskType": "ASYNC_FLUSH",
    "brokerName": "a",
    "brokerClusterName": "c",
    "haSendHeartbeatInterval": 500,
    "failoverLease": 2000,
    "defaultTopicQueueNums": 1,
}
FILE_SIZES = {"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"}
TOPIC = "orders"
BEHIND_LINKS = "127.0.0.2"
"""Where brokers listen for slaves, which come by 127.0.0.1."""


class Group:
    """`async with`: the brokers run, and nothing does afterwards."""

    def __init__(
        self,
        directory: Path,
        url: str,
        *,
        replicas: int,
        through: list[str] | None = None,
        own_disks: bool = False,
        ha_links: bool = False,
        **settings: object,
    ) -> None:
        """`through`: the service as each replica reaches it, if not as the test does. `own_disks`: that can be filled,
        if this process may mount them. `ha_links`: slaves get the log through links that can fail."""
        self.directory = directory
        self._forker = Forker(directory / "forker.log")
        self.namesrv = f"127.0.0.1:{free_ports(1)}"
        where = parse_where(f"{url}/{directory.name}")
        self.endpoints = where.endpoints
        self._key = f"{where.group('c', 'a')}/record"
        self.nodes = [
            Node(
                f"r{number}",
                directory,
                {
                    **STORE,
                    "failover": f"{through[number] if through else url}/{directory.name}",
                    "brokerId": number,
                    "brokerRole": "SLAVE" if number else "SYNC_MASTER",
                    **settings,
                },
                self._forker,
                own_disk=own_disks,
            )
            for number in range(replicas)
        ]
        self.ha_links: list[HALinks] = []
        """Of each replica, by the number of the one that follows it."""
        for node in self.nodes if ha_links else ():
            node.settings["haBindAddress"], port = BEHIND_LINKS, node.port + 1
            self.ha_links.append(HALinks(port, (BEHIND_LINKS, port), range(replicas)))
        self._number = itertools.count()
        self.last_record: Record | None = None

    async def __aenter__(self) -> Group:
        host, _, port = self.namesrv.partition(":")
        args = ["namesrv", "--host", host, "--port", port, "--kv-path", str(self.directory / "kv.json")]
        self._forker.fork(args, self.directory / "namesrv.log")
        for links in self.ha_links:
            await links.start()
        for node in self.nodes:
            node.start(self.namesrv)
        return self

    async def __aexit__(self, *_: object) -> None:
        for links in self.ha_links:
            await links.close()
        for node in self.nodes:
            node.close()
        self._forker.close()

    def node(self, replica: int) -> Node:
        return self.nodes[replica]

    def record(self) -> Record | None:
        from mqlake.broker.failover.etcd import Etcd

        with contextlib.closing(Etcd(self.endpoints, 2.0)) as client:
            try:
                data = client.read(self._key).data
            except MqlakeError:
                return None
        self.last_record = None if data is None else Record.from_json(data)
        return self.last_record

    async def master(self, after: int = 0) -> Record:
        """The record of the first epoch after `after`."""

        def found() -> Record | None:
            record = self.record()
            return record if record is not None and record.epoch > after and not record.released else None

        record = await until_async(found, f"a master after epoch {after}: {self.last_words()}")
        assert record is not None
        return record

    async def in_sync(self, count: int) -> Record:
        def found() -> Record | None:
            record = self.record()
            return record if record is not None and len(record.in_sync) == count else None

        record = await until_async(found, f"{count} replicas are in sync")
        assert record is not None
        return record

    def last_words(self) -> str:
        return "\n".join(f"--- {node.name}\n{node.last_words()}" for node in self.nodes)

    async def send(self, count: int) -> list[bytes]:
        """Sends until so many messages are acknowledged; their bodies."""
        acknowledged = []
        where = ClientConfig(namesrv_addr=self.namesrv, poll_name_server_interval_s=0.2)
        deadline = time.monotonic() + PATIENCE_S
        async with Producer("p", where) as producer:
            while len(acknowledged) < count:
                assert time.monotonic() < deadline, f"nothing is acknowledged:\n{self.last_words()}"
                body = b"%d" % next(self._number)
                try:
                    result = await producer.send(Message(TOPIC, body), timeout_s=1.0)
                except MqlakeError:
                    await asyncio.sleep(0.05)
                    continue
                if result.send_status.name == "SEND_OK":
                    acknowledged.append(body)
        return acknowledged

    async def heal(self) -> None:
        """Every broker runs, reaches the others, and has room."""
        for links in self.ha_links:
            for link in links.links.values():
                link.set("up")
        for node in self.nodes:
            node.empty_disk()
            node.send_signal(signal.SIGCONT)
            if not node.runs:
                node.start(self.namesrv)

    async def stop(self) -> None:
        """Ends all brokers cleanly."""
        for node in self.nodes:
            node.send_signal(signal.SIGTERM)
        for node in self.nodes:
            await node.end(signal.SIGTERM)

    def bodies(self, node: Node) -> list[bytes]:
        """Of the messages in the log of a node that has stopped, in their order."""
        with open_store(
            node.store, {key: str(value) for key, value in CAMPAIGN.items() if key in FILE_SIZES}
        ) as store:
            return [record.body for record in read_log(store, [TOPIC]).records]

    def append(self, node: Node, bodies: list[bytes]) -> None:
        """To the log of a node that has ended, as its broker would have."""
        with open_store(node.store, _store_settings()) as store:
            for body in bodies:
                message = MessageExtBrokerInner(topic=TOPIC, body=body, queue_id=0)
                assert store.put_message(message).status is PUT_OK

    async def send_to(self, node: Node, body: bytes) -> int:
        """The response code of a send to this broker, whatever the name server says; -1 without an answer."""
        async with RemotingClient() as client:
            header = SendMessageRequestHeader(
                producer_group="p",
                topic=TOPIC,
                default_topic="TBW102",
                default_topic_queue_nums=1,
                queue_id=0,
                sys_flag=0,
                born_timestamp=1,
                flag=0,
                properties="",
            )
            request = RemotingCommand.create_request(RequestCode.SEND_MESSAGE, header, body=body)
            try:
                await client.call(node.address, request, 3.0)
            except ResponseError as error:
                return error.code
            except MqlakeError:
                return -1
            return 0

    async def committed(self, group: str, node: Node) -> int:
        """What this broker knows of a group's offset in the first queue; 0: nothing."""
        async with RemotingClient() as client:
            header = QueryConsumerOffsetRequestHeader(consumer_group=group, topic=TOPIC, queue_id=0)
            request = RemotingCommand.create_request(RequestCode.QUERY_CONSUMER_OFFSET, header)
            try:
                answer = await client.call(node.address, request, 3.0)
            except MqlakeError:
                return 0
            return int(answer.ext_fields["offset"])

    async def until_refused(self) -> None:
        """Until nobody acknowledges messages."""
        for _ in trying("no master takes messages"):
            record = self.last_record
            assert record is not None
            if await self.send_to(self.node(record.master), b"refused?") != 0:
                return
            await asyncio.sleep(0.05)


def _store_settings() -> dict[str, str]:
    return {key: str(value) for key, value in CAMPAIGN.items() if key in FILE_SIZES}
