"""RouteInfoManager: the tables of a name server, without network, files or threads.

    topic_queue_table     topic → broker name → QueueData
    broker_addr_table     broker name → BrokerData (broker id → address)
    cluster_addr_table    cluster → broker names
    broker_live_table     (cluster, address) → time of its last request, its data version, its connection

Brokers fill the tables by registering periodically. One that unregisters, is silent for too long or loses its
connection is removed, and its topics with the last of its replicas. Times are ms.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

from mqlake.message import SELF_TEST_TOPIC
from mqlake.remoting.bodies.route import (
    MASTER_ID,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from mqlake.remoting.bodies.topic import (
    PERM_READ,
    PERM_WRITE,
    TOPIC_SYS_FLAG_UNIT,
    TOPIC_SYS_FLAG_UNIT_SUB,
    DataVersion,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicList,
    TopicQueueMappingInfo,
)

logger = logging.getLogger(__name__)

BROKER_EXPIRES_MS = 120_000
TOPICS_PER_STEP = 1000
"""Topics of a registration that are handled before others are served: about a millisecond."""
SYNC_BROKER_MEMBER_GROUP_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


@dataclass(slots=True)
class BrokerLiveInfo:
    last_update_ms: int
    expires_ms: int
    """How long the broker may be silent."""
    data_version: DataVersion
    channel: Hashable | None
    """The connection it registered over."""
    ha_server_addr: str


@dataclass(slots=True)
class RegisterBrokerResult:
    """For a replica: where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class RouteInfoManager:
    def __init__(
        self,
        clock_ms: Callable[[], int],
        *,
        support_acting_master: bool = False,
        delete_topic_with_broker_registration: bool = False,
    ) -> None:
        """`support_acting_master`: a route without a master shows its lowest replica, from which clients can read,
        as master. `delete_topic_with_broker_registration`: a topic missing in a whole registration is removed."""
        self._clock_ms = clock_ms
        self.support_acting_master = support_acting_master
        self.delete_topic_with_broker_registration = delete_topic_with_broker_registration
        self.topic_queue_table: dict[str, dict[str, QueueData]] = {}
        self.broker_addr_table: dict[str, BrokerData] = {}
        self.cluster_addr_table: dict[str, set[str]] = {}
        self.broker_live_table: dict[tuple[str, str], BrokerLiveInfo] = {}
        self.filter_server_table: dict[tuple[str, str], list[str]] = {}
        self.topic_queue_mapping_info_table: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        self._topics_of: dict[str, set[str]] = {}
        """Broker name → its topics in topic_queue_table: a broker that goes must not cost a look at all topics."""
        self._registering: Iterator[bool] = iter(())

    # --- brokers come

    def register_broker(
        self,
        cluster_name: str,
        broker_addr: str,
        broker_name: str,
        broker_id: int,
        ha_server_addr: str,
        topic_config_wrapper: TopicConfigAndMappingSerializeWrapper,
        *,
        filter_servers: list[str] | None = None,
        zone_name: str | None = None,
        expires_ms: int | None = None,
        enable_acting_master: bool | None = None,
        channel: Hashable | None = None,
        partial: bool = False,
    ) -> RegisterBrokerResult | None:
        """Registers a broker and, from a master, its first TOPICS_PER_STEP topics; take_more_topics() takes the others.
        None if an unknown broker registers only one topic.

        Such a registration reports one changed topic, and came before the broker's first complete one. `partial`: the
        broker says that it has more topics.
        """
        version = topic_config_wrapper.data_version
        data = self.broker_addr_table.get(broker_name)
        addresses = {} if data is None else data.broker_addrs
        # A replica that became master, or the reverse, keeps its address under its new id alone.
        known = {i: addr for i, addr in addresses.items() if addr != broker_addr or i == broker_id}
        old_addr = known.get(broker_id)
        if self._is_newer(cluster_name, old_addr, broker_addr, version):
            logger.warning(
                "%s[%d] at %s is refused: its state is older than that at %s",
                broker_name,
                broker_id,
                broker_addr,
                old_addr,
            )
            self.broker_live_table.pop((cluster_name, broker_addr), None)
            return RegisterBrokerResult()
        if old_addr is None and len(topic_config_wrapper.topic_config_table) == 1:
            logger.warning("%s[%d] registers one topic before itself; refused", broker_name, broker_id)
            return None

        self.cluster_addr_table.setdefault(cluster_name, set()).add(broker_name)
        if data is None:
            data = BrokerData(cluster=cluster_name, broker_name=broker_name)
            self.broker_addr_table[broker_name] = data
        data.enable_acting_master = bool(enable_acting_master)
        data.zone_name = zone_name
        data.broker_addrs = known
        known[broker_id] = broker_addr

        is_prime_replica = (
            enable_acting_master is not None and broker_id != MASTER_ID and broker_id == min(known)
        )
        if broker_id == MASTER_ID or is_prime_replica:
            changed = old_addr is None or self.is_broker_topic_config_changed(
                cluster_name, broker_addr, version
            )
            read_only = is_prime_replica and data.enable_acting_master
            self._registering = self._take_topics(
                broker_name,
                topic_config_wrapper,
                lambda: data.broker_addrs.get(broker_id) == broker_addr,
                changed=changed,
                read_only=read_only,
                whole=not partial and self._names_its_own(cluster_name, broker_name, topic_config_wrapper),
            )
            self.take_more_topics()

        key = cluster_name, broker_addr
        if key not in self.broker_live_table:
            logger.info("%s[%d] of %s registered at %s", broker_name, broker_id, cluster_name, broker_addr)
        expires_ms = BROKER_EXPIRES_MS if expires_ms is None else expires_ms
        self.broker_live_table[key] = BrokerLiveInfo(
            self._clock_ms(), expires_ms, version, channel, ha_server_addr
        )
        if filter_servers:
            self.filter_server_table[key] = filter_servers
        elif filter_servers is not None:
            self.filter_server_table.pop(key, None)
        return RegisterBrokerResult() if broker_id == MASTER_ID else self._master_of(cluster_name, known)

    def _master_of(self, cluster_name: str, addresses: dict[int, str]) -> RegisterBrokerResult:
        """Returns what a slave learns of its master; empty while that is not there."""
        master_addr = addresses.get(MASTER_ID, "")
        master = self.broker_live_table.get((cluster_name, master_addr))
        return (
            RegisterBrokerResult()
            if master is None
            else RegisterBrokerResult(master.ha_server_addr, master_addr)
        )

    def _is_newer(self, cluster_name: str, addr: str | None, than: str, version: DataVersion) -> bool:
        """True if the broker at `addr`, where it was before, has a newer state than the one `than`."""
        if addr is None or addr == than:
            return False
        live = self.broker_live_table.get((cluster_name, addr))
        return live is not None and live.data_version.state_version > version.state_version

    def take_more_topics(self) -> bool:
        """Goes on with the last registration, by TOPICS_PER_STEP topics; False when it has them all, or its broker has
        gone meanwhile. Between the steps others may be served, no other broker registered."""
        return next(self._registering, False)

    def _take_topics(
        self,
        broker_name: str,
        wrapper: TopicConfigAndMappingSerializeWrapper,
        is_there: Callable[[], bool],
        *,
        changed: bool,
        read_only: bool,
        whole: bool,
    ) -> Iterator[bool]:
        table, mappings = wrapper.topic_config_table, wrapper.topic_queue_mapping_info_map
        if self.delete_topic_with_broker_registration and whole and not mappings:
            for topic in self._topics_of.get(broker_name, set()) - table.keys():
                self._remove_queues(topic, broker_name)
        for number, (topic, config) in enumerate(table.items()):
            if number and number % TOPICS_PER_STEP == 0:
                yield True
                if not is_there():
                    return
            if changed or broker_name not in self.topic_queue_table.get(topic, ()):
                self._put_queues(broker_name, topic, config, read_only=read_only)
        if changed:
            for topic, mapping in mappings.items():
                by_broker = self.topic_queue_mapping_info_table.setdefault(topic, {})
                by_broker[mapping.bname or broker_name] = mapping

    def _names_its_own(
        self, cluster_name: str, broker_name: str, wrapper: TopicConfigAndMappingSerializeWrapper
    ) -> bool:
        """True unless topics lack that every broker has and this one has registered before: RocketMQ's brokers register
        new topics alone, and do not say so."""
        return all(
            topic in wrapper.topic_config_table
            for topic in (SELF_TEST_TOPIC, cluster_name, broker_name)
            if broker_name in self.topic_queue_table.get(topic, ())
        )

    def _put_queues(self, broker_name: str, topic: str, config: TopicConfig, *, read_only: bool) -> None:
        queue_data = QueueData(
            broker_name=broker_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm & ~PERM_WRITE if read_only else config.perm,
            topic_sys_flag=config.topic_sys_flag,
        )
        self._add_queues(topic, broker_name, queue_data)

    def _add_queues(self, topic: str, broker_name: str, queue_data: QueueData) -> None:
        self.topic_queue_table.setdefault(topic, {})[broker_name] = queue_data
        self._topics_of.setdefault(broker_name, set()).add(topic)

    def _queues_of(self, broker_name: str) -> Iterator[QueueData]:
        """The broker's queues in all its topics."""
        for topic in self._topics_of.get(broker_name, ()):
            yield self.topic_queue_table[topic][broker_name]

    def is_broker_topic_config_changed(
        self, cluster_name: str, broker_addr: str, data_version: DataVersion
    ) -> bool:
        return self.query_broker_topic_config(cluster_name, broker_addr) != data_version

    def query_broker_topic_config(self, cluster_name: str, broker_addr: str) -> DataVersion | None:
        """The data version that a broker last registered with."""
        live = self.broker_live_table.get((cluster_name, broker_addr))
        return None if live is None else live.data_version

    def update_broker_info_update_timestamp(self, cluster_name: str, broker_addr: str) -> None:
        """The broker sent a request."""
        live = self.broker_live_table.get((cluster_name, broker_addr))
        if live is not None:
            live.last_update_ms = self._clock_ms()

    # --- brokers go

    def unregister_broker(
        self, cluster_name: str, broker_addr: str, broker_name: str, broker_id: int
    ) -> None:
        """Removes the broker, unless the address has been taken since under another id, name or cluster: what comes
        late from who was there before says nothing about who is there now."""
        data = self.broker_addr_table.get(broker_name)
        key = cluster_name, broker_addr
        ids = (
            {i for i, addr in data.broker_addrs.items() if addr == broker_addr} if data is not None else set()
        )
        moved = key not in self.broker_live_table and any(
            addr == broker_addr for _, addr in self.broker_live_table
        )
        if ids - {broker_id} or (ids and moved):
            logger.info(
                "%s[%d] of %s at %s has gone before: it is %s now",
                broker_name,
                broker_id,
                cluster_name,
                broker_addr,
                sorted(ids),
            )
            return
        if not self._has_another(cluster_name, broker_addr, broker_name):
            self.broker_live_table.pop(key, None)
            self.filter_server_table.pop(key, None)
        if data is None:
            return
        data.broker_addrs = {i: addr for i, addr in data.broker_addrs.items() if addr != broker_addr}
        logger.info("%s[%d] of %s at %s is gone", broker_name, broker_id, cluster_name, broker_addr)
        if data.broker_addrs:
            if data.enable_acting_master and MASTER_ID not in data.broker_addrs:
                # The remaining replicas can still be read from, through the acting master.
                for queue_data in self._queues_of(broker_name):
                    queue_data.perm &= ~PERM_WRITE
            return
        del self.broker_addr_table[broker_name]
        names = self.cluster_addr_table.get(cluster_name, set())
        names.discard(broker_name)
        if not names:
            self.cluster_addr_table.pop(cluster_name, None)
        for topic in list(self._topics_of.get(broker_name, ())):
            self._remove_queues(topic, broker_name)

    def _has_another(self, cluster_name: str, broker_addr: str, broker_name: str) -> bool:
        """True if a broker of another name is registered at the address."""
        return any(
            data.cluster == cluster_name and broker_addr in data.broker_addrs.values()
            for name, data in self.broker_addr_table.items()
            if name != broker_name
        )

    def _remove_queues(self, topic: str, broker_name: str) -> None:
        queues = self.topic_queue_table.get(topic)
        if queues is None or queues.pop(broker_name, None) is None:
            return
        topics = self._topics_of[broker_name]
        topics.discard(topic)
        if not topics:
            del self._topics_of[broker_name]
        if not queues:
            del self.topic_queue_table[topic]
            self.topic_queue_mapping_info_table.pop(topic, None)  # its brokers bring it with the topic

    def on_channel_destroy(self, channel: Hashable) -> None:
        """Removes the brokers that registered over a closed connection."""
        for (cluster_name, broker_addr), live in list(self.broker_live_table.items()):
            if live.channel is channel:
                self._forget(cluster_name, broker_addr)

    def scan_not_active_broker(self) -> list[Hashable]:
        """Removes brokers that were silent for too long; returns the connections to close."""
        now = self._clock_ms()
        expired = []
        for (cluster_name, broker_addr), live in list(self.broker_live_table.items()):
            if live.last_update_ms + live.expires_ms < now:
                logger.warning("%s was silent for more than %d ms", broker_addr, live.expires_ms)
                self._forget(cluster_name, broker_addr)
                if live.channel is not None:
                    expired.append(live.channel)
        return expired

    def _forget(self, cluster_name: str, broker_addr: str) -> None:
        there = [
            (name, broker_id)
            for name, data in self.broker_addr_table.items()
            if data.cluster == cluster_name
            for broker_id, addr in data.broker_addrs.items()
            if addr == broker_addr
        ]
        for name, broker_id in there:
            self.unregister_broker(cluster_name, broker_addr, name, broker_id)
        self.broker_live_table.pop((cluster_name, broker_addr), None)
        self.filter_server_table.pop((cluster_name, broker_addr), None)

    # --- operators

    def wipe_write_perm_of_broker(self, broker_name: str) -> int:
        """Makes the broker's topics read-only; returns their number."""
        return self._set_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm_of_broker(self, broker_name: str) -> int:
        return self._set_perm(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    def _set_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queue_data in self._queues_of(broker_name):
            queue_data.perm = change(queue_data.perm)
            count += 1
        return count

    def register_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> None:
        """Registers queues that an operator names, up to the first of an unknown broker."""
        for queue_data in queue_datas:
            if queue_data.broker_name not in self.broker_addr_table:
                logger.warning("%s: broker %s is not known", topic, queue_data.broker_name)
                return
            self._add_queues(topic, queue_data.broker_name, queue_data)

    def delete_topic(self, topic: str, cluster_name: str | None = None) -> None:
        """Removes a topic from one cluster or from all. Its brokers register it again if they still have it."""
        if not cluster_name:
            for broker_name in list(self.topic_queue_table.get(topic, ())):
                self._remove_queues(topic, broker_name)
            return
        for broker_name in self.cluster_addr_table.get(cluster_name, ()):
            self._remove_queues(topic, broker_name)

    # --- questions

    def pickup_topic_route_data(self, topic: str) -> TopicRouteData | None:
        """The route of `topic`, None if no registered broker has it."""
        queues = self.topic_queue_table.get(topic)
        if not queues:
            return None
        brokers = [self.broker_addr_table[name] for name in queues if name in self.broker_addr_table]
        if not brokers:
            return None
        route = TopicRouteData(
            queue_datas=list(queues.values()),
            broker_datas=[
                dataclasses.replace(broker, broker_addrs=dict(broker.broker_addrs)) for broker in brokers
            ],
            topic_queue_mapping_by_broker=self.topic_queue_mapping_info_table.get(topic),
        )
        if self.filter_server_table:
            for broker in brokers:
                for addr in broker.broker_addrs.values():
                    servers = self.filter_server_table.get((broker.cluster or "", addr))
                    if servers is not None:
                        route.filter_server_table[addr] = servers
        if self.support_acting_master and not topic.startswith(SYNC_BROKER_MEMBER_GROUP_PREFIX):
            for broker in route.broker_datas:
                self._show_acting_master(broker, queues)
        return route

    @staticmethod
    def _show_acting_master(broker: BrokerData, queues: dict[str, QueueData]) -> None:
        addresses = broker.broker_addrs
        if not addresses or MASTER_ID in addresses or not broker.enable_acting_master:
            return
        if not queues[broker.broker_name or ""].perm & PERM_WRITE:
            addresses[MASTER_ID] = addresses.pop(min(addresses))

    def get_all_cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table=self.broker_addr_table, cluster_addr_table=self.cluster_addr_table
        )

    def get_broker_member_group(self, cluster_name: str, broker_name: str) -> BrokerMemberGroup:
        data = self.broker_addr_table.get(broker_name)
        return BrokerMemberGroup(
            cluster=cluster_name,
            broker_name=broker_name,
            broker_addrs={} if data is None else dict(data.broker_addrs),
        )

    def get_all_topic_list(self) -> TopicList:
        return TopicList(topic_list=set(self.topic_queue_table))

    def get_topics_by_cluster(self, cluster_name: str) -> TopicList:
        names = self.cluster_addr_table.get(cluster_name, set())
        return TopicList(topic_list=set().union(*(self._topics_of.get(name, ()) for name in names)))

    def get_system_topic_list(self) -> TopicList:
        """The topics named after clusters and brokers, and a broker to ask for more."""
        topics = set(self.cluster_addr_table).union(*self.cluster_addr_table.values())
        for data in self.broker_addr_table.values():
            for addr in data.broker_addrs.values():
                return TopicList(topic_list=topics, broker_addr=addr)
        return TopicList(topic_list=topics)

    def get_unit_topics(self) -> TopicList:
        return self._topics_with(lambda flag: flag & TOPIC_SYS_FLAG_UNIT != 0)

    def get_has_unit_sub_topic_list(self) -> TopicList:
        return self._topics_with(lambda flag: flag & TOPIC_SYS_FLAG_UNIT_SUB != 0)

    def get_has_unit_sub_ununit_topic_list(self) -> TopicList:
        both = TOPIC_SYS_FLAG_UNIT | TOPIC_SYS_FLAG_UNIT_SUB
        return self._topics_with(lambda flag: flag & both == TOPIC_SYS_FLAG_UNIT_SUB)

    def _topics_with(self, wanted: Callable[[int], bool]) -> TopicList:
        return TopicList(
            topic_list={
                topic
                for topic, queues in self.topic_queue_table.items()
                if wanted(next(iter(queues.values())).topic_sys_flag)
            }
        )
