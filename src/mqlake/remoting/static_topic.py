"""Static topics: a fixed number of logical queues, each made of physical queues of several brokers, one after another.

    logical queue 3     0 ──────────── 9,812   20,000 ──────────────▶
                        gen 0: broker-a, queue 1    gen 1: broker-b, queue 0     (the leader: it takes the sends)

A client sees one broker, `__syslo__global__`, and the logical queues; a route tells it which broker leads which. It
asks the leader, which asks the brokers of older parts. When a queue moves, the new part begins at a round offset beyond
the end of the old one.

These are RocketMQ's rules for a mapping (TopicQueueMappingUtils), without network or files. What breaks them raises
MappingError.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from mqlake.errors import MappingError
from mqlake.remoting.bodies.route import TopicRouteData
from mqlake.remoting.bodies.topic import (
    LogicQueueMappingItem,
    MessageQueue,
    TopicQueueMappingDetail,
    TopicQueueMappingInfo,
)

GLOBAL_SCOPE = "__global__"
MOCK_BROKER_PREFIX = "__syslo__"
NO_BROKER = "__syslo__none__"
"""The leader of a logical queue that no broker leads now."""

Items = Sequence[LogicQueueMappingItem]


def mock_broker_name(scope: str) -> str:
    """The broker's name in a message queue of a static topic."""
    return MOCK_BROKER_PREFIX + (scope[2:] if scope == GLOBAL_SCOPE else scope)


def is_mock_broker(name: str) -> bool:
    return name.startswith(MOCK_BROKER_PREFIX)


# --- parts of a logical queue


def find_item(items: Items, offset: int) -> LogicQueueMappingItem | None:
    """The part with this offset of the logical queue; the first for one before all of them. Those that are not decided
    yet do not count: None if there are no others."""
    decided = [item for item in items if item.is_decided]
    for item in reversed(decided):
        if offset >= item.logic_offset:
            return item
    return decided[0] if decided else None


def next_item(items: Items, item: LogicQueueMappingItem) -> LogicQueueMappingItem | None:
    """The part after this one; None if it is the last, or the next is not decided yet."""
    following = next((other for other in items if other.gen > item.gen), None)
    return following if following is not None and following.is_decided else None


def max_offset_of_mapping(items: Items) -> int:
    """Returns the end of the logical queue as far as the mapping itself says it: the end of the last part, or its
    beginning."""
    last = items[-1]
    return last.logical(last.end_offset) if last.has_end else last.logic_offset


def leads(items: Items, detail: TopicQueueMappingInfo) -> bool:
    """True if the newest part is on the broker of `detail`."""
    return bool(items) and items[-1].bname == detail.bname


def mapping_info(detail: TopicQueueMappingDetail) -> TopicQueueMappingInfo:
    """Returns what name servers are told of a mapping."""
    return TopicQueueMappingInfo(
        topic=detail.topic,
        total_queues=detail.total_queues,
        bname=detail.bname,
        epoch=detail.epoch,
        curr_id_map={
            queue_id: items[-1].queue_id
            for queue_id, items in detail.hosted_queues.items()
            if leads(items, detail)
        },
    )


# --- what a mapping must hold


def check_offsets(items: Items) -> None:
    """The parts of one logical queue: generations and offsets grow, and only the last may be undecided."""
    for item in items:
        if min(item.start_offset, item.gen, item.queue_id) < 0:
            raise MappingError(f"{item}: startOffset, gen and queueId cannot be negative")
        if item.end_offset != -1 and item.end_offset < item.start_offset:
            raise MappingError(f"{item}: endOffset is less than startOffset")
    for item, following in itertools.pairwise(items):
        if not item.is_decided:
            raise MappingError(f"{item}: only the last part may be without its logicOffset")
        if item.gen >= following.gen:
            raise MappingError(f"{item}: the next part has gen {following.gen}")
        if following.is_decided and max_offset_of_mapping((item,)) >= following.logic_offset:
            raise MappingError(f"{item}: the next part begins at {following.logic_offset}")


def check_unchanged(old: Items, new: Items, *, same_epoch: bool) -> None:
    """Raises unless what is known of a part stays true: its place, and its logicOffset once that is decided. With
    the same epoch the leader stays, too."""
    if not old:
        return
    if not new:
        raise MappingError("the new mapping lacks the parts of a queue that the old one has")
    by_gen = {item.gen: item for item in new}
    for item in old:
        given = by_gen.get(item.gen)
        if given is None:  # it went with its messages, or the queue has come back to a broker that had it
            continue
        if _place(item) != _place(given):
            raise MappingError(f"{item} cannot become {given}: a part stays where it is")
        if item.is_decided and item.logic_offset != given.logic_offset:
            raise MappingError(f"{item} cannot become {given}: logicOffset is decided once")
    if same_epoch and (old[-1].gen, *_place(old[-1])) != (new[-1].gen, *_place(new[-1])):
        raise MappingError(f"{old[-1]} leads, and {new[-1]} would, with the same epoch")


def _place(item: LogicQueueMappingItem) -> tuple[str, int, int]:
    return item.bname, item.queue_id, item.start_offset


def accepted(
    old: TopicQueueMappingDetail | None, new: TopicQueueMappingDetail, *, force: bool
) -> TopicQueueMappingDetail:
    """The mapping that a broker with `old` keeps when it is given `new`: queues that only `old` has stay. `force`: also
    if `new` contradicts it. MappingError if it is refused."""
    for items in new.hosted_queues.values():
        check_offsets(items)
    if old is None:
        return new
    if not force:
        if new.epoch < old.epoch:
            raise MappingError(f"Can't accept data with small epoch {new.epoch} < {old.epoch}")
        if new.scope != old.scope:
            raise MappingError(f"Can't accept data with unmatched scope {new.scope} != {old.scope}")
        same_epoch = new.epoch == old.epoch
        for queue_id, items in old.hosted_queues.items():
            if queue_id in new.hosted_queues:
                check_unchanged(items, new.hosted_queues[queue_id], same_epoch=same_epoch)
            elif same_epoch:
                raise MappingError(
                    f"queue {queue_id}: Cannot accept equal epoch with null data; the mapping has this queue already"
                )
    return dataclasses.replace(new, hosted_queues={**old.hosted_queues, **new.hosted_queues})


# --- what a route says


def endpoints(topic: str, route: TopicRouteData) -> dict[MessageQueue, str]:
    """The logical queues of a static topic → the name of the broker that leads each, NO_BROKER if none does. Empty for
    another topic. Where brokers contradict each other the newer mapping is right."""
    by_scope: dict[str, list[TopicQueueMappingInfo]] = {}
    for info in (route.topic_queue_mapping_by_broker or {}).values():
        by_scope.setdefault(info.scope, []).append(info)
    found: dict[MessageQueue, str] = {}
    for scope, infos in by_scope.items():
        infos.sort(key=lambda info: info.epoch)
        leaders = {queue_id: info.bname for info in infos for queue_id in info.curr_id_map}
        for queue_id in range(max(info.total_queues for info in infos)):
            queue = MessageQueue(topic=topic, broker_name=mock_broker_name(scope), queue_id=queue_id)
            found[queue] = leaders.get(queue_id, NO_BROKER)
    return found
