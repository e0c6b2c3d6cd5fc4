import threading

import pytest

from mqlake.store.running_flags import RunningFlags


def test_a_fresh_store_accepts_messages():
    flags = RunningFlags()
    assert flags.flag_bits == 0
    assert flags.reasons() == []


@pytest.mark.parametrize(
    ("make", "bit", "reason"),
    [
        ("make_logics_queue_error", 4, "writing a consume queue failed"),
        ("make_disk_full", 16, "the disk is full"),
        ("make_fenced", 32, "fenced"),
    ],
)
def test_each_bit_stops_writes(make, bit, reason):
    flags = RunningFlags()
    assert getattr(flags, make)("because") is True
    assert getattr(flags, make)("again") is False
    assert flags.flag_bits == bit
    assert (flags.is_logics_queue_error, flags.is_fenced) == (bit == 4, bit == 32)
    assert flags.reasons() == [f"{reason}: because"]


def test_what_cannot_be_written_is_named() -> None:
    flags = RunningFlags()
    flags.make_logics_queue_error("no space", "the index")
    assert flags.reasons() == ["writing the index failed: no space"]


def test_each_reason_goes_by_itself():
    flags = RunningFlags()
    flags.make_disk_full()
    flags.make_logics_queue_error()
    flags.make_fenced("fdatasync of x: Input/output error")
    assert not flags.make_disk_ok()
    assert flags.make_disk_ok()
    flags.clear_logics_queue_error()
    assert flags.reasons() == ["fenced: fdatasync of x: Input/output error"]


def test_threads_lose_no_bit():
    for _ in range(50):
        flags = RunningFlags()
        makers = [flags.make_disk_full, flags.make_logics_queue_error, flags.make_fenced]
        threads = [threading.Thread(target=make) for make in makers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert flags.flag_bits == 16 | 4 | 32
