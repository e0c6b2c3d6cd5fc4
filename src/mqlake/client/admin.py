"""Admin: operations on a cluster.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=8)
        stats = await admin.examine_consume_stats("billing")

It finds brokers through the name servers and calls those concerned; `admin.name_servers` and `admin.brokers` make
single requests. It works with RocketMQ's brokers and mqlake's. Method names are those of RocketMQ's DefaultMQAdminExt,
where it has the method.

Raises RemotingConnectError and RemotingTimeoutError if a server does not answer, ResponseError if it refuses, and
NotFoundError for a topic, cluster or broker that does not exist (with the nearest name that does).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from mqlake.auth.signed_client import remoting_client
from mqlake.base.arguments import checked
from mqlake.client.api.access_api import AccessAPI
from mqlake.client.api.broker_api import TIME_MAX, BrokerAPI
from mqlake.client.api.name_servers import DEFAULT_ADDRESS, NameServers, parse_addresses
from mqlake.client.config import ClientConfig
from mqlake.client.static_topics import (
    adopt_decided,
    check,
    decide_offsets,
    logical_progress,
    logical_stats,
    without_queues,
)
from mqlake.errors import MessageError, MqlakeError, NoMasterError, NotFoundError, ResponseError
from mqlake.message import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    Host,
    Message,
    MessageExt,
    decode_message_id,
)
from mqlake.message.recall import decode_recall_handle
from mqlake.message.topics import REPLY_TOPIC_POSTFIX, is_system_topic
from mqlake.remoting.bodies.admin import (
    ConsumerConnection,
    ConsumeStats,
    OffsetWrapper,
    ProducerConnection,
    SubscriptionGroupConfig,
    TopicStatsTable,
)
from mqlake.remoting.bodies.client import (
    ConsumeMessageDirectlyResult,
    MessageRequestMode,
    SetMessageRequestModeRequestBody,
)
from mqlake.remoting.bodies.route import MASTER_ID, BrokerData, ClusterInfo, TopicRouteData
from mqlake.remoting.bodies.topic import (
    MessageQueue,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicQueueMappingDetail,
    TopicRemappingDetailWrapper,
)
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.headers.produce import RecallMessageRequestHeader, SendMessageResponseHeader
from mqlake.remoting.service import Service
from mqlake.remoting.static_topic import endpoints, is_mock_broker

T = TypeVar("T")

ADMIN_GROUP = "CID_MQLAKE_ADMIN"
"""The producer group that the test messages of send() are from."""
END_OF_QUEUE = -1
"""The time that means the end of every queue."""
QUEUES_AT_ONCE = 16
"""Queues of a topic that are asked about at the same time."""
PULL_MESSAGES = 32
"""Messages that one pull asks for."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker process: broker id 0 is a master, others are its replicas."""

    cluster: str
    name: str
    broker_id: int
    address: str


@checked
class Admin(Service):
    """Use it in an `async with`, or `close()` it."""

    def __init__(self, where: ClientConfig | str = DEFAULT_ADDRESS, *, unpack: bool = True) -> None:
        """`where`: the name servers' addresses, or a configuration. Raises ConfigError if there is no address.

        Without `unpack` the bodies of messages stay as they are stored: a small one may unpack to 256 MiB.
        """
        config = ClientConfig(namesrv_addr=where) if isinstance(where, str) else where
        addresses = parse_addresses(config.namesrv_addr)
        self._client = remoting_client(config.credentials, config.tls)
        self.name_servers = NameServers(self._client, addresses, timeout_s=config.timeout_s)
        self.brokers = BrokerAPI(self._client, timeout_s=config.timeout_s, unpack=unpack)
        self.access = AccessAPI(self._client, timeout_s=config.timeout_s)
        """Users and acls."""

    async def close(self) -> None:
        """`async with` does it."""
        await self._client.close()

    # --- who is there

    async def examine_broker_cluster_info(self) -> ClusterInfo:
        """Clusters, their brokers, and the addresses of the brokers."""
        return await self.name_servers.get_broker_cluster_info()

    async def list_brokers(self, cluster: str | None = None) -> list[Broker]:
        """Every broker, masters and replicas, by cluster, name and id. NotFoundError for an unknown cluster."""
        info = await self.examine_broker_cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            raise NotFoundError(cluster, info.cluster_addr_table, what="cluster")
        found = []
        for name, data in info.broker_addr_table.items():
            for own in sorted(c for c, names in info.cluster_addr_table.items() if name in names):
                if cluster in (None, own):
                    found += [Broker(own, name, number, at) for number, at in data.broker_addrs.items()]
        return sorted(found, key=lambda broker: (broker.cluster, broker.name, broker.broker_id))

    async def masters(self, cluster: str | None = None) -> list[Broker]:
        """The masters of one cluster, or of all. NotFoundError for an unknown cluster, NoMasterError for none."""
        found = [broker for broker in await self.list_brokers(cluster) if broker.broker_id == MASTER_ID]
        if not found:
            raise NoMasterError(self.name_servers.addresses)
        return found

    async def broker_address(self, broker: str) -> str:
        """`broker` when it is an address, else the address of the master of that name. NotFoundError."""
        if ":" in broker:
            return broker
        table = (await self.examine_broker_cluster_info()).broker_addr_table
        if broker not in table or MASTER_ID not in table[broker].broker_addrs:
            raise NotFoundError(broker, table, what="broker")
        return table[broker].broker_addrs[MASTER_ID]

    async def examine_topic_route_info(self, topic: str) -> TopicRouteData:
        """The brokers and queues of the topic. Raises NotFoundError if no broker has it."""
        for _ in range(2):  # a topic that is listed may have come in between
            try:
                return await self.name_servers.get_topic_route_info(topic)
            except ResponseError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
            known = await self._topics_or_none()
            if topic not in known:
                break
        try:
            others = await self.users_topics(known - {topic})
        except ResponseError:  # as with the list of all
            others = set()
        raise NotFoundError(topic, others, what="topic")

    async def users_topics(self, names: set[str]) -> set[str]:
        """Without the topics that servers create for themselves or for groups."""
        own = await self.name_servers.get_system_topic_list_from_ns() if names else set()
        prefixes = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)
        return {
            name
            for name in names - own
            if not (
                is_system_topic(name) or name.startswith(prefixes) or name.endswith(f"_{REPLY_TOPIC_POSTFIX}")
            )
        }

    async def _topics_or_none(self) -> set[str]:
        try:
            return await self.name_servers.get_topic_list()
        except ResponseError:  # a name server may be set not to tell
            return set()

    async def _on_route(self, topic: str, ask: Callable[[str], Awaitable[T]]) -> list[T]:
        """The answer of each broker of the topic."""
        route = await self.examine_topic_route_info(topic)
        return await _all(ask(address) for address in map(_select_address, route.broker_datas) if address)

    async def _addresses_of_group(self, group: str) -> list[str]:
        """The brokers that have the group's retry topic, which a group gets when it connects; else every master."""
        try:
            route = await self.name_servers.get_topic_route_info(RETRY_GROUP_TOPIC_PREFIX + group)
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return [broker.address for broker in await self.masters()]
        return [address for address in map(_select_address, route.broker_datas) if address]

    # --- topics

    async def fetch_all_topic_list(self) -> set[str]:
        """All topics that brokers have registered, including RocketMQ's own."""
        return await self.name_servers.get_topic_list()

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        cluster: str | None = None,
        perm: int = 6,
        order: bool = False,
        attributes: dict[str, str] | None = None,
    ) -> list[Broker]:
        """Creates (or changes) a topic with `queues` queues on each master of a cluster, or of all; those masters.

        `attributes`: `+name` → value sets one, `-name` → "" drops it, like {"+message.type": "FIFO"}.
        """
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            order=order,
            attributes=attributes or {},
        )
        masters = await self.masters(cluster)
        await _all(self.brokers.create_topic(broker.address, config) for broker in masters)
        return masters

    async def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Deletes the topic on every master of a cluster (or of all), then its routes on the name servers."""
        found = await self.masters(cluster)
        await _all(self.brokers.delete_topic_in_broker(broker.address, topic) for broker in found)
        # a name server that is told no cluster takes out every broker's
        await self.name_servers.delete_topic_in_nameserver(topic, cluster)

    async def topic_exists(self, topic: str) -> bool:
        """True if some broker has it."""
        try:
            await self.name_servers.get_topic_route_info(topic)
        except ResponseError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return False
            raise
        return True

    async def examine_topic_stats(self, topic: str) -> TopicStatsTable:
        """First and last offset of every queue; of a static topic its logical queues."""
        total = TopicStatsTable()
        for table in await self._on_route(topic, lambda at: self.brokers.get_topic_stats_info(at, topic)):
            total.offset_table |= table.offset_table
            total.topic_put_tps += table.topic_put_tps
        mappings = await self._mappings(topic)
        return logical_stats(total, mappings) if mappings else total

    # --- static topics

    async def examine_topic_config_all(self, topic: str) -> dict[str, TopicConfigAndQueueMapping]:
        """Master's name → its part of the topic, on each that has one."""
        found = {}
        for broker in await self.masters():
            try:
                config = await self.brokers.get_topic_config_and_mapping(broker.address, topic)
            except ResponseError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                continue
            found[broker.name] = config
        return found

    async def apply_mapping(self, change: TopicRemappingDetailWrapper, *, force: bool = False) -> None:
        """Carries out what `static_topics` has planned, also once more after it was interrupted.

        Brokers of the cluster that have no part of the topic learn its mapping, too. `force`: they take it even if it
        contradicts what they know. NotFoundError for a broker without a master; ResponseError if one refuses.
        """
        configs = change.broker_config_map
        adopt_decided(change, await self.examine_topic_config_all(change.topic))
        epoch, total = check(change.topic, configs)
        masters = {broker.name: broker for broker in await self.masters()}
        for name in configs:
            if name not in masters:
                raise NotFoundError(name, masters, what="broker")
        clusters = {masters[name].cluster for name in configs}
        for name in sorted(masters.keys() - configs.keys()):
            if masters[name].cluster in clusters:
                configs[name] = without_queues(change.topic, name, total, epoch)

        async def write(names: Iterable[str]) -> None:
            for name in sorted(names):
                await self.brokers.create_static_topic(masters[name].address, configs[name], force=force)

        incoming, outgoing = change.broker_to_map_in, change.broker_to_map_out
        await write(incoming)  # takes messages from now on, with offsets that are not known yet
        await write(outgoing)  # takes none any more, so its end is known
        for name in sorted(outgoing):
            stats = await self.brokers.get_topic_stats_info(masters[name].address, change.topic)
            decide_offsets(change, name, stats)
        await write(incoming)
        await write(configs.keys() - incoming)

    async def _mappings(self, topic: str) -> list[TopicQueueMappingDetail]:
        """Returns the mappings of a static topic that its brokers know; empty for another topic."""
        try:
            route = await self.name_servers.get_topic_route_info(topic)
        except ResponseError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return []
        if not route.topic_queue_mapping_by_broker:
            return []
        addresses = filter(None, map(_select_address, route.broker_datas))
        found = await _all(self.brokers.get_topic_config_and_mapping(at, topic) for at in addresses)
        return [config.mapping_detail for config in found if config.mapping_detail is not None]

    async def queue_address(self, queue: MessageQueue) -> str:
        """The master to ask about a queue; of a static topic the one that leads it. NotFoundError."""
        if not is_mock_broker(queue.broker_name):
            return await self.broker_address(queue.broker_name)
        leaders = endpoints(queue.topic, await self.examine_topic_route_info(queue.topic))
        if queue not in leaders:
            raise NotFoundError(str(queue), map(str, leaders), what="queue")
        return await self.broker_address(leaders[queue])

    async def get_topic_cluster_list(self, topic: str) -> set[str]:
        """The clusters whose brokers have the topic."""
        route = await self.examine_topic_route_info(topic)
        return {data.cluster for data in route.broker_datas if data.cluster}

    # --- groups

    async def create_subscription_group(
        self, config: SubscriptionGroupConfig, cluster: str | None = None
    ) -> list[Broker]:
        """Creates (or changes) a group on each master of a cluster, or of all; those masters."""
        masters = await self.masters(cluster)
        await _all(self.brokers.create_subscription_group(broker.address, config) for broker in masters)
        return masters

    async def delete_subscription_group(
        self, group: str, cluster: str | None = None, *, clean_offset: bool = False
    ) -> None:
        """Deletes the group, its retry topic and its dead letter topic; with `clean_offset` where it was, too."""
        for broker in await self.masters(cluster):
            await self.brokers.delete_subscription_group(broker.address, group, clean_offset=clean_offset)
        for prefix in (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX):
            await self.delete_topic(prefix + group, cluster)

    async def get_all_subscription_groups(
        self, cluster: str | None = None
    ) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """Group → broker name → its settings there."""
        masters = await self.masters(cluster)
        tables = await _all(self.brokers.get_all_subscription_group_config(b.address) for b in masters)
        groups: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for broker, table in zip(masters, tables, strict=True):
            for group, config in table.items():
                groups.setdefault(group, {})[broker.name] = config
        return groups

    async def check_group(self, group: str) -> None:
        """Raises NotFoundError if no broker knows the group."""
        groups = await self.get_all_subscription_groups()
        if group not in groups:
            raise NotFoundError(group, groups, what="group")

    # --- consuming

    async def examine_consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """The group's offset in every queue of one topic, or of all topics it has consumed; of a static topic in its
        logical queues."""
        addresses = await self._addresses_of_group(group)
        total = ConsumeStats()
        for stats in await _all(self.brokers.get_consume_stats(at, group, topic) for at in addresses):
            total.offset_table |= stats.offset_table
            total.consume_tps += stats.consume_tps
        for name in {queue.topic for queue in total.offset_table}:
            mappings = [] if name.startswith(RETRY_GROUP_TOPIC_PREFIX) else await self._mappings(name)
            if mappings:
                others = {queue: each for queue, each in total.offset_table.items() if queue.topic != name}
                total.offset_table = others | await self._logical_progress(group, name, mappings)
        return total

    async def _logical_progress(
        self, group: str, topic: str, mappings: list[TopicQueueMappingDetail]
    ) -> dict[MessageQueue, OffsetWrapper]:
        """Also of brokers at which the group has no offset: one of them may have the end of a queue."""
        found = ConsumeStats()
        for stats in await self._on_route(topic, lambda at: self.brokers.get_consume_stats(at, group, topic)):
            found.offset_table |= stats.offset_table
        return logical_progress(found, mappings)

    async def examine_consumer_connection_info(self, group: str) -> ConsumerConnection:
        """Connected consumers of the group; one connected to several brokers appears once.

        Raises ResponseError 206 if there is none.
        """
        offline: ResponseError | None = None
        merged: ConsumerConnection | None = None
        for address in await self._addresses_of_group(group):
            try:
                found = await self.brokers.get_consumer_connection_list(address, group)
            except ResponseError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                offline = error
                continue
            if merged is None:
                merged = found
                continue
            known = {connection.client_id for connection in merged.connection_set}
            merged.connection_set += [each for each in found.connection_set if each.client_id not in known]
            merged.subscription_table |= found.subscription_table
        if merged is None:
            raise offline or ResponseError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of {group} is connected"
            )
        return merged

    async def examine_producer_connection_info(self, group: str, topic: str) -> ProducerConnection:
        """Producers of the group connected to the topic's brokers. Raises ResponseError 1 if there is none."""
        merged = ProducerConnection()
        missing: ResponseError | None = None
        route = await self.examine_topic_route_info(topic)
        for address in filter(None, map(_select_address, route.broker_datas)):
            try:
                found = await self.brokers.get_producer_connection_list(address, group)
            except ResponseError as error:
                missing = error
                continue
            known = {connection.client_id for connection in merged.connection_set}
            merged.connection_set += [each for each in found.connection_set if each.client_id not in known]
        if missing is not None and not merged.connection_set:
            raise missing
        return merged

    async def query_topic_consume_by_who(self, topic: str) -> set[str]:
        """The groups that consume the topic, or have consumed it."""
        answers = await self._on_route(topic, lambda at: self.brokers.query_topic_consume_by_who(at, topic))
        return set().union(*answers)

    async def consumed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Returns the offset that the group has in each queue where it has one."""
        stats = await self.examine_consume_stats(group, topic)
        return {queue: at.consumer_offset for queue, at in stats.offset_table.items()}

    async def offsets_at(self, topic: str, timestamp: int) -> dict[MessageQueue, int]:
        """Returns the offsets to which reset_offset_by_timestamp() would move a group."""
        stats = await self.examine_topic_stats(topic)
        if timestamp == END_OF_QUEUE:
            return {queue: at.max_offset for queue, at in stats.offset_table.items()}
        turns = asyncio.Semaphore(QUEUES_AT_ONCE)

        async def find(queue: MessageQueue) -> int:
            async with turns:
                return await self.brokers.search_offset(await self.queue_address(queue), queue, timestamp)

        found = await _all(map(find, stats.offset_table))
        return dict(zip(stats.offset_table, found, strict=True))

    async def reset_offset_by_timestamp(
        self, topic: str, group: str, timestamp: int, *, is_force: bool = True
    ) -> dict[MessageQueue, int]:
        """Moves the group to `timestamp` (ms; END_OF_QUEUE: the end of every queue); returns the new offsets.

        Without `is_force` offsets only move back. Connected consumers continue from there at once.
        """
        answers = await self._on_route(
            topic,
            lambda at: self.brokers.invoke_broker_to_reset_offset(
                at, topic, group, timestamp, is_force=is_force
            ),
        )
        return {queue: offset for table in answers for queue, offset in table.items()}

    async def reset_offset_by_queue(
        self, queue: MessageQueue, group: str, offset: int
    ) -> dict[MessageQueue, int]:
        """Moves the group to an offset of one queue."""
        address = await self.broker_address(queue.broker_name)
        return await self.brokers.invoke_broker_to_reset_offset(
            address, queue.topic, group, 0, queue_id=queue.queue_id, offset=offset
        )

    async def clone_group_offset(self, source: str, target: str, topic: str, *, is_offline: bool) -> None:
        """Copies the offsets of `source` to `target`."""
        await self._on_route(
            topic,
            lambda at: self.brokers.clone_group_offset(at, source, target, topic, is_offline=is_offline),
        )

    async def set_message_request_mode(
        self, topic: str, group: str, mode: MessageRequestMode, share: int = 0
    ) -> None:
        """How consumers of the group that ask brokers for their queues get messages of the topic. `share`: with POP,
        how many other members' queues each pops from as well; 0: all queues."""
        body = SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share
        )
        await self._on_route(topic, lambda at: self.brokers.set_message_request_mode(at, body))

    async def polling_num(self, topic: str, group: str, queue_id: int = -1) -> int:
        """Pops of a group that wait at a queue, or for any queue (-1)."""
        return sum(
            await self._on_route(topic, lambda at: self.brokers.polling_num(at, topic, group, queue_id))
        )

    async def consume_message_directly(
        self, group: str, client_id: str, topic: str, message_id: str
    ) -> ConsumeMessageDirectlyResult:
        """Hands one stored message to a connected consumer, and returns the result. Offsets do not change."""
        message = await self.view_message(topic, message_id)
        # the broker that has the message reads it out of its log
        address = _address_text(message.store_host)
        return await self.brokers.consume_message_directly(address, group, client_id, topic, message.msg_id)

    # --- messages

    async def query_message(
        self, topic: str, key: str, max_num: int = 64, begin: int = 0, end: int = TIME_MAX
    ) -> list[MessageExt]:
        """Messages with `key` among their keys, stored in [begin, end] (ms), the newest `max_num` of each broker."""
        found = await self._on_route(
            topic, lambda at: self.brokers.query_message(at, topic, key, max_num, begin, end)
        )
        keep = [message for messages in found for message in messages if key in (message.keys or "").split()]
        return sorted(keep, key=lambda message: message.store_timestamp)

    async def query_message_by_uniq_key(self, topic: str, message_id: str) -> list[MessageExt]:
        """Messages with that client id: one, or several after a retry of the client or of a consumer."""
        found = await self._on_route(
            topic,
            lambda at: self.brokers.query_message(at, topic, message_id, 32, is_unique_key=True),
        )
        keep = [message for messages in found for message in messages if message.uniq_key == message_id]
        return sorted(keep, key=lambda message: message.store_timestamp)

    async def view_message(self, topic: str | None, message_id: str) -> MessageExt:
        """The message with an offset message id, or with a client's unique id (then the topic is needed).

        Both are 32 hexadecimal digits: an offset message id begins with the address of a broker of the cluster.
        Raises MessageError if there is no such message.
        """
        host, offset = decode_message_id(message_id)
        address = _address_text(host)
        if any(broker.address == address for broker in await self.list_brokers()):
            return await self.brokers.view_message(address, offset, topic)
        if topic is None:
            raise MessageError(
                f"{message_id} does not begin with the address of a broker here: for a client's id name the topic"
            )
        messages = await self.query_message_by_uniq_key(topic, message_id)
        if not messages:
            raise MessageError(f"no message of {topic} has the id {message_id}")
        return messages[-1]

    async def message_at(self, queue: MessageQueue, offset: int) -> MessageExt:
        """The message at an offset of a queue. Raises MessageError if there is none."""
        address = await self.queue_address(queue)
        messages, place = await self.brokers.pull_message(address, queue.topic, queue.queue_id, offset, 1)
        if not messages or messages[0].queue_offset != offset:
            raise MessageError(
                f"{queue.topic}-{queue.queue_id} on {queue.broker_name} has no message at offset {offset}: "
                f"it holds {place.min_offset} to {place.max_offset}"
            )
        return messages[0]

    async def messages_in(self, queue: MessageQueue, start: int, end: int) -> list[MessageExt]:
        """The messages of a queue in [start, end). Fewer where some are gone."""
        address = await self.queue_address(queue)
        found: list[MessageExt] = []
        while start < end:
            pulled, place = await self.brokers.pull_message(
                address, queue.topic, queue.queue_id, start, min(PULL_MESSAGES, end - start)
            )
            found += [message for message in pulled if message.queue_offset < end]
            following = max(place.next_begin_offset, pulled[-1].queue_offset + 1 if pulled else 0)
            if following <= start:
                break
            start = following
        return found

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Cancels a timer message that is not due yet, by the handle that its sender got; its id. MessageError."""
        handle = decode_recall_handle(recall_handle)
        header = RecallMessageRequestHeader(
            producer_group=ADMIN_GROUP, topic=topic, recall_handle=recall_handle, bname=handle.broker_name
        )
        return await self.brokers.recall_message(await self.broker_address(handle.broker_name), header)

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None
    ) -> tuple[MessageQueue, SendMessageResponseHeader]:
        """Sends one test message to `queue`, or to the first writable queue; returns where it was stored."""
        if queue is None:
            route = await self.examine_topic_route_info(message.topic)
            writable = [data for data in route.queue_datas if data.perm & 2 and data.write_queue_nums]
            if not writable:
                raise MqlakeError(f"no broker takes messages of {message.topic}: write permission is missing")
            queue = MessageQueue(topic=message.topic, broker_name=writable[0].broker_name, queue_id=0)
        address = await self.queue_address(queue)
        answer = await self.brokers.send_message(address, message, queue.queue_id, ADMIN_GROUP)
        return MessageQueue(
            topic=message.topic, broker_name=queue.broker_name, queue_id=answer.queue_id
        ), answer


async def _all(asked: Iterable[Awaitable[T]]) -> list[T]:
    """All results in order; the first failure is raised once all have ended."""
    answers = await asyncio.gather(*asked, return_exceptions=True)
    results: list[T] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        results.append(answer)
    return results


def _select_address(broker: BrokerData) -> str | None:
    """The master's address, or that of a replica if there is no master."""
    addresses = broker.broker_addrs
    if MASTER_ID in addresses:
        return addresses[MASTER_ID]
    return addresses[min(addresses)] if addresses else None


def _address_text(host: Host) -> str:
    ip, port = host
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
