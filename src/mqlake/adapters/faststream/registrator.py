"""RocketRegistrator: `subscriber` and `publisher`, of brokers and of the routers that they include."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.middlewares import AckPolicy

from mqlake.adapters.faststream.command import Keys
from mqlake.adapters.faststream.config import (
    RETRY_DELAYS_S,
    RocketBrokerConfig,
    RocketPublisherConfig,
    RocketPublisherSpecificationConfig,
    RocketSubscriberConfig,
    RocketSubscriberSpecificationConfig,
)
from mqlake.adapters.faststream.publisher import RocketPublisher
from mqlake.adapters.faststream.specification import (
    RocketPublisherSpecification,
    RocketSubscriberSpecification,
)
from mqlake.adapters.faststream.subscriber import OrderlySubscriber, PoppingSubscriber, RocketSubscriber
from mqlake.client.consume.pop_api import POP_MAX
from mqlake.client.consume.subscription import SUB_ALL, MessageSelector, build_subscription_data
from mqlake.errors import ConfigError


class RocketRegistrator(Registrator):
    def subscriber(
        self,
        topic: str,
        *,
        group: str = "",
        tags: str = SUB_ALL,
        sql: str = "",
        orderly: bool = False,
        batch: bool = False,
        max_records: int = 32,
        max_workers: int = 1,
        prefetch: int = 16,
        visibility_timeout_s: float = 60.0,
        start: str = "first",
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RocketSubscriber:
        """Subscribes a handler to a topic.

        group: its members share the messages, and have to subscribe alike. The broker's group and the topic by default.
        tags: `*`, or tags with `||` between. sql: an SQL92 condition over the headers instead, if the broker has
            enablePropertyFilter=true.
        orderly: the messages of each queue in their order, one call at a time; max_workers bounds the queues that are
            consumed at the same time. Its group has to be its own.
        batch: the handler gets lists, of up to `max_records`: at most 32.
        max_workers: calls of the handler at a time.
        prefetch: messages in hand, waiting for a call or in one.
        visibility_timeout_s: seconds after which others get what a process had that died.
        start: "first" or "last": where a new group begins.
        retry_delays_s: seconds after which a message comes again that was not acknowledged; the last one from then on.
        ack_policy: FastStream's. NACK_ON_ERROR by default: again later, and a dead letter after 16 tries.
        Raises ConfigError.
        """
        config = RocketSubscriberConfig(
            _outer_config=self.config,
            _ack_policy=ack_policy,
            no_reply=no_reply,
            topic=topic,
            group=group,
            selector=_selector(topic, tags, sql),
            batch=batch,
            max_records=max_records,
            max_workers=max_workers,
            prefetch=prefetch,
            visibility_timeout_s=visibility_timeout_s,
            from_first=start == "first",
            retry_delays_s=tuple(retry_delays_s),
        )
        _check(config, start)
        calls: Any = CallsCollection()
        about: list[Callable[[], str]] = []
        specification = RocketSubscriberSpecification(
            self.config,
            RocketSubscriberSpecificationConfig(
                topic=topic,
                about=lambda: about[0](),
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
            calls,
        )
        made = (OrderlySubscriber if orderly else PoppingSubscriber)(config, specification, calls)
        about.append(made.about)
        super().subscriber(made, persistent=persistent)
        made.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )
        return made

    def publisher(
        self,
        topic: str,
        *,
        tag: str = "",
        keys: Keys = (),
        sharding_key: str = "",
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> RocketPublisher:
        """Publishes what a handler returns, or by its `publish`.

        tag, keys, headers, reply_to: of every message that does not have its own.
        sharding_key: all of them go to one queue, in order.
        batch: what a handler returns is a sequence of messages, to be stored as one.
        """
        made = RocketPublisher(
            RocketPublisherConfig(
                _outer_config=self.config,
                topic=topic,
                tag=tag,
                keys=keys,
                sharding_key=sharding_key,
                headers=headers or {},
                reply_to=reply_to,
                batch=batch,
            ),
            RocketPublisherSpecification(
                self.config,
                RocketPublisherSpecificationConfig(
                    topic=topic,
                    about=f"RocketMQ: tag `{tag}`." if tag else "",
                    schema_=schema,
                    title_=title,
                    description_=description,
                    include_in_schema=include_in_schema,
                ),
            ),
        )
        super().publisher(made, persistent=persistent)
        return made

    def include_router(
        self,
        router: Any,
        *,
        prefix: str = "",
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """A RocketRouter; `prefix` is put before its topics. TypeError for another broker's router."""
        if not isinstance(router, RocketRegistrator):
            raise TypeError(f"a RocketRouter is needed, not {type(router).__name__}")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


def _selector(topic: str, tags: str, sql: str) -> MessageSelector:
    if sql and tags != SUB_ALL:
        raise ConfigError(f"topic {topic}: tags and sql exclude each other; SQL92 may say TAGS = 'book'")
    found = MessageSelector.by_sql(sql) if sql else MessageSelector.by_tag(tags)
    build_subscription_data(topic, found)
    return found


def _check(config: RocketSubscriberConfig, start: str) -> None:
    for name, low, high in (("max_records", 1, POP_MAX), ("max_workers", 1, None), ("prefetch", 1, None)):
        value = getattr(config, name)
        if value < low or (high is not None and value > high):
            limit = f"at least {low}" if high is None else f"{low} to {high}"
            raise ConfigError(f"topic {config.topic}: {name} is {value}: {limit} is possible")
    if start not in ("first", "last"):
        raise ConfigError(f'topic {config.topic}: start is {start!r}: it can be "first" or "last"')
    if not config.retry_delays_s or min(config.retry_delays_s) < 0:
        raise ConfigError(f"topic {config.topic}: retry_delays_s needs seconds, 0 or more")


class RocketPublisherRoute(ArgsContainer):
    """The arguments of `publisher`, for a RocketRoute."""


class RocketRoute(SubscriberRoute):
    """`RocketRoute(handler, topic, publishers=[…], …)`: a subscriber that is made with its router."""


class RocketRouter(RocketRegistrator, BrokerRouter):
    """Subscribers and publishers that a broker includes."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketRoute] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[RocketRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=RocketBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
