"""Writers are killed by SIGKILL, at named points and at random; what they were told is stored must be there.

Each round goes on where the last one died: reopen (which recovers), check everything, write on, die again.
`MQLAKE_CAMPAIGN=<rounds> pytest tests/crash/test_kill.py -k campaign` runs as many rounds as asked for.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.crash.server import ACK
from tests.crash.workload import SMALL, check_store, reopen_and_check
from tests.crash.writer_server import WriterServer

SYNC = {"flushDiskType": "SYNC_FLUSH"}
POOL = {"transientStorePoolEnable": True, "transientStorePoolSize": 3}
MODES: dict[str, dict[str, object]] = {
    "sync": SYNC,
    "sync, pool": {**SYNC, **POOL},
    "sync, without mmap": {**SYNC, "writeWithoutMmap": True},
    "sync, property CRC": {**SYNC, "enabledAppendPropCRC": True, "forceVerifyPropCRC": True},
    "async": {},
    "async, without mmap": {"writeWithoutMmap": True},
    "async, pool": POOL,
}
# what was acknowledged is in this process's memory only, and goes with it
FORGETFUL = {"async, pool"}

KILLED = -9
COUNT: dict[str, int] = {"kills": 0, "acknowledged": 0}


class Campaign:
    """One store directory, written by one dying writer after the other."""

    def __init__(
        self, root: Path, writers: WriterServer, mode: str, *, threads: int = 1, seed: int = 0
    ) -> None:
        self.root = root
        self.writers = writers
        self.settings = {**SMALL, **MODES[mode]}
        self.forgetful = mode in FORGETFUL
        self.random = random.Random(f"{mode}:{threads}:{seed}")
        self.stored = dict.fromkeys(range(threads), 0)
        self.kills = 0

    def round(
        self,
        point: str = "never",
        moment: str = "before",
        n: int = 1,
        *,
        kill_after_ms: float | None = None,
        count: int = 25,
        settle_ms: int = 0,
    ) -> bool:
        """True if the writer died of it (and not of old age)."""
        acks = self.root.with_name(self.root.name + ".acks")
        acks.write_bytes(b"")
        status = self.writers.run(
            root=str(self.root),
            settings=self.settings,
            acks=str(acks),
            starts=list(self.stored.values()),
            count=count,
            pipelined=self.random.choice((1, 4)),
            seed=self.random.random(),
            point=point,
            moment=moment,
            n=n,
            kill_after_ms=kill_after_ms,
            settle_ms=settle_ms,
        )
        assert status in (0, KILLED), f"the writer failed: {self.writers.last_words()}"
        self.check(self.acknowledged(acks.read_bytes()))
        killed = status == KILLED
        self.kills += killed
        COUNT["kills"] += killed
        return killed

    @staticmethod
    def acknowledged(noted: bytes) -> dict[int, int]:
        return dict(ACK.iter_unpack(noted[: len(noted) - len(noted) % ACK.size]))

    def check(self, acknowledged: Mapping[int, int]) -> None:
        before = self.stored
        store, numbers, report = reopen_and_check(self.root, self.settings)
        with store:
            self.stored = {writer: numbers.get(writer, 0) for writer in before}
        for writer, stored in self.stored.items():
            assert stored >= before[writer], (
                f"writer {writer}: {before[writer]} were recovered, {stored} are left"
            )
            if not self.forgetful:
                told = acknowledged.get(writer, 0)
                COUNT["acknowledged"] += max(0, told - before[writer])
                assert stored >= told, (
                    f"writer {writer}: {told} acknowledged, {stored} stored ({report.describe()})"
                )


POINTS = [
    ("append", "during", (1, 2, 5, 18)),
    ("flush", "before", (1, 9)),
    ("flush", "after", (1, 9)),
    ("create log file", "before", (1, 3)),
    ("create log file", "after", (1, 3)),
    ("name log file", "before", (1, 2)),
    ("name log file", "after", (1, 2)),
    ("open log file", "after", (1, 3)),
    ("write checkpoint", "before", (1, 2)),
    ("write checkpoint", "after", (1, 2)),
    ("flush checkpoint", "before", (1,)),
    ("flush checkpoint", "after", (1,)),
    ("write queue", "before", (1, 4)),
    ("write queue", "half", (1, 4)),
    ("write queue", "after", (1, 4)),
    ("create queue file", "before", (1,)),
    ("create queue file", "after", (1,)),
    ("make queue directory", "after", (1,)),
    ("flush queue", "before", (1,)),
    ("flush queue", "after", (1,)),
    ("index", "before", (1, 4)),
    ("index", "after", (1, 4)),
    ("create index file", "before", (1,)),
    ("create index file", "after", (1,)),
    ("flush index", "before", (1,)),
    ("flush index", "after", (1,)),
    ("rename", "before", (1,)),
    ("rename", "after", (1,)),
    ("delete", "before", (1, 2)),
    ("delete", "after", (1, 2)),
]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("point", "moment", "numbers"), POINTS, ids=[f"{p[0]}-{p[1]}" for p in POINTS])
def test_killed_at_a_named_point(
    tmp_path: Path, writers: WriterServer, point: str, moment: str, numbers: tuple[int, ...], mode: str
) -> None:
    campaign = Campaign(tmp_path / "store", writers, mode)
    for n in numbers:
        campaign.round(point, moment, n, settle_ms=40)
    assert campaign.kills >= 1, f"no writer came to the point {point!r}"


@pytest.mark.parametrize("moment", ["before", "half", "after"])
@pytest.mark.parametrize("mode", ["sync, pool", "sync, without mmap", "async, pool", "async, without mmap"])
def test_killed_while_writing_through_the_descriptor(
    tmp_path: Path, writers: WriterServer, mode: str, moment: str
) -> None:
    campaign = Campaign(tmp_path / "store", writers, mode)
    for n in (1, 2, 7):
        campaign.round("write log file", moment, n)
    assert campaign.kills >= 2


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_random(tmp_path: Path, writers: WriterServer, mode: str, threads: int) -> None:
    campaign = Campaign(tmp_path / "store", writers, mode, threads=threads)
    rounds = 0
    while campaign.kills < 8:
        campaign.round(kill_after_ms=campaign.random.uniform(2, 60), count=400)
        rounds += 1
        assert rounds < 40, "the writers finish before they are killed"


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<rounds> asks for it")
def test_campaign(tmp_path: Path, writers: WriterServer, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = int(os.environ["MQLAKE_CAMPAIGN"])
    seed = int(os.environ.get("MQLAKE_CAMPAIGN_SEED", "1"))
    dice = random.Random(seed)
    for number in range(rounds):
        if number % 25 == 0:
            mode = dice.choice(list(MODES))
            campaign = Campaign(
                tmp_path / f"store-{number}",
                writers,
                mode,
                threads=dice.choice((1, 1, 4)),
                seed=seed + number,
            )
            with capsys.disabled():
                print(f"\r{number} of {rounds} rounds, {COUNT}; {mode}   ", end="", flush=True)
        if dice.random() < 0.5:
            campaign.round(kill_after_ms=dice.uniform(1, 80), count=400)
        else:
            point, moment, _ = dice.choice(POINTS)
            campaign.round(point, moment, dice.randint(1, 30), settle_ms=dice.choice((0, 40)))


def test_the_checks_would_see_a_loss(tmp_path: Path, writers: WriterServer) -> None:
    """The canary: a store that has lost an acknowledged message does not pass."""
    campaign = Campaign(tmp_path / "store", writers, "sync")
    campaign.round("flush", "before", 9)
    stored = campaign.stored[0]
    assert stored > 0
    with pytest.raises(AssertionError, match="acknowledged"):
        campaign.check({0: stored + 1})
    store, numbers, _ = reopen_and_check(campaign.root, campaign.settings)
    with store:
        assert check_store(store) == numbers == {0: stored}


def test_zz_count(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> None:
    """Runs last in this file: over 200 kills, and acknowledgements enough for them to mean something."""
    if len([item for item in request.session.items if item.path == request.path]) < 70:
        pytest.skip("only a part of the file runs")
    with capsys.disabled():
        print(
            f" {COUNT['kills']} writers killed, {COUNT['acknowledged']} acknowledged messages found ", end=""
        )
    assert COUNT["kills"] >= 200
