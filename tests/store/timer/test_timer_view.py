from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.store.check.info import store_info
from mqlake.store.check.verify import verify_store
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.timer.timer_view import PendingTimer, TimerView
from tests.clock import START_MS
from tests.store.timer.timed_store import TimedStore, timed_store
from tests.waiting import PATIENCE_S


def pending(root: Path, **options: object) -> list[PendingTimer]:
    with ReadOnlyStore(root) as store, TimerView(store) as view:
        return list(view.pending(**options))  # type: ignore[arg-type]


def fill(timed: TimedStore) -> None:
    for number in range(20):
        timed.put(number, START_MS + 5000 + number * 37 % 20 * 1000, topic="ABC"[number % 3])
    timed.put(50, START_MS + 90_500)
    timed.run_until(START_MS + 10_000)
    timed.recall(7, START_MS + 5000 + 7 * 37 % 20 * 1000, topic="B")
    assert timed.store.wait_until_dispatched(PATIENCE_S)


def test_what_waits_is_listed_in_the_order_in_which_it_is_due(tmp_path: Path) -> None:
    with timed_store(tmp_path, timerRollWindowSlot=30) as timed:
        fill(timed)
        timed.timers.flush()
        for _ in range(2):  # the recall is not in the wheel yet, and then it is
            found = pending(tmp_path)
            wanted = {
                f"K{number}": START_MS + 5000 + number * 37 % 20 * 1000
                for number in range(20)
                if number * 37 % 20 > 5
            } | {"K50": START_MS + 91_000}
            assert {each.uniq_key: each.due for each in found} == wanted
            assert [each.due for each in found] == sorted(each.due for each in found)
            assert [each.uniq_key for each in found if each.is_recalled] == ["K7"]
            assert {each.topic for each in found} == {"A", "B", "C", "T"}
            timed.run()
            timed.timers.flush()
        assert {each.uniq_key for each in pending(tmp_path, topic="T")} == {"K50"}
        limited = pending(tmp_path, start_ms=START_MS + 15_000, end_ms=START_MS + 17_000)
        assert [each.due for each in limited] == [START_MS + 15_000, START_MS + 16_000]
    state = store_info(tmp_path).timers
    assert state is not None
    assert (state.waiting, state.last_due) == (len(wanted), START_MS + 91_000)


def test_the_command(tmp_path: Path) -> None:
    with timed_store(tmp_path) as timed:
        fill(timed)
        timed.run()
    done = CliRunner().invoke(cli, ["store", "timers", str(tmp_path), "--max", "2", "--json"])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["due"], line["topic"]) for line in lines] == [
        (START_MS + 11_000, "A"),
        (START_MS + 12_000, "C"),
    ]
    done = CliRunner().invoke(cli, ["store", "timers", str(tmp_path)])
    assert len(done.stdout.splitlines()) == 15
    assert sum("recalled" in line for line in done.stdout.splitlines()) == 1
    done = CliRunner().invoke(cli, ["store", "timers", str(tmp_path), "--count"])
    assert sum(int(line.split()[1]) for line in done.stdout.splitlines()) == 15
    assert "15 messages wait, due from" in CliRunner().invoke(cli, ["store", "info", str(tmp_path)]).stdout


def test_a_store_without_timers_lists_none(tmp_path: Path) -> None:
    with timed_store(tmp_path):
        pass
    assert pending(tmp_path) == []
    assert store_info(tmp_path).timers is None


@pytest.mark.parametrize(
    ("name", "kind"), [("timerwheel", "timer wheel"), ("timerlog", "timer log")], ids=["wheel", "log"]
)
def test_verify_finds_what_does_not_agree(tmp_path: Path, name: str, kind: str) -> None:
    with timed_store(tmp_path) as timed:
        fill(timed)
        timed.run()
    assert verify_store(tmp_path).findings == []
    path = tmp_path / name
    if path.is_dir():
        max(path.iterdir()).unlink()
    else:
        data = path.read_bytes()
        slot = (START_MS + 14_000) // 1000 % 1_209_600 * 32
        path.write_bytes(data[: slot + 16] + bytes(8) + data[slot + 24 :])
    report = verify_store(tmp_path)
    assert not report.ok
    assert {finding.kind for finding in report.findings} >= {kind}
    assert all("the next start makes it again" in finding.text for finding in report.findings)
    with timed_store(tmp_path) as timed:
        timed.run()
    assert verify_store(tmp_path).ok
