"""Plans for static topics, and clients of one while its queues move. That the plans are such as RocketMQ's tools go on
with is seen in tests/interop/test_static_topics.py."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.client import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumerConfig,
    ConsumeResult,
    LocalTransactionState,
    Message,
    MQClientInstance,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionMQProducer,
)
from mqlake.client.admin import Admin
from mqlake.client.overview import stored_since
from mqlake.client.static_topics import (
    Configs,
    adopt_decided,
    check,
    created,
    decide_offsets,
    details,
    logical_queues,
    remapped,
    rounded_up,
)
from mqlake.errors import MappingError, SendError
from mqlake.remoting.bodies.admin import TopicOffset, TopicStatsTable
from mqlake.remoting.bodies.topic import (
    MessageQueue,
    TopicConfigAndQueueMapping,
    TopicRemappingDetailWrapper,
)
from tests.broker.static_cluster import StaticCluster, on_static_brokers, queue_of
from tests.waiting import PATIENCE_S, until_async

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
NAMES = st.sets(st.sampled_from("abcde"), min_size=1)


def leaders(configs: Configs) -> dict[int, str]:
    return {queue_id: queue.leader for queue_id, queue in logical_queues(details(configs)).items()}


def copied(change: TopicRemappingDetailWrapper) -> TopicRemappingDetailWrapper:
    """As it comes out of its file."""
    return TopicRemappingDetailWrapper.from_json(change.to_json())


def stats(ends: dict[tuple[str, int], int]) -> TopicStatsTable:
    return TopicStatsTable(
        offset_table={
            MessageQueue(topic="T", broker_name=name, queue_id=queue): TopicOffset(max_offset=end)
            for (name, queue), end in ends.items()
        }
    )


@given(first=NAMES, queues=st.integers(1, 12), then=st.lists(NAMES, max_size=4), more=st.integers(0, 5))
def test_queues_are_spread_evenly_and_move_no_more_than_that_takes(first, queues, then, more):
    configs: Configs = {}
    created("T", queues, first, configs, now=1)
    for number, targets in enumerate(then):
        before = leaders(configs)
        change = copied(remapped("T", targets, configs, now=1))
        for name in change.broker_to_map_out:
            ends = {(name, queue): 3 for queue in range(configs[name].write_queue_nums)}
            decide_offsets(change, name, stats(ends))
        configs = change.broker_config_map
        after = leaders(configs)
        counts = Counter(after.values())
        assert set(counts) <= targets and max(counts.values()) - min(counts[name] for name in targets) <= 1
        # a broker gives queues or gets some, never both
        assert not change.broker_to_map_in & change.broker_to_map_out
        kept = sum(before[queue] == after[queue] for queue in before)
        assert kept >= sum(min(Counter(before.values())[name], counts[name]) for name in targets)
        assert check("T", configs)[1] == queues, number
    if more:
        created("T", queues + more, {*first, *configs}, configs, now=1)
        assert sorted(leaders(configs)) == list(range(queues + more))


def test_epochs_grow_whatever_the_clock_says():
    configs: Configs = {}
    first = created("T", 1, ["a"], configs, now=5_000).epoch
    second = remapped("T", ["b"], configs, now=5).epoch
    assert (first, second) == (6_000, 7_000)


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, 10_000), (4_999, 10_000), (5_000, 20_000), (9_999, 20_000), (10_000, 20_000)]
)
def test_a_part_begins_at_a_round_offset_well_beyond_the_end_of_the_last(offset, expected):
    assert rounded_up(offset) == expected


def test_a_change_that_was_interrupted_is_carried_out_once_more_with_the_offsets_that_are_decided():
    configs: Configs = {}
    created("T", 1, ["a"], configs, now=1)
    change = remapped("T", ["b"], configs, now=1)
    file = copied(change)
    decide_offsets(change, "a", stats({("a", 0): 7}))
    adopt_decided(file, change.broker_config_map)
    assert file.broker_config_map["b"].mapping_detail.hosted_queues[0][-1].logic_offset == 10_000
    decide_offsets(file, "a", stats({("a", 0): 12_345}))  # the queue has grown; what is decided stays
    assert file.broker_config_map["b"].mapping_detail.hosted_queues[0][-1].logic_offset == 10_000


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda c: setattr(c["a"].mapping_detail, "epoch", 9), "disagree"),
        (lambda c: setattr(c["a"].mapping_detail, "total_queues", 9), "disagree"),
        (lambda c: setattr(c["a"].mapping_detail, "dirty", True), "dirty"),
        (lambda c: setattr(c["a"], "mapping_detail", None), "ordinary topic"),
        (lambda c: c["a"].mapping_detail.hosted_queues.clear(), "without one"),
        (lambda c: setattr(c["a"], "write_queue_nums", 0), "no such physical queue"),
        (lambda c: setattr(c["a"], "read_queue_nums", 0), "fewer queues to read"),
        (
            lambda c: c["b"].mapping_detail.hosted_queues.update(
                {q: list(i) for q, i in c["a"].mapping_detail.hosted_queues.items()}
            ),
            None,
        ),
    ],
)
def test_a_mapping_that_contradicts_itself_is_not_changed(break_it, why):
    configs: Configs = {}
    created("T", 2, ["a", "b"], configs, now=1)
    break_it(configs)
    if why is None:  # a broker may know queues that it does not lead
        remapped("T", ["a"], configs)
        return
    with pytest.raises(MappingError, match=why):
        remapped("T", ["a"], configs)


def test_two_leaders_or_a_physical_queue_for_two_are_refused():
    configs: Configs = {}
    created("T", 2, ["a", "b"], configs, now=1)
    mapping = configs["a"].mapping_detail
    other = next(q for q in (0, 1) if q not in mapping.hosted_queues)
    (items,) = mapping.hosted_queues.values()
    mapping.hosted_queues[other] = items
    with pytest.raises(MappingError, match="is led by"):
        remapped("T", ["a"], configs)
    with pytest.raises(MappingError, match="share the physical queue"):
        logical_queues([mapping], complete=False)


def test_a_static_topic_only_gets_more_queues():
    configs: Configs = {}
    created("T", 3, ["a", "b"], configs, now=1)
    with pytest.raises(MappingError, match="only get more"):
        created("T", 3, ["a", "b"], configs)
    with pytest.raises(MappingError, match="are not named"):
        created("T", 4, ["c"], configs)
    plain = {"a": TopicConfigAndQueueMapping(topic_name="T")}
    with pytest.raises(MappingError, match="ordinary topic"):
        created("T", 3, ["a"], plain)


# --- clients


def client_of(cluster: StaticCluster) -> MQClientInstance:
    return MQClientInstance(ClientConfig(namesrv_addr=cluster.namesrv_addr, poll_name_server_interval_s=0.05))


def test_a_topic_moves_while_it_is_written_and_read(tmp_path):
    """Each message comes once, in the order of its queue, and says its logical queue."""

    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 4, "broker-a", "broker-b")
        seen: list[tuple[int, int, bytes]] = []

        async def listen(messages, _) -> ConsumeResult:
            seen.extend((each.queue_id, each.queue_offset, each.body) for each in messages)
            return ConsumeResult.SUCCESS

        config = ConsumerConfig(consume_from_where=FIRST)
        async with (
            client_of(cluster) as client,
            Producer("P", client) as producer,
            PushConsumer("G", client, listen, config) as consumer,
        ):
            consumer.subscribe("T")
            sent = []

            async def send(count: int) -> None:
                for _ in range(count):
                    result = await producer.send(Message("T", str(len(sent)).encode()))
                    queue = result.message_queue
                    assert queue.broker_name == "__syslo__global__"
                    sent.append((queue.queue_id, result.queue_offset, str(len(sent)).encode()))

            await send(20)
            await cluster.move("T", "broker-c")
            await send(20)  # the first of them finds out that another broker leads now
            await cluster.move("T", "broker-a", "broker-b", "broker-c")
            await send(20)
            await until_async(lambda: len(seen) >= len(sent), "all messages have come")
            assert sorted(seen) == sorted(sent)
            by_queue: dict[int, list[int]] = {}
            for queue, offset, _ in seen:
                by_queue.setdefault(queue, []).append(offset)
            assert all(offsets == sorted(offsets) for offsets in by_queue.values())

    on_static_brokers(tmp_path, scene, 3)


def test_a_queue_that_is_named_is_found_where_it_has_moved_to(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        async with client_of(cluster) as client, Producer("P", client) as producer:
            assert (await producer.send(Message("T", b"1"), queue=queue_of("T"))).queue_offset == 0
            await cluster.move("T", "broker-b")
            assert (await producer.send(Message("T", b"2"), queue=queue_of("T"))).queue_offset == 10_000
            with pytest.raises(SendError):
                await producer.send(Message("T", b"3"), queue=queue_of("T", 7))

    on_static_brokers(tmp_path, scene)


def test_pull_consumers_read_and_seek_in_logical_queues(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        await cluster.send("broker-a", 2)
        await cluster.move("T", "broker-b")
        await cluster.send("broker-b", 2)
        config = ConsumerConfig(consume_from_where=FIRST)
        async with client_of(cluster) as client, PullConsumer("G", client, config) as consumer:
            assert await consumer.fetch_message_queues("T") == [queue_of("T")]
            await consumer.assign([queue_of("T")])
            found = []
            while len(found) < 4:
                found += await consumer.poll(timeout_s=PATIENCE_S)
            assert [each.queue_offset for each in found] == [0, 1, 10_000, 10_001]
            assert {(each.queue_id, each.broker_name) for each in found} == {(0, "__syslo__global__")}
            assert (await consumer.begin_offset(queue_of("T")), await consumer.max_offset(queue_of("T"))) == (
                0,
                10_002,
            )
            await consumer.commit()
            progress = (await cluster.admin.examine_consume_stats("G", "T")).offset_table
            assert (progress[queue_of("T")].consumer_offset, progress[queue_of("T")].broker_offset) == (
                10_002,
                10_002,
            )
            await consumer.seek(queue_of("T"), 1)
            assert (await consumer.poll(timeout_s=PATIENCE_S))[0].queue_offset == 1

    on_static_brokers(tmp_path, scene)


def test_transactions_end_at_the_broker_that_has_the_half_message(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        await cluster.move("T", "broker-b")
        async with client_of(cluster) as client, TransactionMQProducer("P", client, _Commit()) as producer:
            await producer.send_message_in_transaction(Message("T", b"x"))
        await cluster.peer("broker-b").dispatched()
        assert await cluster.read_all("broker-b") == [10_000]

    on_static_brokers(tmp_path, scene)


class _Commit:
    async def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message):
        return LocalTransactionState.COMMIT_MESSAGE


def test_what_an_operator_sees_are_logical_queues(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 2, "broker-a")
        for queue in range(2):
            await cluster.send("broker-a", 3, queue_id=queue)
        admin: Admin = cluster.admin
        table = (await admin.examine_topic_stats("T")).offset_table
        assert {queue: (each.min_offset, each.max_offset) for queue, each in table.items()} == {
            queue_of("T", 0): (0, 3),
            queue_of("T", 1): (0, 3),
        }
        await cluster.move("T", "broker-b")
        await cluster.send("broker-b", 1, queue_id=1)
        table = (await admin.examine_topic_stats("T")).offset_table
        assert {queue: (each.min_offset, each.max_offset) for queue, each in table.items()} == {
            queue_of("T", 0): (0, 10_000),
            queue_of("T", 1): (0, 10_001),
        }
        assert (await admin.message_at(queue_of("T", 1), 10_000)).body == b"body"
        assert (await admin.message_at(queue_of("T", 1), 2)).queue_offset == 2
        pulled = await admin.messages_in(queue_of("T", 1), 0, 10_001)
        assert [(each.queue_id, each.queue_offset) for each in pulled] == [
            (1, 0),
            (1, 1),
            (1, 2),
            (1, 10_000),
        ]
        assert await stored_since(admin, await admin.examine_topic_stats("T"), 1) > 0
        queue, answer = await admin.send(Message("T", b"by an operator"), queue=queue_of("T", 1))
        assert (queue.queue_id, answer.queue_offset) == (1, 10_001)
        # a group that has consumed only the old part
        offsets = cluster.brokers["broker-a"].broker.consumer_offset_manager
        offsets.commit_offset("h", "G", "T", cluster.detail("broker-b").hosted_queues[1][0].queue_id, 2)
        progress = (await admin.examine_consume_stats("G", "T")).offset_table[queue_of("T", 1)]
        assert (progress.consumer_offset, progress.broker_offset) == (2, 10_002)

    on_static_brokers(tmp_path, scene)


def test_deleted_it_is_gone_with_its_mapping(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 2, "broker-a")
        await cluster.admin.delete_topic("T")
        assert "T" not in cluster.brokers["broker-a"].broker.topic_queue_mapping_manager.table
        await cluster.admin.create_topic("T", queues=1)
        route = await cluster.admin.examine_topic_route_info("T")
        assert not route.topic_queue_mapping_by_broker
        await asyncio.sleep(0)
        assert await cluster.send("broker-a") == [0]

    on_static_brokers(tmp_path, scene)
