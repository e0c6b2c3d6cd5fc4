"""A broker that has the heads of its log files written: by a child, which ends with it."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path

import pytest

from mqlake.broker.services import heads
from mqlake.errors import ConfigError, MissingPartError
from mqlake.lake.heads.valid import open_valid
from mqlake.lake.log.storage import Storage
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.loop import run
from mqlake.store.heads import heads_in
from tests.broker.live import Peer, make_controller, on_a_broker
from tests.waiting import until_async

FILE = 64 << 10
SETTINGS = {"mappedFileSizeCommitLog": str(FILE), "heads": "true"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "LOOK_S", 0.02)


async def fill(peer: Peer, files: int) -> None:
    """Until so many files are full."""
    while peer.controller.broker.store.max_phy_offset <= files * FILE:
        assert (await peer.send("T", bytes(1000))).code == ResponseCode.SUCCESS


async def switch_on(peer: Peer) -> None:
    answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"heads=true")
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_full_files_get_heads_while_the_broker_runs(tmp_path: Path) -> None:
    root = str(tmp_path / "store")

    async def scene(peer: Peer) -> None:
        await fill(peer, 2)
        await until_async(lambda: len(heads_in(root)) == 2, "two files have heads")
        await fill(peer, 3)
        await until_async(lambda: len(heads_in(root)) == 3, "and the next one")

    on_a_broker(tmp_path, scene, **SETTINGS)
    found = open_valid(Storage(root))
    assert [each is not None for _, each in found.files] == [True, True, True, False]
    assert not found.passed_over


def test_without_the_setting_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be switched on while the broker runs."""
    root = str(tmp_path / "store")
    looks: list[None] = []
    run_once = heads.HeadsService.run_once

    async def counted(self: heads.HeadsService) -> None:
        await run_once(self)
        looks.append(None)

    monkeypatch.setattr(heads.HeadsService, "run_once", counted)

    async def scene(peer: Peer) -> None:
        await fill(peer, 1)
        seen = len(looks)
        await until_async(lambda: len(looks) > seen + 1, "the broker has looked")
        assert not os.path.exists(tmp_path / "store" / "heads")
        await switch_on(peer)
        await until_async(lambda: len(heads_in(root)) == 1, "the file has heads")

    on_a_broker(tmp_path, scene, mappedFileSizeCommitLog=str(FILE))


def test_a_damaged_file_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else a child would start, and read the file, every ten seconds."""
    root = str(tmp_path / "store")

    async def scene(peer: Peer) -> None:
        await fill(peer, 1)
        first = tmp_path / "store" / "commitlog" / f"{0:020}"
        await peer.dispatched()
        byte = first.read_bytes()[500]
        with first.open("r+b") as file:  # the broker has it mapped, so it may not be cut
            file.seek(500)
            file.write(bytes([byte ^ 1]))
        await switch_on(peer)
        await until_async(lambda: "no heads of a damaged file" in caplog.text, "the damage is said")
        await fill(peer, 2)
        await until_async(lambda: len(heads_in(root)) == 1, "the next file has heads")
        seen = caplog.text.count("no heads of a damaged file")
        service = peer.controller.heads_service
        assert service._damaged and not service._missing() and seen == caplog.text.count("no heads of")

    with caplog.at_level(logging.WARNING):
        on_a_broker(tmp_path, scene, mappedFileSizeCommitLog=str(FILE))


def test_the_child_ends_with_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    popen = heads.subprocess.Popen

    def stopped(_: list[str], **more: object) -> object:
        child = popen(["sleep", "600"], **more)  # type: ignore[call-overload]
        started.append(child.pid)
        return child

    monkeypatch.setattr(heads.subprocess, "Popen", stopped)

    async def scene(peer: Peer) -> None:
        await fill(peer, 1)
        await until_async(lambda: len(started) == 1, "the child runs")
        assert os.getpriority(os.PRIO_PROCESS, started[0]) in (0, heads.LOWEST_PRIORITY)

    on_a_broker(tmp_path, scene, **SETTINGS)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_what_is_missing_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name)
    )
    with pytest.raises(MissingPartError, match=r"heads=true.*pip install 'mqlake\[arrow\]'"):
        run(make_controller(tmp_path, **SETTINGS).start())


def test_a_log_elsewhere_is_refused_at_the_start(tmp_path: Path) -> None:
    """Readers would not find it beside the heads."""
    controller = make_controller(tmp_path, **SETTINGS, storePathCommitLog=str(tmp_path / "log"))
    with pytest.raises(ConfigError, match=r"heads=true: .*this one is in .*/log \(storePathCommitLog\)"):
        run(controller.start())


def test_a_child_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = heads.HeadsService._write
    tries: list[None] = []

    def failing(self: heads.HeadsService) -> tuple[int, str]:
        tries.append(None)
        return (3, "no space") if len(tries) == 1 else write(self)

    monkeypatch.setattr(heads.HeadsService, "_write", failing)

    async def scene(peer: Peer) -> None:
        await fill(peer, 1)
        await until_async(lambda: len(heads_in(str(tmp_path / "store"))) == 1, "the file has heads")

    on_a_broker(tmp_path, scene, **SETTINGS)
    assert "`mqlake store heads` ended with 3: no space" in caplog.text
