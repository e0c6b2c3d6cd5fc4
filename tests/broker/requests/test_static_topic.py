"""Logical queues whose parts lie on several brokers, asked as clients ask, at the broker that leads them."""

from __future__ import annotations

import asyncio

from mqlake.client.static_topics import remapped
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.consume import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.broker.live import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND
from tests.broker.static_cluster import StaticCluster, on_static_brokers
from tests.waiting import PATIENCE_S, until_async

LATEST = 1 << 62


def ends(queue_id: int = 0) -> dict[str, object]:
    return {"topic": "T", "queue_id": queue_id}


async def offset_of(cluster: StaticCluster, name: str, *, zero: bool | None = None) -> int | None:
    """The group's offset in logical queue 0, None if it has none."""
    header = QueryConsumerOffsetRequestHeader(
        consumer_group="G", topic="T", queue_id=0, set_zero_if_not_found=zero
    )
    answer = await cluster.ask(name, RequestCode.QUERY_CONSUMER_OFFSET, header)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    assert answer.code == 0, answer.remark
    return int(answer.ext_fields["offset"])


async def commit(cluster: StaticCluster, name: str, offset: int) -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="G", topic="T", queue_id=0, commit_offset=offset
    )
    answer = await cluster.ask(name, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert answer.code == 0, answer.remark


def test_logical_queues_have_physical_ones_of_their_own(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 3, "broker-a", "broker-b")
        counts = {
            name: controller.broker.topic_config_manager.topic_config_table["T"].write_queue_nums
            for name, controller in cluster.brokers.items()
        }
        assert sorted(counts.values()) == [1, 2]
        led = {queue: name for name in cluster.brokers for queue in cluster.detail(name).hosted_queues}
        assert sorted(led) == [0, 1, 2]
        for queue, name in led.items():
            assert await cluster.send(name, 2, queue_id=queue) == [0, 1]
            assert await cluster.read_all(name, queue_id=queue) == [0, 1]
            other = "broker-a" if name == "broker-b" else "broker-b"
            answer = await cluster.peer(other).send("T", queue_id=queue)
            assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE

    on_static_brokers(tmp_path, scene)


def test_a_queue_that_moves_is_read_through_its_new_leader(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        assert await cluster.send("broker-a", 3) == [0, 1, 2]
        await cluster.move("T", "broker-b")
        assert (await cluster.peer("broker-a").send("T")).code == ResponseCode.NOT_LEADER_FOR_QUEUE
        assert (await cluster.pull("broker-a", 0))[0].code == ResponseCode.NOT_LEADER_FOR_QUEUE
        assert await cluster.send("broker-b", 2) == [10_000, 10_001]
        everything = [0, 1, 2, 10_000, 10_001]
        assert await cluster.read_all("broker-b") == everything
        for offset, (code, following) in {
            3: (ResponseCode.PULL_RETRY_IMMEDIATELY, 10_000),  # the old part's end
            10_002: (ResponseCode.PULL_NOT_FOUND, 10_002),
            10_007: (ResponseCode.PULL_OFFSET_MOVED, 10_002),
        }.items():
            answer, _ = await cluster.pull("broker-b", offset)
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (code, str(following)), offset
        await cluster.move("T", "broker-c")
        assert await cluster.send("broker-c") == [20_000]
        assert await cluster.read_all("broker-c") == [*everything, 20_000]
        await cluster.move("T", "broker-a")  # where an older part is, too
        assert await cluster.send("broker-a") == [30_000]
        assert await cluster.read_all("broker-a") == [*everything, 20_000, 30_000]

    on_static_brokers(tmp_path, scene, 3)


def test_where_a_queue_begins_and_ends_and_what_is_at_a_time(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        code = RequestCode
        await cluster.map("T", 1, "broker-a")
        await cluster.send("broker-a", 2)
        await cluster.peer("broker-a").dispatched()
        broker = cluster.brokers["broker-a"].broker
        first, second = (broker.store.message_store_timestamp("T", 0, offset) for offset in (0, 1))
        await until_async(lambda: broker.clock_ms() > second, "a later millisecond")
        await cluster.move("T", "broker-b")
        await cluster.send("broker-b", 2)
        await cluster.peer("broker-b").dispatched()
        later = cluster.brokers["broker-b"].broker.store.message_store_timestamp("T", 0, 0)
        assert await cluster.end("broker-b", code.GET_MIN_OFFSET, GetMinOffsetRequestHeader(**ends())) == 0
        assert (
            await cluster.end("broker-b", code.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(**ends())) == 10_002
        )
        earliest = GetEarliestMsgStoretimeRequestHeader(**ends())
        assert await cluster.end("broker-b", code.GET_EARLIEST_MSG_STORETIME, earliest, "timestamp") == first
        for timestamp, boundary, expected in (
            (0, "lower", 0),
            (first, "lower", 0),
            (second + 1, "lower", 10_000),
            (later, "lower", 10_000),
            (LATEST, "lower", 10_002),
            (first - 1, "upper", 0),
            (second, "upper", 1),
            (later - 1, "upper", 1),
            (LATEST, "upper", 10_001),
        ):
            header = SearchOffsetRequestHeader(**ends(), timestamp=timestamp, boundary_type=boundary)
            found = await cluster.end("broker-b", code.SEARCH_OFFSET_BY_TIMESTAMP, header)
            assert found == expected, (timestamp - first, boundary)

    on_static_brokers(tmp_path, scene)


def test_a_groups_offset_is_kept_where_it_lies_and_read_twice(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        assert await offset_of(cluster, "broker-a", zero=False) is None
        await cluster.send("broker-a", 3)
        await cluster.peer("broker-a").dispatched()
        assert await offset_of(cluster, "broker-a") == 0  # its first message is still there
        await commit(cluster, "broker-a", 2)
        await cluster.move("T", "broker-b")
        await cluster.send("broker-b", 3)
        assert await offset_of(cluster, "broker-b") == 2  # the second read, from the old leader
        await commit(cluster, "broker-b", 3)
        assert cluster.brokers["broker-a"].broker.consumer_offset_manager.query_offset("G", "T", 0) == 3
        await commit(cluster, "broker-b", 10_001)
        assert await offset_of(cluster, "broker-b") == 10_001
        assert cluster.brokers["broker-b"].broker.consumer_offset_manager.query_offset("G", "T", 0) == 1

    on_static_brokers(tmp_path, scene)


def test_a_group_without_an_offset_has_none_in_any_part(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        await cluster.send("broker-a")
        await cluster.move("T", "broker-b")
        await cluster.send("broker-b")
        assert await offset_of(cluster, "broker-b") is None

    on_static_brokers(tmp_path, scene)


def test_the_offset_that_a_pull_brings_is_kept_where_it_lies(tmp_path):
    """RocketMQ keeps the logical queue's number with the physical queue's."""

    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 2, "broker-a")
        await cluster.send("broker-a", 3)
        await cluster.move("T", "broker-b")
        await cluster.send("broker-b", 2)
        flags = SUBSCRIPTION | COMMIT_OFFSET
        await cluster.pull("broker-b", 2, sys_flag=flags, commit_offset=2)

        async def committed() -> bool:
            return await offset_of(cluster, "broker-b") == 2

        await until_async(committed, "the old leader has the offset")
        await cluster.pull("broker-b", 10_002, sys_flag=flags, commit_offset=10_002)
        assert await offset_of(cluster, "broker-b") == 10_002

    on_static_brokers(tmp_path, scene)


def test_a_pull_waits_at_the_leader_only(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        await cluster.send("broker-a")
        await cluster.move("T", "broker-b")
        waiting = {"sys_flag": SUBSCRIPTION | SUSPEND, "suspend_timeout_millis": int(PATIENCE_S * 1000)}
        answer, _ = await cluster.pull("broker-b", 1, **waiting)
        assert (
            answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        )  # at the end of an older part there is no wait
        pull = asyncio.create_task(cluster.pull("broker-b", 10_000, **waiting))
        hold = cluster.brokers["broker-b"].pull_request_hold_service
        await until_async(lambda: hold.held_count == 1, "the pull is held")
        await cluster.send("broker-b")
        assert (await pull)[1] == [10_000]

    on_static_brokers(tmp_path, scene)


def test_while_a_queue_moves_its_new_leader_takes_messages_without_offsets(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        await cluster.send("broker-a", 2)
        detail = cluster.detail("broker-a")
        configs = await cluster.admin.examine_topic_config_all("T")
        change = remapped("T", ["broker-b"], configs)
        address = cluster.brokers["broker-b"].broker_addr
        await cluster.admin.brokers.create_static_topic(address, change.broker_config_map["broker-b"])
        assert detail.hosted_queues[0][-1].bname == "broker-a"
        assert await cluster.send("broker-b") == [-1]
        # it is not known where they belong, so the queue seems to end with the old part, after a short wait
        answer, _ = await cluster.pull(
            "broker-b", 2, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=10
        )
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "2")
        await cluster.admin.apply_mapping(change)
        assert await cluster.read_all("broker-b") == [0, 1, 10_000]

    on_static_brokers(tmp_path, scene)


def test_a_send_without_a_queue_goes_to_one_that_the_broker_leads(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 2, "broker-a")
        await cluster.move("T", "broker-a", "broker-b")
        (led,) = (q for q, items in cluster.detail("broker-b").hosted_queues.items() if len(items) == 2)
        answer = await cluster.peer("broker-b").send("T", queue_id=-1)
        assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == (str(led), "10000")
        await cluster.move("T", "broker-b")
        answer = await cluster.peer("broker-a").send("T", queue_id=-1)
        assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE

    on_static_brokers(tmp_path, scene)


def test_a_half_message_keeps_the_offset_by_which_its_transaction_ends(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        await cluster.move("T", "broker-b")
        answer = await cluster.peer("broker-b").send(
            "T", sys_flag=4, properties="TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
        )
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "0")

    on_static_brokers(tmp_path, scene)


def test_a_broker_with_an_older_part_that_is_away_is_named(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        await cluster.send("broker-a")
        await cluster.move("T", "broker-b")
        await cluster.send("broker-b")
        await cluster.brokers["broker-a"].stop()
        answer, _ = await cluster.pull("broker-b", 0)
        assert answer.code == ResponseCode.SYSTEM_ERROR and "broker-a" in answer.remark
        assert (await cluster.pull("broker-b", 10_000))[1] == [10_000]  # what is here can be read

    on_static_brokers(tmp_path, scene, forwardTimeout="500")


def test_requests_of_other_brokers_and_other_topics_pass(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.map("T", 1, "broker-a")
        await cluster.send("broker-a", 2)
        await cluster.move("T", "broker-b")
        _, found = await cluster.pull("broker-b", 0)
        assert found == [0, 1]
        header = GetMaxOffsetRequestHeader(**ends(), lo=False)
        await cluster.peer("broker-a").dispatched()
        assert await cluster.end("broker-a", RequestCode.GET_MAX_OFFSET, header) == 2
        answer = await cluster.peer("broker-a").send("Other", queue_id=0)
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "0")

    on_static_brokers(tmp_path, scene)


def test_the_fast_paths_leave_static_topics_alone(tmp_path):
    """Else a logical queue would be taken for the physical one of the same number."""

    async def scene(cluster: StaticCluster) -> None:
        for controller in cluster.brokers.values():
            await asyncio.to_thread(controller.load_compiled)
        await cluster.map("T", 2, "broker-a")
        sent = [await cluster.send("broker-a", 1, queue_id=1) for _ in range(20)]
        assert sent == [[n] for n in range(20)]
        for offset in range(20):
            assert (await cluster.pull("broker-a", offset, queue_id=1))[1][0] == offset
        await cluster.move("T", "broker-b")  # what the fast paths may have remembered is not true any more
        answer = await cluster.peer("broker-a").send("T", queue_id=1)
        assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
        assert [await cluster.send("broker-b", 1, queue_id=1) for _ in range(20)] == [
            [10_000 + n] for n in range(20)
        ]
        assert await cluster.read_all("broker-b", queue_id=1) == [*range(20), *range(10_000, 10_020)]

    on_static_brokers(tmp_path, scene)
