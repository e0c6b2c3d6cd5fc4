import threading

import pytest

from mqlake.store import running_flags
from mqlake.store.running_flags import RunningFlags


def test_a_fresh_store_takes_and_gives():
    flags = RunningFlags()
    assert flags.is_readable and flags.is_writeable and flags.is_cq_writeable
    assert flags.flag_bits == 0
    assert flags.reasons() == []


@pytest.mark.parametrize(
    ("make", "bit", "readable", "writeable", "cq_writeable"),
    [
        ("make_not_readable", 1, False, True, True),
        ("make_not_writeable", 2, True, False, False),
        ("make_logics_queue_error", 4, True, False, False),
        ("make_index_file_error", 8, True, False, False),
        ("make_disk_full", 16, True, False, True),
        ("make_logic_disk_full", 64, True, False, False),
    ],
)
def test_what_each_bit_stops(make, bit, readable, writeable, cq_writeable):
    flags = RunningFlags()
    assert getattr(flags, make)("because") is True
    assert getattr(flags, make)("again") is False
    assert flags.flag_bits == bit
    assert (flags.is_readable, flags.is_writeable, flags.is_cq_writeable) == (
        readable,
        writeable,
        cq_writeable,
    )
    (reason,) = flags.reasons()
    assert reason.endswith(": because")


def test_fence():
    flags = RunningFlags()
    assert flags.make_fenced(True, "fdatasync of x: Input/output error")
    assert flags.is_fenced and not flags.is_writeable and flags.is_cq_writeable
    assert flags.flag_bits == running_flags.FENCED == 32
    assert flags.reasons() == ["fenced: fdatasync of x: Input/output error"]
    assert not flags.make_fenced(False)
    assert flags.is_writeable


def test_each_reason_goes_by_itself():
    flags = RunningFlags()
    flags.make_disk_full()
    flags.make_not_writeable()
    flags.make_logics_queue_error()
    flags.make_logic_disk_full()
    flags.make_not_readable()
    assert flags.is_disk_full and flags.is_logics_queue_error and not flags.is_index_file_error
    assert not flags.make_disk_ok()
    assert flags.make_disk_ok()
    flags.clear_logics_queue_error()
    flags.make_logic_disk_ok()
    flags.make_readable()
    assert flags.reasons() == ["not writeable"]
    flags.make_writeable()
    assert flags.flag_bits == 0


def test_threads_lose_no_bit():
    flags = RunningFlags()
    makers = [
        flags.make_disk_full,
        flags.make_logic_disk_full,
        flags.make_not_readable,
        flags.make_index_file_error,
    ]
    for _ in range(50):
        threads = [threading.Thread(target=make) for make in makers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert flags.flag_bits == 16 | 64 | 1 | 8
        flags = RunningFlags()
        makers = [
            flags.make_disk_full,
            flags.make_logic_disk_full,
            flags.make_not_readable,
            flags.make_index_file_error,
        ]
