from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from mqlake.formats.timer import NO_SLOT, SLOT, TIMER_WHEEL_SIZE, Slot
from mqlake.store.timer.timer_wheel import TimerWheel

NOW = 1_700_000_000_000


def test_slots_survive_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    wheel = TimerWheel(str(path), 1000)
    wheel.flush()
    assert not path.exists()
    wheel.put(NOW, 0, 52, 2)
    wheel.put(NOW + 999, 0, 104, 3)
    wheel.put(NOW + 7000, 156, 156, 1)
    wheel.flush()
    assert path.stat().st_size == TIMER_WHEEL_SIZE
    index = NOW // 1000 % 1_209_600
    assert SLOT.unpack_from(path.read_bytes(), index * 32) == (NOW // 1000, 0, 104, 3, 0)
    wheel.close()
    again = TimerWheel(str(path), 1000)
    assert again.get(NOW + 1) == Slot(NOW, 0, 104, 3)
    assert again.get(NOW + 7_000 + 14 * 86_400_000) is NO_SLOT
    assert again.next_in_use(NOW + 1000, NOW + 100_000) == NOW + 7000
    assert again.next_in_use(NOW + 8000, NOW + 100_000) == NOW + 100_000
    assert again.all_num(NOW + 1000) == 1
    again.clear()
    again.flush()
    again.close()
    assert not any(path.read_bytes())


def test_it_is_as_a_dict_of_times(tmp_path: Path) -> None:
    rng = random.Random(5)
    wheel = TimerWheel(str(tmp_path / "timerwheel"), 500)
    wanted: dict[int, Slot] = {}
    for number in range(500):
        time_ms = (NOW + rng.randrange(200_000)) // 500 * 500
        wanted[time_ms] = Slot(time_ms, number, number * 52, rng.randrange(9))
        wheel.put(*wanted[time_ms][:4])
    many = {NOW // 500 + 1_000 + n: n for n in range(50)}
    columns = (np.array(list(many)), *(np.array(list(many.values())),) * 3)
    wheel.put_many(*columns)
    wanted |= {step * 500: Slot(step * 500, n, n, n) for step, n in many.items()}
    found = wheel.slots(NOW + 20_000)
    assert [Slot(int(s["time"]) * 500, *s.tolist()[1:]) for s in found] == [
        wanted[time_ms] for time_ms in sorted(wanted) if time_ms >= NOW + 20_000
    ]
    for start in (NOW, NOW + 199_000, NOW + 700_000):
        later = [time_ms for time_ms in wanted if start <= time_ms < start + 90_000]
        assert wheel.next_in_use(start, start + 90_000) == min(later, default=start + 90_000)
    wheel.close()


def test_a_file_of_another_length_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    path.write_bytes(b"x" * 100)
    wheel = TimerWheel(str(path), 1000)
    assert wheel.was_damaged
    assert wheel.all_num(NOW) == 0
    wheel.put(NOW, 0, 0, 1)
    wheel.flush()
    assert path.stat().st_size == TIMER_WHEEL_SIZE
    wheel.close()
