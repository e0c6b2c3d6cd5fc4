"""The offset to commit: never past a message that is not consumed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.client.consume.process_queue import ProcessQueue
from mqlake.client.records import MessageClientExt
from mqlake.remoting.bodies.topic import MessageQueue

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


def messages(offsets: list[int]) -> list[MessageClientExt]:
    return [MessageClientExt("T", b"x" * (offset % 7), queue_offset=offset) for offset in offsets]


@given(st.sets(st.integers(0, 60), min_size=1), st.data())
def test_it_is_the_first_that_is_not_done(offsets: set[int], data: st.DataObject) -> None:
    queue = ProcessQueue(QUEUE)
    coming = messages(sorted(offsets))
    cached: dict[int, MessageClientExt] = {}
    last = 0
    while coming or cached:
        if coming and (not cached or data.draw(st.booleans())):
            count = data.draw(st.integers(1, len(coming)))
            batch, coming = coming[:count], coming[count:]
            queue.put_messages(batch)
            assert queue.take_messages(count) == batch
            cached |= {message.queue_offset: message for message in batch}
            last = batch[-1].queue_offset
        else:
            done = data.draw(st.lists(st.sampled_from(sorted(cached)), min_size=1, unique=True))
            offset = queue.remove_messages([cached.pop(one) for one in done])
            assert offset == (min(cached) if cached else last + 1)
        assert len(queue) == len(cached) and queue.size == sum(len(m.body) for m in cached.values())
        if cached:
            assert queue.max_span >= last - min(cached)
    assert not queue.arrived.is_set() and queue.remove_messages([]) == last + 1


def test_nothing_came() -> None:
    queue = ProcessQueue(QUEUE)
    assert queue.remove_messages([]) == -1 and queue.take_messages(3) == [] and queue.max_span == 0


def test_a_lock_is_good_for_a_while() -> None:
    queue = ProcessQueue(QUEUE)
    assert not queue.locked
    queue.set_locked(True)
    assert queue.locked and queue.info(3).locked
    assert queue.locked_at is not None
    queue.locked_at -= 31
    assert not queue.locked
    queue.drop()
    assert queue.dropped and not queue.void and queue.room.is_set() and queue.arrived.is_set()
