from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.formats.timer import TimerUnit
from mqlake.store.timer.timer_log import TimerLog

FILE = 52 * 3 + 20
"""Three units and 20 bytes, of which a blank takes 16."""


def unit(number: int) -> TimerUnit:
    return TimerUnit(-1, 1, 1000 * number, 500, 100 * number, 100, number)


def filled(path: Path, count: int) -> TimerLog:
    log = TimerLog(str(path / "timerlog"), FILE)
    positions = [log.append(unit(number)) for number in range(count)]
    log.write()
    log.flush()
    assert positions == [number // 3 * FILE + number % 3 * 52 for number in range(count)]
    return log


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7])
def test_what_was_written_is_found_again(tmp_path: Path, count: int) -> None:
    log = filled(tmp_path, count)
    last = log.last_position()
    log.close()
    again = TimerLog(str(tmp_path / "timerlog"), 999)
    again.recover()
    assert again.file_size == FILE
    assert again.last_position() == last
    found = [row for _, units in again.chunks() for row in units["topic_hash"].tolist()]
    assert found == list(range(count))
    assert again.get(last) == unit(count - 1)
    assert again.get(again.end) is None
    assert again.append(unit(count)) == count // 3 * FILE + count % 3 * 52
    again.write()
    assert again.get(again.last_position()) == unit(count)
    again.close()


def test_a_full_file_ends_with_a_blank(tmp_path: Path) -> None:
    filled(tmp_path, 4).close()
    first, second = sorted((tmp_path / "timerlog").iterdir())
    assert [path.name for path in (first, second)] == ["0" * 20, f"{FILE:020d}"]
    assert first.stat().st_size == second.stat().st_size == FILE
    assert first.read_bytes()[156:172].hex() == "00000014" + "00" * 8 + "cbd43194"


@pytest.mark.parametrize("kept", range(7))
def test_truncating_takes_the_rest_away(tmp_path: Path, kept: int) -> None:
    log = filled(tmp_path, 7)
    log.truncate(kept // 3 * FILE + kept % 3 * 52)
    log.close()
    again = TimerLog(str(tmp_path / "timerlog"), FILE)
    again.recover()
    found = [row for _, units in again.chunks() for row in units["topic_hash"].tolist()]
    assert found == list(range(kept))
    again.close()


def test_cleaning_keeps_what_leads_to_messages_and_the_last_file(tmp_path: Path) -> None:
    log = filled(tmp_path, 7)
    assert log.delete_expired(200) == 0
    assert log.delete_expired(201) == 1
    assert log.start == FILE
    assert log.get(0) is None
    assert log.delete_expired(100_000) == 1
    assert log.get(log.last_position()) == unit(6)
    log.discard()
    assert list((tmp_path / "timerlog").iterdir()) == []
    log.close()


def test_files_that_do_not_belong_together_are_damage(tmp_path: Path) -> None:
    filled(tmp_path, 7).close()
    (tmp_path / "timerlog" / f"{FILE:020d}").unlink()
    log = TimerLog(str(tmp_path / "timerlog"), FILE)
    assert "does not belong" in log.damage
    assert log.last_position() == -1
    log.close()


def test_a_disk_that_is_full_takes_no_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, 2)
    end = log.end

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    log.append(unit(2))
    log.append(unit(3))
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        with pytest.raises(OSError, match="No space"):
            log.write()
    assert log.end == end
    assert log.append(unit(2)) == 104
    log.write()
    assert log.get(104) == unit(2)
    log.close()
