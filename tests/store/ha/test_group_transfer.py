"""Puts that wait for replicas, on a clock of the test."""

from hypothesis import given
from hypothesis import strategies as st

from mqlake.store.ha.group_transfer import GroupTransferService
from mqlake.store.results import PutMessageFuture, PutMessageResult, PutMessageStatus


class Slaves:
    def __init__(self, *acks: int) -> None:
        self.acks = list(acks)
        self.now = 0.0
        self.woken = 0
        self.service = GroupTransferService(
            lambda: self.acks, lambda: 3.0, clock=lambda: self.now, wake=self._woken
        )

    def _woken(self) -> None:
        self.woken += 1

    def put(self, next_offset: int, need_ack: int = 2) -> PutMessageFuture:
        future = PutMessageFuture(PutMessageResult(PutMessageStatus.PUT_OK), next_offset)
        self.service.put_request(future, need_ack)
        return future


def test_a_put_is_answered_when_a_slave_has_all_of_it() -> None:
    slaves = Slaves(99)
    future = slaves.put(100)
    assert not future.done()
    slaves.acks = [100]
    slaves.service.acknowledged()
    assert future.result().status is PutMessageStatus.PUT_OK


def test_what_is_acknowledged_already_does_not_wait() -> None:
    assert Slaves(100).put(100).done()


def test_the_deadline_is_each_puts_own() -> None:
    slaves = Slaves(50)
    first = slaves.put(100)
    slaves.now = 2.0
    second = slaves.put(200)
    assert slaves.service.next_time == 3.0
    slaves.service.tick(3.0)
    assert first.result().status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
    assert "1 slaves are connected" in first.result().reason
    assert not second.done()
    assert slaves.service.next_time == 5.0
    slaves.acks = [200]
    slaves.service.acknowledged()
    assert second.result().is_ok


def test_at_the_end_all_are_answered_and_later_ones_at_once() -> None:
    slaves = Slaves()
    future = slaves.put(100)
    slaves.service.shutdown()
    assert future.result().status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
    assert slaves.put(200).done()


@given(
    st.lists(st.integers(0, 20), max_size=4),
    st.lists(st.tuples(st.integers(1, 20), st.integers(2, 4)), max_size=20),
)
def test_an_answer_of_ok_has_its_replicas(acks: list[int], puts: list[tuple[int, int]]) -> None:
    slaves = Slaves()
    futures = [(slaves.put(offset, need), offset, need) for offset, need in puts]
    slaves.acks = acks
    slaves.service.acknowledged()
    for future, offset, need in futures:
        assert future.done() == (sum(ack >= offset for ack in acks) + 1 >= need)
    slaves.service.tick(3.0)
    for future, offset, need in futures:
        assert future.result().is_ok == (sum(ack >= offset for ack in acks) + 1 >= need)
