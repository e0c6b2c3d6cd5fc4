"""Static topics for operators: plan a mapping, and carry it out on the brokers.

    examine ──▶ {broker: its part} ──▶ created() / remapped() ──▶ TopicRemappingDetailWrapper ──▶ apply

The plans are RocketMQ's (TopicQueueMappingUtils, MQAdminUtils): mqadmin and mqlake can go on with each other's topics.
What contradicts itself, or would be changed in a way that loses messages, raises MappingError and is left as it is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mqlake.base.clock import now_ms
from mqlake.errors import MappingError
from mqlake.remoting.bodies.admin import ConsumeStats, OffsetWrapper, TopicOffset, TopicStatsTable
from mqlake.remoting.bodies.topic import (
    LogicQueueMappingItem,
    MessageQueue,
    TopicConfigAndQueueMapping,
    TopicQueueMappingDetail,
    TopicRemappingDetailWrapper,
)
from mqlake.remoting.static_topic import Items, check_offsets, find_item, leads, mock_broker_name

BLOCK_SEQ_SIZE = 10_000
"""A part begins at a multiple of it, far enough from the end of the one before."""
EPOCH_STEP_MS = 1000

Configs = dict[str, TopicConfigAndQueueMapping]
"""Broker's name → what it has of a topic."""


@dataclass(frozen=True)
class LogicalQueue:
    """As its leader knows it."""

    queue_id: int
    detail: TopicQueueMappingDetail
    items: Items

    @property
    def leader(self) -> str:
        return self.detail.bname

    @property
    def handle(self) -> MessageQueue:
        """The queue as clients know it."""
        broker_name = mock_broker_name(self.detail.scope)
        return MessageQueue(topic=self.detail.topic, broker_name=broker_name, queue_id=self.queue_id)


# --- what is there


def details(configs: Configs) -> list[TopicQueueMappingDetail]:
    """Returns the mappings of the brokers that have one."""
    return [config.mapping_detail for config in configs.values() if config.mapping_detail is not None]


def check(topic: str, configs: Configs) -> tuple[int, int]:
    """Epoch and number of queues, on which all brokers must agree."""
    if not configs:
        raise MappingError(f"no broker has the topic {topic}; `mqlake admin topic static` makes it")
    known: set[tuple[str, int, int]] = set()
    for name, config in configs.items():
        detail = config.mapping_detail
        if detail is None:
            raise MappingError(
                f"{topic} on broker {name} is an ordinary topic, which cannot become a static one"
            )
        if detail.bname != name or detail.topic != topic or config.topic_name != topic or detail.dirty:
            raise MappingError(
                f"broker {name} has a mapping of {detail.topic} for {detail.bname}, dirty={detail.dirty}"
            )
        known.add((detail.scope, detail.epoch, detail.total_queues))
    if len(known) != 1:
        raise MappingError(
            f"the brokers disagree on {topic}: scope, epoch and number of queues are {sorted(known)}. A change was "
            "interrupted: carry it out again with the file that it wrote (--map-file)"
        )
    _, epoch, total = known.pop()
    return epoch, total


def logical_queues(
    all_details: Iterable[TopicQueueMappingDetail], *, complete: bool = True
) -> dict[int, LogicalQueue]:
    """By number; where two brokers claim to lead one, the newer mapping counts if not `complete`."""
    ordered = sorted(all_details, key=lambda detail: -detail.epoch)
    found: dict[int, LogicalQueue] = {}
    for detail in ordered:
        for queue_id, items in sorted(detail.hosted_queues.items()):
            check_offsets(items)
            if not leads(items, detail):
                continue
            if queue_id in found and complete:
                raise MappingError(
                    f"queue {queue_id} is led by {found[queue_id].leader} and by {detail.bname}"
                )
            found.setdefault(queue_id, LogicalQueue(queue_id, detail, items))
    total = max((detail.total_queues for detail in ordered), default=0)
    if complete and sorted(found) != list(range(total)):
        missing = sorted(set(range(total)) - found.keys())
        raise MappingError(f"of {total} queues, {len(found)} are led by a broker; without one: {missing}")
    _check_physical_queues_are_apart(found.values())
    return found


def _check_physical_queues_are_apart(queues: Iterable[LogicalQueue]) -> None:
    owners: dict[tuple[str, int], int] = {}
    for queue in queues:
        for item in queue.items:
            owner = owners.setdefault((item.bname, item.queue_id), queue.queue_id)
            if owner != queue.queue_id:
                raise MappingError(
                    f"queues {owner} and {queue.queue_id} share the physical queue {item.queue_id} of {item.bname}"
                )


def check_physical_queues(configs: Configs) -> None:
    """Every part is a physical queue that its broker has."""
    for name, config in configs.items():
        if config.read_queue_nums < config.write_queue_nums:
            raise MappingError(f"{name} has fewer queues to read than to write")
        for detail in (config.mapping_detail,):
            for items in () if detail is None else detail.hosted_queues.values():
                for item in items:
                    owner = configs.get(item.bname)
                    if item.start_offset or owner is None or item.queue_id >= owner.write_queue_nums:
                        raise MappingError(
                            f"{item}: its broker has no such physical queue, or it does not begin at 0"
                        )


def _checked(topic: str, configs: Configs) -> tuple[int, dict[int, LogicalQueue]]:
    epoch, _ = check(topic, configs)
    queues = logical_queues(details(configs))
    check_physical_queues(configs)
    return epoch, queues


# --- plans


def created(
    topic: str, queue_num: int, targets: Collection[str], configs: Configs, *, now: int | None = None
) -> TopicRemappingDetailWrapper:
    """A new static topic, or one with more queues, spread evenly over `targets`. Changes `configs`."""
    epoch, queues = now_ms() if now is None else now, dict[int, LogicalQueue]()
    if configs:
        epoch, queues = _checked(topic, configs)
    hosting = {name for name in configs if _detail(configs, name).hosted_queues}
    if not hosting <= set(targets):
        raise MappingError(
            f"these brokers have queues of {topic} and are not named: {sorted(hosting - set(targets))}"
        )
    if queue_num <= len(queues):
        raise MappingError(f"{topic} has {len(queues)} queues already: a static topic can only get more")
    counts = Counter(dict.fromkeys(targets, 0))
    counts.update(queue.leader for queue in queues.values())
    for queue_id in range(len(queues), queue_num):
        name = _least(counts)
        counts[name] += 1
        number = _add_physical_queue(topic, name, configs)
        item = LogicQueueMappingItem(gen=0, queue_id=number, bname=name, logic_offset=0)
        _detail(configs, name).hosted_queues[queue_id] = [item]
    epoch = _stamp(configs, epoch, queue_num, now)
    _checked(topic, configs)
    return TopicRemappingDetailWrapper(
        topic=topic, type="CREATE_OR_UPDATE", epoch=epoch, broker_config_map=configs
    )


def remapped(
    topic: str, targets: Collection[str], configs: Configs, *, now: int | None = None
) -> TopicRemappingDetailWrapper:
    """The queues led by `targets` alone, with as few moves as that takes. Changes `configs`. Where the new parts begin
    is decided when the old ones are not written any more."""
    epoch, queues = _checked(topic, configs)
    before = Counter(queue.leader for queue in queues.values())
    share = _shares(len(queues), targets, before)
    waiting = []
    for queue in queues.values():
        if share.get(queue.leader, 0) > 0:
            share[queue.leader] -= 1
        else:
            waiting.append(queue)
    free = [name for name in sorted(share) for _ in range(share[name])]
    wrapper = TopicRemappingDetailWrapper(topic=topic, type="REMAPPING", broker_config_map=configs)
    for queue, name in zip(waiting, free, strict=True):
        wrapper.broker_to_map_in.add(name)
        wrapper.broker_to_map_out.add(queue.leader)
        last = queue.items[-1]
        number = _add_physical_queue(topic, name, configs)
        new = LogicQueueMappingItem(gen=last.gen + 1, queue_id=number, bname=name, logic_offset=-1)
        for each in (name, queue.leader):
            _detail(configs, each).hosted_queues[queue.queue_id] = [*queue.items, new]
    wrapper.epoch = _stamp(configs, epoch, len(queues), now)
    _checked(topic, configs)
    return wrapper


def _shares(count: int, targets: Collection[str], before: Mapping[str, int]) -> dict[str, int]:
    """How many queues each gets; one more for those that have the most."""
    least, more = divmod(count, len(targets))
    by_queues = sorted(targets, key=lambda name: (-before.get(name, 0), name))
    return {name: least + (place < more) for place, name in enumerate(by_queues)}


def _least(counts: Mapping[str, int]) -> str:
    least = min(counts.values())
    return random.choice([name for name, count in counts.items() if count == least])


def _detail(configs: Configs, name: str) -> TopicQueueMappingDetail:
    detail = configs[name].mapping_detail
    assert detail is not None  # check() has seen it
    return detail


def _add_physical_queue(topic: str, name: str, configs: Configs) -> int:
    """The number of a new queue of the topic on that broker."""
    config = configs.get(name)
    if config is None:
        config = configs[name] = without_queues(topic, name, 0, 0)
    config.write_queue_nums += 1
    config.read_queue_nums = max(config.read_queue_nums + 1, config.write_queue_nums)
    return config.write_queue_nums - 1


def without_queues(topic: str, name: str, total: int, epoch: int) -> TopicConfigAndQueueMapping:
    """The part of a broker that has none of the queues."""
    detail = TopicQueueMappingDetail(topic=topic, total_queues=total, bname=name, epoch=epoch)
    return TopicConfigAndQueueMapping(
        topic_name=topic, read_queue_nums=0, write_queue_nums=0, mapping_detail=detail
    )


def _stamp(configs: Configs, epoch: int, total: int, now: int | None) -> int:
    epoch = max(epoch + EPOCH_STEP_MS, now_ms() if now is None else now)
    for name in configs:
        detail = _detail(configs, name)
        detail.epoch, detail.total_queues = epoch, total
    return epoch


def decide_offsets(wrapper: TopicRemappingDetailWrapper, broker_name: str, stats: TopicStatsTable) -> None:
    """Says where the new parts of the queues begin that this broker has led: its `stats` say where the old ones end."""
    configs = wrapper.broker_config_map
    for queue_id, items in _detail(configs, broker_name).hosted_queues.items():
        if len(items) < 2 or items[-1].is_decided:
            continue
        *_, old, new = items
        queue = MessageQueue(topic=wrapper.topic, broker_name=old.bname, queue_id=old.queue_id)
        if old.bname != broker_name:
            continue
        if queue not in stats.offset_table:
            raise MappingError(
                f"{broker_name} does not say where queue {old.queue_id} of {wrapper.topic} ends"
            )
        new.logic_offset = rounded_up(old.logical(stats.offset_table[queue].max_offset))
        _detail(configs, new.bname).hosted_queues[queue_id] = list(items)


def adopt_decided(wrapper: TopicRemappingDetailWrapper, current: Configs) -> None:
    """Takes over what brokers know already of where parts begin: a change is carried out once more."""
    decided = {
        (queue_id, item.gen): item.logic_offset
        for detail in details(current)
        for queue_id, items in detail.hosted_queues.items()
        for item in items
        if item.is_decided
    }
    for detail in details(wrapper.broker_config_map):
        for queue_id, items in detail.hosted_queues.items():
            for item in items:
                if not item.is_decided:
                    item.logic_offset = decided.get((queue_id, item.gen), item.logic_offset)


def rounded_up(offset: int, size: int = BLOCK_SEQ_SIZE) -> int:
    """The next multiple, or the one after it if that is near."""
    blocks, rest = divmod(offset, size)
    return (blocks + (1 if rest < size // 2 else 2)) * size


# --- what brokers count, of the logical queues


def logical_stats(stats: TopicStatsTable, all_details: Iterable[TopicQueueMappingDetail]) -> TopicStatsTable:
    """The ends of the logical queues, in place of those of their parts."""
    table, found = stats.offset_table, TopicStatsTable(topic_put_tps=stats.topic_put_tps)
    for queue in logical_queues(all_details, complete=False).values():
        first, last = find_item(queue.items, 0), _last_decided(queue.items)
        if first is None or last is None:
            continue
        low, high = table.get(_physical(queue, first)), table.get(_physical(queue, last))
        if low is not None and high is not None:
            found.offset_table[queue.handle] = TopicOffset(
                min_offset=first.logical(low.min_offset),
                max_offset=last.logical(high.max_offset),
                last_update_timestamp=high.last_update_timestamp,
            )
    return found


def logical_progress(
    stats: ConsumeStats, all_details: Iterable[TopicQueueMappingDetail]
) -> dict[MessageQueue, OffsetWrapper]:
    """A group's progress in the logical queues, of that in their parts: in the newest part that has an offset."""
    found: dict[MessageQueue, OffsetWrapper] = {}
    for queue in logical_queues(all_details, complete=False).values():
        last = _last_decided(queue.items)
        end = None if last is None else stats.offset_table.get(_physical(queue, last))
        if last is None or end is None:
            continue
        wrapper = OffsetWrapper(broker_offset=last.logical(end.broker_offset))
        for item in reversed(queue.items):
            known = stats.offset_table.get(_physical(queue, item))
            if known is not None and item.is_decided and known.consumer_offset >= 0:
                wrapper.consumer_offset = item.logical(known.consumer_offset)
                wrapper.pull_offset = item.logical(known.pull_offset)
                wrapper.last_timestamp = known.last_timestamp
                break
        found[queue.handle] = wrapper
    return found


def _physical(queue: LogicalQueue, item: LogicQueueMappingItem) -> MessageQueue:
    return MessageQueue(topic=queue.detail.topic, broker_name=item.bname, queue_id=item.queue_id)


def _last_decided(items: Items) -> LogicQueueMappingItem | None:
    return next((item for item in reversed(items) if item.is_decided), None)
