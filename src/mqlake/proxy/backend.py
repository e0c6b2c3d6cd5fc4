"""Backend: where requests of gRPC clients go. `local` is the broker in this process, `remote` a cluster.

    RPC ─▶ Channel.invoke(broker, RemotingCommand) ─▶ broker
    RPC ◀─ the answer ─────────────────────────────── broker
    on_request ◀─ the broker's own requests: check this transaction, report your state

A client has one Channel. To the broker it is one connection of one client, so the broker's own tables of producers
and consumers, its callbacks and its statistics work for gRPC clients as for all others.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.route import TopicRouteData
from mqlake.remoting.bodies.topic import MessageQueue, TopicConfig
from mqlake.remoting.command import RemotingCommand

OnRequest = Callable[[RemotingCommand], Awaitable[RemotingCommand | None]]
"""Handles a request of a broker to a client; its answer, None for none."""


class Channel(Protocol):
    """One client's way to the brokers."""

    async def invoke(
        self, broker_name: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """The broker's answer, whatever its code. RemotingError if there is none, UnknownBrokerError for a broker
        that cannot be reached from here."""

    async def close(self) -> None:
        """The client has gone."""


class Backend(abc.ABC):
    @abc.abstractmethod
    async def start(self) -> None: ...

    @abc.abstractmethod
    async def close(self) -> None: ...

    @abc.abstractmethod
    def open(self, remote_address: str, on_request: OnRequest) -> Channel:
        """A channel for a client at `remote_address`."""

    @abc.abstractmethod
    async def route(self, topic: str) -> TopicRouteData:
        """Returns the route of the topic. ResponseError TOPIC_NOT_EXIST."""

    @abc.abstractmethod
    async def queues_to_send(self, topic: str) -> Sequence[MessageQueue]:
        """Returns the queues for messages of the topic, sorted. ResponseError TOPIC_NOT_EXIST."""

    @abc.abstractmethod
    async def brokers_of(self, topics: Iterable[str]) -> set[str]:
        """The brokers with which clients of these topics register; topics that do not exist are left out."""

    @abc.abstractmethod
    async def topic_config(self, topic: str) -> TopicConfig | None:
        """The topic's settings on some broker; None if there is no such topic."""

    @abc.abstractmethod
    async def group_config(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings on some broker; None if there is no such group, and it may not be created."""

    @property
    def own_broker(self) -> str:
        """The name of the broker in this process; empty if there is none."""
        return ""
