"""What stands in the service: read back as written, damage is an error, and where a log of an older epoch ends."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.broker.failover.record import EPOCHS_KEPT, Announcement, Record
from mqlake.errors import FailoverError

numbers = st.integers(0, 2**62)
members = st.tuples(st.integers(0, 9), numbers)
records = st.builds(
    Record,
    epoch=numbers,
    master=st.integers(0, 9),
    in_sync=st.lists(members, max_size=4).map(tuple),
    begins=st.lists(st.tuples(numbers, numbers), max_size=5).map(tuple),
    lease_ms=st.integers(500, 600_000),
    renewal=numbers,
    released=st.booleans(),
    successor=st.none() | st.integers(0, 9),
    unclean=st.booleans(),
    excluded=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    address=st.text(),
    ha_address=st.text(),
)


@given(records)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert Record.from_json(record.to_json()) == record


@given(st.builds(Announcement, replica=st.integers(0, 9), epoch=numbers, log_end=numbers, address=st.text()))
def test_so_is_an_announcement(announcement: Announcement) -> None:
    assert Announcement.from_json(announcement.to_json()) == announcement


@given(st.binary(max_size=40) | records.map(lambda record: record.to_json()[:-7]))
def test_what_is_no_record_is_refused(data: bytes) -> None:
    for read in (Record.from_json, Announcement.from_json):
        with pytest.raises(FailoverError, match="the failover service has"):
            read(data)


def test_a_log_ends_where_the_first_epoch_after_it_begins_or_a_later_one_that_began_lower() -> None:
    record = Record.first((0, 7), 100, 3000, "", "")
    for by, begins in ((1, 250), (0, 180), (1, 400)):
        record = record.taken_over((by, 7), begins, "", "")
    assert record.begins == ((1, 100), (2, 250), (3, 180), (4, 400))
    assert [record.end_for(epoch) for epoch in range(6)] == [100, 180, 180, 400, None, None]
    assert (record.epoch, record.master, record.in_sync) == (4, 1, ((1, 7),))


def test_after_many_epochs_it_is_said_that_the_end_is_not_known_any_more() -> None:
    record = Record.first((0, 7), 0, 3000, "", "")
    for number in range(EPOCHS_KEPT + 1):
        record = record.taken_over((0, 7), number, "", "")
    assert len(record.begins) == EPOCHS_KEPT
    assert record.end_for(2) == 1
    with pytest.raises(FailoverError, match="start it with an empty directory"):
        record.end_for(1)
    released = dataclasses.replace(record, released=True, successor=3, unclean=True)
    taken = released.taken_over((3, 1), 5, "", "")
    assert (taken.released, taken.successor, taken.unclean) == (False, None, False)
