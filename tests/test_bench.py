"""Every bench runs, with tiny inputs: figures mean nothing here, the work must be the same on both sides."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path

import bench.__main__
import pytest
from bench.__main__ import BENCHES, main, run
from bench.against import LINES, ROOT, TOLERATED, Compared, against
from bench.context import MIB, QUICK
from bench.empty_loop import HEADER_SIZE_MAX
from bench.measure import Line, Progress, Round, compare
from bench.sockets import EmptyLoop, SocketLoad

from mqlake.remoting.codec import encode_frame
from mqlake.remoting.command import RemotingCommand
from tests.interop.brokers import MqlakeBroker
from tests.interop.java_peer import TEST_JVM
from tests.spark import conftest

spark = conftest.spark

TINY = dataclasses.replace(
    QUICK,
    rounds=1,
    warm_up_s=0.0,
    warm_up_rounds=0,
    single=128,
    batch=128,
    sync=128,
    log_file=4 * MIB,
    log_max=MIB,
    recovered=MIB,
    recovered_file=MIB,
    recovery_rounds=1,
    get_log=MIB // 4,
    live_log=MIB,
    verify_rounds=1,
    queue_files=20,
    queue_files_java=10,
    queues_a_topic=5,
    memory_log=2 * MIB,
    sends=256,
    batch_sends=256,
    drained=256,
    timers=256,
    broker_log_file=4 * MIB,
    catch_up=MIB,
    metaq_puts=256,
    metaq_drained=MIB,
    metaq_size=4 * MIB,
    metaq_recovered=MIB,
    jvm=TEST_JVM,
    jvm_a_bench=False,
)


CLUSTERS = ("grpc", "pop", "replication-sync", "replication-keep-up", "replication-catch-up")
"""Benches that start several brokers a line, which takes minutes."""


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # the benches take the session that runs
@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in BENCHES if name not in CLUSTERS], id="one broker"),
        pytest.param(
            CLUSTERS,
            id="clusters",
            marks=(
                pytest.mark.campaign,
                pytest.mark.skipif(
                    "MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it"
                ),
            ),
        ),
    ],
)
def test_every_bench_gives_its_lines(tmp_path: Path, names: list[str]) -> None:
    shown: list[Line] = []
    lines = run(list(names), TINY, tmp_path, Progress(quiet=True), shown.append)
    assert lines == shown
    assert len({(line.name, line.peer_name) for line in lines}) == len(lines) >= len(names)
    assert all(line.mqlake > 0 for line in lines if line.unit != "MiB")
    assert all(str(line) for line in lines)
    assert [path for path in tmp_path.iterdir() if not path.name.startswith("jvm-")] == []


@pytest.mark.parametrize("compiled_by_numba", [False, True], ids=["C", "numba"])
@pytest.mark.parametrize(("connections", "in_flight", "frame"), [(1, 1, 20), (3, 700, 4), (2, 8, 70_000)])
def test_the_empty_loop_answers_each_frame(
    tmp_path: Path, compiled_by_numba: bool, connections: int, in_flight: int, frame: int
) -> None:
    """Frames that come whole, many in a read, and in parts; answers longer than a socket takes at once."""
    request, size, count = frame.to_bytes(4, "big") + bytes(frame), 50_000, 1_501
    with EmptyLoop(tmp_path, size, compiled_by_numba=compiled_by_numba) as server:
        load = SocketLoad(
            server.address, [request], count, count, connections=connections, in_flight=in_flight
        )
        with contextlib.closing(load):
            assert [load.round()[1] for _ in range(2)] == [count * (size - 8 - HEADER_SIZE_MAX)] * 2


def test_a_refusal_ends_a_round(tmp_path: Path) -> None:
    with MqlakeBroker(tmp_path / "mqlake") as broker:
        unknown = encode_frame(RemotingCommand(9999, opaque=1))
        refused = pytest.raises(RuntimeError, match=r"a request was refused: .*9999")
        with contextlib.closing(SocketLoad(broker.address, [unknown], 1, 1)) as load, refused:
            load.round()
        broker.kill()
        with pytest.raises(OSError):
            SocketLoad(broker.address, [unknown], 1, 1)


class Fixed:
    """Rounds of given lengths, one after the other, all doing `work`."""

    def __init__(self, *seconds: float, work: int = 1) -> None:
        self._rounds = [Round(100, each, each / 2, (work,)) for each in seconds]

    def round(self) -> Round:
        return self._rounds.pop(0) if len(self._rounds) > 1 else self._rounds[0]


def compared(mqlake: Fixed, java: Fixed) -> Line:
    return compare("x", mqlake, java, Progress(quiet=True), unit="msg/s", rounds=3, warm_up_s=0, ratio_min=2)


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    line = compared(Fixed(1, 1, 1, 1, 10), Fixed(2, 4, 8))
    assert line.ratio == 2
    assert line.ratio_best == 2
    assert line.met
    assert line.cpu_us == 5000
    assert line.peer_cpu_us == 20_000


def test_sides_that_did_different_work_are_not_compared() -> None:
    with pytest.raises(RuntimeError, match="mqlake did"):
        compared(Fixed(1, work=1), Fixed(1, work=2))


@pytest.mark.parametrize("name", [name for name in LINES if name not in ("send-1", "pull-1")])
def test_lines_without_a_peer_do_the_same_work_each_round(tmp_path: Path, name: str) -> None:
    side = LINES[name](tmp_path / name, TINY)
    try:
        rounds = [side.round() for _ in range(2)]
    finally:
        side.close()
    assert rounds[0].amount == rounds[1].amount > 0
    assert all(each.cpu_seconds >= 0 and each.seconds > 0 for each in rounds)


def test_two_checkouts_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other has nothing but the package, and lacks the room that one line needs."""
    monkeypatch.setattr(bench.__main__, "QUICK", TINY)
    other, report = tmp_path / "other", tmp_path / "report.json"
    package = other / "src" / "mqlake"
    package.mkdir(parents=True)
    for each in (ROOT / "src" / "mqlake").iterdir():
        if each.name not in ("spark", "__pycache__"):
            (package / each.name).symlink_to(each)
    arguments = ["--quick", "--against", str(other), "--json", str(report), "--dir", str(tmp_path)]
    status = main([*arguments, "--only", "count-columns", "--only", "scan-128"])
    (line,) = json.loads(report.read_text())["lines"]
    assert line["name"] == "scan-128"
    assert len(line["rounds"]) == TINY.rounds
    assert status == (line["cpu_ratio"] > TOLERATED)
    shown = capsys.readouterr().out
    assert "count-columns    left out: " in shown
    assert "scan-128         CPU" in shown


def test_another_directory_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkout"):
        against(tmp_path, ["scan-128"], TINY, tmp_path, Progress(quiet=True), print)


def test_more_than_three_percent_of_cpu_time_is_flagged() -> None:
    def rounds(*cpu_ms: float) -> list[Round]:
        return [Round(1000, 1, each / 1000) for each in cpu_ms]

    slower = Compared.of("x", rounds(104, 104, 104), rounds(100, 10, 100))
    assert slower.cpu_ratio == pytest.approx(1.04)
    assert slower.best_cpu_ratio == pytest.approx(10.4)
    assert "SLOWER" in str(slower)
    assert "SLOWER" not in str(Compared.of("x", rounds(102), rounds(100)))
    assert "faster" in str(Compared.of("x", rounds(50), rounds(100)))
