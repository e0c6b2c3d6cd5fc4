"""BrokerOuterAPI: requests from a broker to name servers, and to other brokers.

What a broker registers goes to all name servers at once. One that does not answer is logged and tried again with the
next registration; no request fails because of it. What a broker asks is answered by the first that can.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from mqlake.auth.config import Credentials
from mqlake.auth.signed_client import remoting_client
from mqlake.errors import FormatError, MqlakeError, ResponseError
from mqlake.message import crc32
from mqlake.remoting.bodies.route import ClusterInfo, QueueData, TopicRouteData
from mqlake.remoting.bodies.topic import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.headers.namesrv import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicRequestHeader,
    UnRegisterBrokerRequestHeader,
)

logger = logging.getLogger(__name__)

TOPICS_AT_ONCE = 200
"""A body with more topics is encoded on a thread: it takes longer than one turn of the event loop."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """The identity and addresses under which a broker registers."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str


@dataclass(slots=True, kw_only=True)
class RegisterBrokerResult:
    """The answer of one name server."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    order_topics: dict[str, str] = field(default_factory=dict)
    """ORDER_TOPIC_CONFIG: topic → queues."""


class BrokerOuterAPI:
    def __init__(
        self,
        name_servers: list[str],
        on_lost: Callable[[], None] = lambda: None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`on_lost` is called when the connection to a name server is lost. `tls`: None for no TLS. `credentials`: what
        requests are signed with; None: nothing."""
        self.name_servers = name_servers
        self._client = remoting_client(credentials, tls)
        self._client.on_close.append(lambda _: on_lost())
        self._away: set[str] = set()

    async def register_broker_all(
        self,
        identity: BrokerIdentity,
        wrapper: TopicConfigAndMappingSerializeWrapper,
        timeout_s: float,
        *,
        partial: bool = False,
    ) -> list[RegisterBrokerResult | None]:
        """Registers the broker with the topics of the wrapper; `partial`: it has others. The answer of each name
        server, None if there was none."""
        encode = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).to_json
        many = len(wrapper.topic_config_table) > TOPICS_AT_ONCE
        body = await asyncio.to_thread(encode) if many else encode()
        header = RegisterBrokerRequestHeader(
            cluster_name=identity.cluster_name,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            broker_addr=identity.broker_addr,
            ha_server_addr=identity.ha_server_addr,
            # a name server that starts while the master is away takes the topics from a slave that says this
            enable_acting_master=False if identity.broker_id else None,
            body_crc32=crc32(body),
            partial=partial or None,
        )

        async def register(address: str) -> RegisterBrokerResult:
            request = RemotingCommand.create_request(RequestCode.REGISTER_BROKER, header, body)
            answer = await self._client.call(address, request, timeout_s)
            known = answer.decode_header(RegisterBrokerResponseHeader)
            table = KVTable.from_json(answer.body_bytes()).table if answer.body else {}
            return RegisterBrokerResult(
                ha_server_addr=known.ha_server_addr, master_addr=known.master_addr, order_topics=table
            )

        return await self._ask_all(register)

    async def need_register(self, identity: BrokerIdentity, version: DataVersion, timeout_s: float) -> bool:
        """True if any name server has another version of this broker's topics, or does not answer."""

        async def changed(address: str) -> bool:
            header = QueryDataVersionRequestHeader(
                cluster_name=identity.cluster_name,
                broker_name=identity.broker_name,
                broker_id=identity.broker_id,
                broker_addr=identity.broker_addr,
            )
            request = RemotingCommand.create_request(
                RequestCode.QUERY_DATA_VERSION, header, version.to_json()
            )
            answer = await self._client.call(address, request, timeout_s)
            return answer.decode_header(QueryDataVersionResponseHeader).changed

        return any(answer is not False for answer in await self._ask_all(changed))

    async def register_single_topic_all(self, broker_name: str, config: TopicConfig) -> bool:
        """Registers one topic, without the rest of a registration; returns True if all name servers answered."""
        route = TopicRouteData(
            queue_datas=[
                QueueData(
                    broker_name=broker_name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                )
            ]
        )
        header = RegisterTopicRequestHeader(topic=config.topic_name)

        async def register(address: str) -> bool:
            request = RemotingCommand.create_request(
                RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, route.to_json()
            )
            await self._client.call(address, request)
            return True

        return None not in await self._ask_all(register)

    async def topic_route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic from the first name server that answers; None if none does or knows it."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        body = await self._ask_first(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        return None if body is None else TopicRouteData.from_json(body)

    async def cluster_info(self) -> ClusterInfo | None:
        """The brokers that the first name server that answers knows; None if none does."""
        body = await self._ask_first(RequestCode.GET_BROKER_CLUSTER_INFO)
        return None if body is None else ClusterInfo.from_json(body)

    async def _ask_first(self, code: RequestCode, header: CommandHeader | None = None) -> bytes | None:
        for address in self.name_servers:
            try:
                answer = await self._client.call(address, RemotingCommand.create_request(code, header))
                return answer.body_bytes()
            except ResponseError:
                return None
            except MqlakeError:
                continue
        return None

    async def ask_broker(self, address: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """The answer of another broker, whatever its code. RemotingConnectError, RemotingTimeoutError."""
        return await self._client.invoke(address, request, timeout_s)

    async def unregister_broker_all(self, identity: BrokerIdentity, timeout_s: float) -> None:
        header = UnRegisterBrokerRequestHeader(
            cluster_name=identity.cluster_name,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            broker_addr=identity.broker_addr,
        )

        async def unregister(address: str) -> None:
            request = RemotingCommand.create_request(RequestCode.UNREGISTER_BROKER, header)
            await self._client.call(address, request, timeout_s)

        await self._ask_all(unregister)

    async def _ask_all(self, ask: Callable[[str], Awaitable[T]]) -> list[T | None]:
        return list(await asyncio.gather(*(self._ask(address, ask) for address in self.name_servers)))

    async def _ask(self, address: str, ask: Callable[[str], Awaitable[T]]) -> T | None:
        try:
            answer = await ask(address)
        except (MqlakeError, FormatError) as error:
            if address not in self._away:  # logged once, not every few seconds
                self._away.add(address)
                logger.warning("cannot register with the name server %s: %s; trying again", address, error)
            return None
        if address in self._away:
            self._away.discard(address)
            logger.warning("registered with the name server %s again", address)
        return answer

    async def close(self) -> None:
        await self._client.close()
