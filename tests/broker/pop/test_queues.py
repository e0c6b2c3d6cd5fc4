"""PopQueues against a plain list of what was handed out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.broker.pop.queues import IDLE_MS, PopQueues
from mqlake.broker.state.consumer_offset import ConsumerOffsetManager


def queues_at(time_ms: int = 0) -> tuple[PopQueues, ConsumerOffsetManager]:
    offsets = ConsumerOffsetManager("/nowhere/consumerOffset.json")
    return PopQueues(offsets, lambda: time_ms), offsets


@given(st.lists(st.tuples(st.sampled_from(["hand out", "pass", "store"]), st.integers(0, 9)), max_size=60))
def test_the_offset_is_committed_in_order(steps):
    queues, offsets = queues_at()
    queue = queues.get("T", "G", 0)
    model: list[list] = []  # [next offset, stored]
    stretches = []
    end = committed = 0
    for what, number in steps:
        if what == "store":
            waiting = [pair for pair in stretches if not pair[1][1]]
            if not waiting:
                continue
            pending, entry = waiting[number % len(waiting)]
            entry[1] = True
            queues.stored(queue, pending)
        else:
            end += number + 1
            if what == "pass":
                model.append([end, True])
                queues.passed(queue, end)
            else:
                entry = [end, False]
                model.append(entry)
                stretches.append((queues.handed_out(queue, end), entry))
        for following, stored in model:
            if not stored:
                break
            committed = following
        assert max(offsets.query_offset("G", "T", 0), 0) == committed
        assert max(queues.next_offset(queue), 0) == end


def test_what_is_pending_does_not_move_an_offset_that_was_reset():
    queues, offsets = queues_at()
    queue = queues.get("T", "G", 0)
    queues.commit(queue, 5)
    pending = queues.handed_out(queue, 37)
    offsets.assign_reset_offset("T", "G", 0, 2)
    offsets.query_then_erase_reset_offset("T", "G", 0)
    queues.forget("T", "G", 0)
    queues.stored(queue, pending)
    assert offsets.query_offset("G", "T", 0) == 2
    assert queues.next_offset(queues.get("T", "G", 0)) == 2
    assert queues.pending_count == 0


def test_only_what_is_meant_is_forgotten():
    queues, _ = queues_at()
    for topic in "TU":
        for group in "GH":
            queues.get(topic, group, 0).in_flight = 3
    queues.forget("T", None, None)
    queues.forget(None, "H", None)
    left = {(queue.topic, queue.group) for queue in queues}
    assert left == {("U", "G")}
    assert queues.in_flight("U", "G", 0) == 3
    assert queues.in_flight("T", "G", 0) == 0


def test_idle_queues_are_forgotten():
    now = [0]
    queues = PopQueues(ConsumerOffsetManager("/nowhere/consumerOffset.json"), lambda: now[0])
    queues.get("T", "G", 0)
    queues.get("T", "G", 1).in_flight = 1
    now[0] = IDLE_MS + 1
    queues.get("T", "G", 2)
    queues.forget_idle()
    assert [queue.queue_id for queue in queues] == [1, 2]
    queues.done("T", "G", 1, 5)
    assert queues.in_flight("T", "G", 1) == 0
