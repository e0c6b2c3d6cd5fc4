"""The connected clients: ProducerManager and ConsumerManager know them from their heartbeats.

A client is one connection. It belongs to groups, and is forgotten when its connection closes, when it unregisters
(UNREGISTER_CLIENT), or when it has been silent for 120 s; then its connection is closed too.

ConsumerManager notifies its listeners whenever the members of a group or their subscriptions change: the members
then rebalance.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from mqlake.base.clock import now_ms
from mqlake.remoting.bodies.admin import ProducerInfo, ProducerTableInfo
from mqlake.remoting.bodies.client import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from mqlake.remoting.codes import LanguageCode, version_name
from mqlake.remoting.connection import Connection
from mqlake.remoting.yielding import at_once

logger = logging.getLogger(__name__)

CHANNEL_EXPIRED_TIMEOUT_MS = 120_000
SUBSCRIPTION_EXPIRED_TIMEOUT_MS = 600_000


def monotonic_ms() -> int:
    """The clock for silence: setting the time of day must not make all clients look silent."""
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True, eq=False)
class ClientChannelInfo:
    """One client on one connection. `last_seen_ms`: when its last heartbeat came, by monotonic_ms()."""

    connection: Connection
    client_id: str
    language: LanguageCode
    version: int
    last_seen_ms: int = field(default_factory=monotonic_ms)

    def __str__(self) -> str:
        language, version = self.language.name, version_name(self.version)
        return f"{self.client_id} ({self.connection.remote_address}, {language} {version})"


class ConsumerIdsChangeListener(Protocol):
    def on_change(self, group: str, connections: list[Connection]) -> None:
        """The members or their subscriptions have changed. `connections` are those of all members now."""

    def on_register(self, group: str, subscriptions: Collection[SubscriptionData]) -> None:
        """A heartbeat brought the group's subscriptions."""

    def on_unregister(self, group: str) -> None:
        """The last member has left."""


@dataclass(eq=False)
class ConsumerGroupInfo:
    """The members of a group and their subscriptions. The last heartbeat counts for all members."""

    group_name: str
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    """By topic."""
    channel_info_table: dict[Connection, ClientChannelInfo] = field(default_factory=dict)
    heartbeat_fingerprint: int | None = None
    """The fingerprint of the subscriptions in the last heartbeat, 0 without one; None before they are known."""

    def find_channel(self, client_id: str) -> ClientChannelInfo | None:
        for info in self.channel_info_table.values():
            if info.client_id == client_id:
                return info
        return None

    def all_connections(self) -> list[Connection]:
        return list(self.channel_info_table)

    def all_client_ids(self) -> list[str]:
        return [info.client_id for info in self.channel_info_table.values()]

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    def find_subscription_data(self, topic: str) -> SubscriptionData | None:
        return self.subscription_table.get(topic)

    def update_channel(
        self,
        info: ClientChannelInfo,
        consume_type: ConsumeType | None,
        message_model: MessageModel | None,
        consume_from_where: ConsumeFromWhere | None,
    ) -> bool:
        """Handles a heartbeat; returns True if its client is a new member."""
        self.consume_type = consume_type
        self.message_model = message_model
        self.consume_from_where = consume_from_where
        known = self.channel_info_table.get(info.connection)
        if known is not None and known.client_id == info.client_id:
            known.last_seen_ms = info.last_seen_ms
            return False
        self.channel_info_table[info.connection] = info
        if known is None:
            logger.info("%s: new consumer %s", self.group_name, info)
            return True
        logger.error("%s: %s on the connection of %s", self.group_name, info, known)
        return False

    def update_subscription(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Takes the subscriptions of a heartbeat; returns True if topics were added or removed. A new expression for
        a topic counts if it is newer than the known one."""
        topics, came = set(), []
        for subscription in subscriptions:
            topic = subscription.topic
            topics.add(topic)
            known = self.subscription_table.get(topic)
            if known is None:
                came.append(f"{topic} ({subscription.sub_string})")
            if known is None or subscription.sub_version > known.sub_version:
                self.subscription_table[topic] = subscription
        went = self.subscription_table.keys() - topics
        for topic in went:
            del self.subscription_table[topic]
        if came:
            logger.info("%s subscribes to %s", self.group_name, _some_of(came))
        if went:
            logger.warning("%s no longer subscribes to %s", self.group_name, _some_of(sorted(went)))
        return bool(came or went)


def _some_of(names: list[str]) -> str:
    """Shortens a list for the log: a heartbeat may bring thousands."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


class _ClientManager:
    """Base of both managers: the groups of each connection, and how its clients are forgotten."""

    _kind: ClassVar[str]

    def __init__(self, channel_expired_timeout_ms: int, monotonic_clock_ms: Callable[[], int]) -> None:
        self._groups_of: dict[Connection, set[str]] = {}
        self._channel_expired_timeout_ms = channel_expired_timeout_ms
        self._monotonic_clock_ms = monotonic_clock_ms

    def group_count(self, connection: Connection) -> int:
        return len(self._groups_of.get(connection, ()))

    def do_channel_close_event(self, connection: Connection) -> bool:
        """Forgets the clients of a closed connection; returns True if there were any."""
        known = connection in self._groups_of
        at_once(self.leave(connection))
        return known

    def leave(self, connection: Connection) -> Iterator[None]:
        """Like do_channel_close_event, one group a step."""
        for group in self._groups_of.pop(connection, set()):
            self._leave_group(group, connection)
            yield

    def scan_not_active_channel(self) -> None:
        """Closes the connections of clients that have been silent for too long."""
        oldest = self._monotonic_clock_ms() - self._channel_expired_timeout_ms
        for connection in {info.connection for info in self._channels() if info.last_seen_ms < oldest}:
            logger.warning("%s: no heartbeat of its %s, closed", connection.remote_address, self._kind)
            self.do_channel_close_event(connection)
            connection.close()

    def _forget_group(self, group: str, connection: Connection) -> None:
        groups = self._groups_of.get(connection)
        if groups is not None:
            groups.discard(group)
            if not groups:
                del self._groups_of[connection]

    def _leave_group(self, group: str, connection: Connection) -> None:
        raise NotImplementedError

    def _channels(self) -> Iterator[ClientChannelInfo]:
        raise NotImplementedError


class ConsumerManager(_ClientManager):
    """Consumer groups, from heartbeats. The compensation table holds groups that are known only from pulls."""

    _kind = "consumers"

    def __init__(
        self,
        channel_expired_timeout_ms: int = CHANNEL_EXPIRED_TIMEOUT_MS,
        subscription_expired_timeout_ms: int = SUBSCRIPTION_EXPIRED_TIMEOUT_MS,
        clock_ms: Callable[[], int] = now_ms,
        monotonic_clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """`clock_ms` dates subscriptions, the other clock measures silence."""
        super().__init__(channel_expired_timeout_ms, monotonic_clock_ms)
        self.consumer_table: dict[str, ConsumerGroupInfo] = {}
        self._groups_by_topic: dict[str, set[str]] = {}
        self._compensation_table: dict[str, ConsumerGroupInfo] = {}
        self._listeners: list[ConsumerIdsChangeListener] = []
        self._subscription_expired_timeout_ms = subscription_expired_timeout_ms
        self._clock_ms = clock_ms

    def append_consumer_ids_change_listener(self, listener: ConsumerIdsChangeListener) -> None:
        """Notifies it of every change from now on."""
        self._listeners.append(listener)

    # --- what is known

    def find_channel(self, group: str, client_id: str) -> ClientChannelInfo | None:
        info = self.consumer_table.get(group)
        return info.find_channel(client_id) if info is not None else None

    def get_consumer_group_info(
        self, group: str, from_compensation_table: bool = False
    ) -> ConsumerGroupInfo | None:
        info = self.consumer_table.get(group)
        if info is None and from_compensation_table:
            info = self._compensation_table.get(group)
        return info

    def find_subscription_data(
        self, group: str, topic: str, from_compensation_table: bool = True
    ) -> SubscriptionData | None:
        for table in (self.consumer_table, self._compensation_table):
            info = table.get(group)
            if info is not None and (found := info.find_subscription_data(topic)) is not None:
                return found
            if not from_compensation_table:
                break
        return None

    def find_subscription_data_count(self, group: str) -> int:
        info = self.consumer_table.get(group)
        return len(info.subscription_table) if info is not None else 0

    def is_left_out(self, group: str, topic: str) -> bool:
        """True if the group's members are connected and none of them subscribes to the topic."""
        return (
            self.find_subscription_data(group, topic) is None and self.find_subscription_data_count(group) > 0
        )

    def query_topic_consume_by_who(self, topic: str) -> set[str]:
        """The groups whose members are connected and subscribe to the topic."""
        return set(self._groups_by_topic.get(topic, ()))

    # --- who comes

    def register_consumer(
        self,
        group: str,
        info: ClientChannelInfo,
        consume_type: ConsumeType | None,
        message_model: MessageModel | None,
        consume_from_where: ConsumeFromWhere | None,
        subscriptions: Collection[SubscriptionData] | None,
        notify_consumer_ids_changed: bool = True,
    ) -> bool:
        """Handles a heartbeat; returns True if it changed members or subscriptions.

        `subscriptions` is None for a heartbeat that leaves them as they are (withoutSub).
        """
        group_info = self.consumer_table.get(group)
        if group_info is None:
            group_info = self.consumer_table[group] = ConsumerGroupInfo(group)
        changed = group_info.update_channel(info, consume_type, message_model, consume_from_where)
        self._groups_of.setdefault(info.connection, set()).add(group)
        if subscriptions is not None:
            before = set(group_info.subscription_table)
            changed |= group_info.update_subscription(subscriptions)
            self._index_topics(group_info, before)
        if changed and notify_consumer_ids_changed:
            self._notify(group_info)
        if subscriptions is not None:
            for listener in self._listeners:
                listener.on_register(group, subscriptions)
        return changed

    def compensate_basic_consumer_info(
        self, group: str, consume_type: ConsumeType, message_model: MessageModel
    ) -> None:
        """Records the subscription in a pull of a group without heartbeats."""
        info = self._compensation_table.setdefault(group, ConsumerGroupInfo(group))
        info.consume_type, info.message_model = consume_type, message_model

    def compensate_subscribe_data(self, group: str, topic: str, subscription: SubscriptionData) -> None:
        info = self._compensation_table.setdefault(group, ConsumerGroupInfo(group))
        info.subscription_table[topic] = subscription

    # --- who goes

    def unregister_consumer(
        self, group: str, connection: Connection, notify_consumer_ids_changed: bool = True
    ) -> None:
        """Removes a client that unregisters from a group."""
        group_info = self.consumer_table.get(group)
        if group_info is not None and self._remove(group_info, connection) and notify_consumer_ids_changed:
            self._notify(group_info)

    def _leave_group(self, group: str, connection: Connection) -> None:
        self.unregister_consumer(group, connection)

    def _channels(self) -> Iterator[ClientChannelInfo]:
        for group_info in self.consumer_table.values():
            yield from group_info.channel_info_table.values()

    def scan_not_active_channel(self) -> None:
        """Closes the connections of clients that have been silent for too long, and forgets old subscriptions."""
        super().scan_not_active_channel()
        self._remove_expired_compensation()

    def _remove_expired_compensation(self) -> None:
        oldest = self._clock_ms() - self._subscription_expired_timeout_ms
        for group, info in list(self._compensation_table.items()):
            table = info.subscription_table
            for topic in [topic for topic, data in table.items() if data.sub_version < oldest]:
                del table[topic]
            if not table:
                del self._compensation_table[group]

    def _remove(self, group_info: ConsumerGroupInfo, connection: Connection) -> bool:
        info = group_info.channel_info_table.pop(connection, None)
        if info is None:
            return False
        group = group_info.group_name
        logger.info("%s: consumer %s has gone", group, info)
        self._forget_group(group, connection)
        if not group_info.channel_info_table:
            del self.consumer_table[group]
            before = set(group_info.subscription_table)
            group_info.subscription_table.clear()
            self._index_topics(group_info, before)
            for listener in self._listeners:
                listener.on_unregister(group)
        return True

    def _index_topics(self, group_info: ConsumerGroupInfo, before: set[str]) -> None:
        for topic in before - group_info.subscription_table.keys():
            groups = self._groups_by_topic.get(topic, set())
            groups.discard(group_info.group_name)
            if not groups:
                self._groups_by_topic.pop(topic, None)
        for topic in group_info.subscription_table.keys() - before:
            self._groups_by_topic.setdefault(topic, set()).add(group_info.group_name)

    def _notify(self, group_info: ConsumerGroupInfo) -> None:
        """Members of a broadcasting group share no queues, so they are not notified."""
        if not group_info.is_broadcasting and group_info.channel_info_table:
            for listener in self._listeners:
                listener.on_change(group_info.group_name, group_info.all_connections())


class ProducerManager(_ClientManager):
    """Producer groups, from heartbeats: the clients to ask about a transaction or to send a reply to."""

    _kind = "producers"

    def __init__(
        self,
        channel_expired_timeout_ms: int = CHANNEL_EXPIRED_TIMEOUT_MS,
        clock_ms: Callable[[], int] = now_ms,
        monotonic_clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        """`clock_ms` dates the times of get_producer_table(), the other clock measures silence."""
        super().__init__(channel_expired_timeout_ms, monotonic_clock_ms)
        self.group_channel_table: dict[str, dict[Connection, ClientChannelInfo]] = {}
        self._client_channel_table: dict[str, Connection] = {}
        self._clock_ms = clock_ms

    def find_channel(self, client_id: str) -> Connection | None:
        return self._client_channel_table.get(client_id)

    def get_producer_table(self) -> ProducerTableInfo:
        epoch = self._clock_ms() - self._monotonic_clock_ms()
        return ProducerTableInfo(
            data={
                group: [
                    ProducerInfo(
                        client_id=info.client_id,
                        remote_ip=info.connection.remote_address,
                        language=info.language.name,
                        version=info.version,
                        last_update_timestamp=epoch + info.last_seen_ms,
                    )
                    for info in channels.values()
                ]
                for group, channels in self.group_channel_table.items()
            }
        )

    def register_producer(self, group: str, info: ClientChannelInfo) -> None:
        """Handles a heartbeat."""
        channels = self.group_channel_table.setdefault(group, {})
        known = channels.get(info.connection)
        if known is not None:
            known.last_seen_ms = info.last_seen_ms
            return
        channels[info.connection] = info
        self._groups_of.setdefault(info.connection, set()).add(group)
        self._client_channel_table[info.client_id] = info.connection
        logger.info("%s: new producer %s", group, info)

    def unregister_producer(self, group: str, connection: Connection) -> None:
        """Removes a client that unregisters from a group."""
        info = self._remove(group, connection)
        self._forget_group(group, connection)
        if info is not None and connection not in self._groups_of:
            self._forget_client(info)

    def _leave_group(self, group: str, connection: Connection) -> None:
        info = self._remove(group, connection)
        if info is not None:
            self._forget_client(info)

    def _channels(self) -> Iterator[ClientChannelInfo]:
        for channels in self.group_channel_table.values():
            yield from channels.values()

    def _remove(self, group: str, connection: Connection) -> ClientChannelInfo | None:
        channels = self.group_channel_table.get(group, {})
        info = channels.pop(connection, None)
        if not channels:
            self.group_channel_table.pop(group, None)
        if info is not None:
            logger.info("%s: producer %s has gone", group, info)
        return info

    def _forget_client(self, info: ClientChannelInfo) -> None:
        if self._client_channel_table.get(info.client_id) is info.connection:
            del self._client_channel_table[info.client_id]
