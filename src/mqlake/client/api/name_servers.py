"""NameServers: requests to the name servers of a cluster, one method for each request code.

Reads go to the first that answers, in the order given; changes go to all of them, since name servers do not talk to
each other. Method names are those of RocketMQ's MQClientAPIImpl.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mqlake.base.java_properties import format_properties, parse_properties
from mqlake.base.net import parse_address
from mqlake.client.api.calls import ServerCalls
from mqlake.errors import ConfigError, RemotingConnectError, RemotingTimeoutError, ResponseError
from mqlake.remoting.bodies.route import ClusterInfo, TopicRouteData
from mqlake.remoting.bodies.topic import KVTable, TopicList
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import Body, RemotingCommand
from mqlake.remoting.headers import namesrv as headers
from mqlake.remoting.headers.codec import CommandHeader

DEFAULT_ADDRESS = "127.0.0.1:9876"


def parse_addresses(text: str) -> list[str]:
    """`"10.0.0.1:9876;10.0.0.2:9876"` → its addresses; commas and spaces separate as well. Raises
    ConfigError if there is no address or one is invalid."""
    addresses = [address for address in re.split(r"[;,\s]+", text) if address]
    if not addresses:
        raise ConfigError("no name server: host:port is needed, several separated by `;`")
    for address in addresses:
        try:
            parse_address(address)
        except RemotingConnectError:
            raise ConfigError(
                f"{address!r} is not an address of a name server: host:port is needed"
            ) from None
    return addresses


class NameServers(ServerCalls):
    """Raises RemotingConnectError and RemotingTimeoutError if none answers, ResponseError for a refusal."""

    def __init__(
        self, client: RemotingClient, addresses: Sequence[str], *, timeout_s: float | None = None
    ) -> None:
        super().__init__(client, timeout_s=timeout_s)
        self.addresses = list(addresses)

    async def _ask(
        self, address: str, code: int, header: CommandHeader | None, body: Body = None
    ) -> RemotingCommand:
        """Asks one name server; a broker at that address refuses, and the error says what may be wrong."""
        try:
            return await self._call(address, code, header, body)
        except ResponseError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            hint = f"{error.remark}; is {address} a broker's port? Name servers mostly listen on 9876"
            raise ResponseError(error.code, hint) from error

    async def _call_first(self, code: int, header: CommandHeader | None = None) -> RemotingCommand:
        *others, last = self.addresses
        for address in others:
            try:
                return await self._ask(address, code, header)
            except (RemotingConnectError, RemotingTimeoutError):
                continue
        return await self._ask(last, code, header)

    async def _call_all(
        self, code: int, header: CommandHeader | None = None, body: Body = None
    ) -> dict[str, RemotingCommand]:
        """The answers of all; the first failure is raised."""
        return {address: await self._ask(address, code, header, body) for address in self.addresses}

    # --- routes

    async def get_topic_route_info(self, topic: str) -> TopicRouteData:
        """Which brokers have the topic, and how many queues each. ResponseError 17 for an unknown topic."""
        header = headers.GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        answer = await self._call_first(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        return TopicRouteData.from_json(answer.body_bytes())

    async def get_broker_cluster_info(self) -> ClusterInfo:
        answer = await self._call_first(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.from_json(answer.body_bytes())

    async def get_topic_list(self) -> set[str]:
        """Every topic that some broker has registered."""
        answer = await self._call_first(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return TopicList.from_json(answer.body_bytes()).topic_list

    async def get_topics_by_cluster(self, cluster: str) -> set[str]:
        header = headers.GetTopicsByClusterRequestHeader(cluster=cluster)
        answer = await self._call_first(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        return TopicList.from_json(answer.body_bytes()).topic_list

    async def get_system_topic_list_from_ns(self) -> set[str]:
        """The topics that name servers and brokers keep for themselves; each cluster and broker has one."""
        answer = await self._call_first(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        return TopicList.from_json(answer.body_bytes()).topic_list

    async def delete_topic_in_nameserver(self, topic: str, cluster: str | None = None) -> None:
        header = headers.DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
        await self._call_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)

    # --- write permission

    async def wipe_write_perm_of_broker(self, broker_name: str) -> dict[str, int]:
        """Name server → topics of the broker that clients no longer send to."""
        header = headers.WipeWritePermOfBrokerRequestHeader(broker_name=broker_name)
        answers = await self._call_all(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        kind = headers.WipeWritePermOfBrokerResponseHeader
        return {at: answer.decode_header(kind).wipe_topic_count for at, answer in answers.items()}

    async def add_write_perm_of_broker(self, broker_name: str) -> dict[str, int]:
        """Reverts wipe_write_perm_of_broker(): name server → topics."""
        header = headers.AddWritePermOfBrokerRequestHeader(broker_name=broker_name)
        answers = await self._call_all(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        kind = headers.AddWritePermOfBrokerResponseHeader
        return {at: answer.decode_header(kind).add_topic_count for at, answer in answers.items()}

    # --- key-value configuration

    async def put_kv_config_value(self, namespace: str, key: str, value: str) -> None:
        header = headers.PutKVConfigRequestHeader(namespace=namespace, key=key, value=value)
        await self._call_all(RequestCode.PUT_KV_CONFIG, header)

    async def get_kv_config_value(self, namespace: str, key: str) -> str | None:
        """Raises ResponseError 22 if there is none."""
        header = headers.GetKVConfigRequestHeader(namespace=namespace, key=key)
        answer = await self._call_first(RequestCode.GET_KV_CONFIG, header)
        return answer.decode_header(headers.GetKVConfigResponseHeader).value

    async def delete_kv_config_value(self, namespace: str, key: str) -> None:
        header = headers.DeleteKVConfigRequestHeader(namespace=namespace, key=key)
        await self._call_all(RequestCode.DELETE_KV_CONFIG, header)

    async def get_kv_list_by_namespace(self, namespace: str) -> dict[str, str]:
        """Raises ResponseError 22 if there is no such namespace."""
        header = headers.GetKVListByNamespaceRequestHeader(namespace=namespace)
        answer = await self._call_first(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        return KVTable.from_json(answer.body_bytes()).table

    # --- their own configuration

    async def get_name_server_config(self) -> dict[str, dict[str, str]]:
        """Name server → its settings."""
        answers = await self._call_all(RequestCode.GET_NAMESRV_CONFIG)
        return {at: parse_properties(answer.body_bytes().decode()) for at, answer in answers.items()}

    async def update_name_server_config(self, settings: Mapping[str, str]) -> None:
        await self._call_all(RequestCode.UPDATE_NAMESRV_CONFIG, body=format_properties(settings).encode())
