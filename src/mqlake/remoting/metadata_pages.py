"""All topics or groups of a broker, a page at a time, as brokers from RocketMQ 5.4 on give them.

    page 0: seq 0      ──▶ {a .. f} version 7, 20 in all
    page 1: seq 6      ──▶ {g .. m} version 7             the next page begins after what has come
    page 2: seq 13     ──▶ {a .. f} version 8             the table has changed: this is its first page again

Older brokers ignore the fields, answer with everything, and do not say how many there are. A broker from 5.4 on refuses
a request that has other fields (a signature) and none of these.

Source: BrokerOuterAPI.getAllTopicConfig and AdminBrokerProcessor of 5.5.1. RocketMQ's loop ends at one less than the
total, so that a last page of one entry is lost (#11041); this one does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mqlake.errors import ResponseError
from mqlake.remoting.bodies.admin import SubscriptionGroupWrapper
from mqlake.remoting.bodies.topic import DataVersion, TopicConfigAndMappingSerializeWrapper
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.admin import (
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
)
from mqlake.remoting.headers.codec import CommandHeader

Wrapper = TypeVar("Wrapper", TopicConfigAndMappingSerializeWrapper, SubscriptionGroupWrapper)
Ask = Callable[[RequestCode, CommandHeader], Awaitable[RemotingCommand]]

PAGE = 2000
"""splitMetadataSize, the most that a broker gives at once by default."""
CHANGES_MAX = 20
"""A table that changes more often while it is read is given up for now."""


async def all_topics(
    ask: Ask, known: DataVersion | None = None, page: int = PAGE
) -> TopicConfigAndMappingSerializeWrapper:
    """21 until all is there; only the first page if the table still has the version `known`. What `ask` raises;
    ResponseError for answers that never come to an end."""

    async def fetch(seq: int, version: str) -> tuple[TopicConfigAndMappingSerializeWrapper, int | None]:
        header = GetAllTopicConfigRequestHeader(topic_seq=seq, data_version=version, max_topic_num=page)
        answer = await ask(RequestCode.GET_ALL_TOPIC_CONFIG, header)
        total = answer.decode_header(GetAllTopicConfigResponseHeader).total_topic_num
        body = answer.body_bytes()  # of an old broker there may be thousands in it
        return await asyncio.to_thread(TopicConfigAndMappingSerializeWrapper.from_json, body), total

    def add(
        found: TopicConfigAndMappingSerializeWrapper, more: TopicConfigAndMappingSerializeWrapper
    ) -> None:
        found.topic_config_table |= more.topic_config_table
        found.topic_queue_mapping_detail_map |= more.topic_queue_mapping_detail_map

    return await _all(fetch, add, lambda wrapper: len(wrapper.topic_config_table), known)


async def all_groups(
    ask: Ask, known: DataVersion | None = None, page: int = PAGE
) -> SubscriptionGroupWrapper:
    """201, as all_topics()."""

    async def fetch(seq: int, version: str) -> tuple[SubscriptionGroupWrapper, int | None]:
        header = GetAllSubscriptionGroupRequestHeader(group_seq=seq, data_version=version, max_group_num=page)
        answer = await ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
        total = answer.decode_header(GetAllSubscriptionGroupResponseHeader).total_group_num
        return await asyncio.to_thread(SubscriptionGroupWrapper.from_json, answer.body_bytes()), total

    def add(found: SubscriptionGroupWrapper, more: SubscriptionGroupWrapper) -> None:
        found.subscription_group_table |= more.subscription_group_table
        if more.forbidden_table is not None:
            found.forbidden_table = (found.forbidden_table or {}) | more.forbidden_table

    return await _all(fetch, add, lambda wrapper: len(wrapper.subscription_group_table), known)


async def _all(
    fetch: Callable[[int, str], Awaitable[tuple[Wrapper, int | None]]],
    add: Callable[[Wrapper, Wrapper], None],
    count: Callable[[Wrapper], int],
    known: DataVersion | None,
) -> Wrapper:
    found, total = await fetch(0, "")
    changes = 0
    while total is not None and count(found) < total and found.data_version != known:
        before = count(found)
        more, total = await fetch(before, found.data_version.to_json().decode())
        if more.data_version != found.data_version:
            changes += 1
            if changes > CHANGES_MAX:
                raise ResponseError(
                    ResponseCode.SYSTEM_ERROR, f"the table changed {changes} times while it was read"
                )
            found = more
            continue
        add(found, more)
        if count(found) == before:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"only {before} of {total} entries of the table have come"
            )
    return found
