"""The power goes while writers write: what SYNC_FLUSH has acknowledged is there, the log is a clean prefix, queues and
index agree with it, and the store goes on from there."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from mqlake.errors import StoreCorruptError
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.results import PutMessageResult
from tests.crash.power import Disk
from tests.crash.test_kill import MODES
from tests.crash.workload import SMALL, puts, reopen_and_check
from tests.waiting import PATIENCE_S


class Writers:
    """Threads that put until they are stopped. `acknowledged[writer]`: messages that are stored, it was said."""

    def __init__(self, store: DefaultMessageStore, starts: dict[int, int]) -> None:
        self.store = store
        self.acknowledged = dict(starts)
        self.refused: list[PutMessageResult] = []
        self._stopped = False
        self._condition = threading.Condition()
        self._threads = [threading.Thread(target=self._write, args=start) for start in starts.items()]
        for thread in self._threads:
            thread.start()

    def _write(self, writer: int, start: int) -> None:
        for put in puts(writer, start):
            if self._stopped:
                return
            msg = put.message(wait=put.first % 7 != 3)
            result = self.store.put_messages(msg) if put.count > 1 else self.store.put_message(msg)  # type: ignore[arg-type]
            with self._condition:
                if not result.is_ok:
                    self.refused.append(result)
                elif msg.wait_store_msg_ok:
                    self.acknowledged[writer] = put.end
                self._condition.notify_all()

    def wait_for(self, count: int) -> None:
        """Until so many messages of the first writer were acknowledged."""
        with self._condition:
            assert self._condition.wait_for(lambda: self.acknowledged[0] >= count, PATIENCE_S)

    def stop(self) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()
        assert not self.refused


class LossError(AssertionError):
    """An acknowledged message is not there."""


def cut_again_and_again(directory: Path, mode: str, threads: int, cuts: int, seed: int = 0) -> None:
    dice = random.Random(f"{mode}:{threads}:{seed}")
    settings = {**SMALL, **MODES[mode]}
    root, stored = directory / "0", dict.fromkeys(range(threads), 0)
    for number in range(1, cuts + 1):
        following = directory / str(number)
        with Disk(root) as disk:
            store = open_store(root, settings)
            writers = Writers(store, stored)
            writers.wait_for(stored[0] + dice.randint(1, 60))
            if dice.random() < 0.5:
                store.flush()
            acknowledged, flushed = dict(writers.acknowledged), store.flushed_where
            disk.cut(following, dice)
            writers.stop()
            store.shutdown()
        shutil.rmtree(root, ignore_errors=True)
        store, numbers, report = reopen_and_check(following, settings)
        with store:
            if store.max_phy_offset < flushed:
                raise LossError(f"{flushed} bytes were flushed; {report.describe()}")
        for writer, told in acknowledged.items():
            if mode.startswith("sync") and numbers.get(writer, 0) < told:
                raise LossError(f"{told} messages were acknowledged; {report.describe()}")
        root, stored = following, {writer: numbers.get(writer, 0) for writer in stored}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_power_cuts(in_memory: Path, mode: str, threads: int) -> None:
    cut_again_and_again(in_memory, mode, threads, cuts=6)


def test_the_checks_would_see_a_loss(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: without the sync of the commit log the same rounds end in a loss."""

    def flush_without_sync(mapped_file: MappedFile, _least_pages: int) -> int:
        mapped_file.flushed_position = mapped_file.read_position
        return mapped_file.flushed_position

    monkeypatch.setattr(MappedFile, "flush", flush_without_sync)
    with pytest.raises((LossError, StoreCorruptError)):
        cut_again_and_again(in_memory, "sync", threads=1, cuts=40)


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<rounds> asks for it")
def test_campaign(in_memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = int(os.environ["MQLAKE_CAMPAIGN"])
    dice = random.Random(int(os.environ.get("MQLAKE_CAMPAIGN_SEED", "1")))
    for number in range(0, rounds, 20):
        mode, threads, seed = dice.choice(list(MODES)), dice.choice((1, 3)), dice.randrange(1 << 30)
        with capsys.disabled():
            print(
                f"\r{number} of {rounds} rounds: {mode}, {threads} writers, seed {seed}   ",
                end="",
                flush=True,
            )
        cut_again_and_again(in_memory / str(number), mode, threads, cuts=20, seed=seed)
