"""health: /health and /ready tell the truth while a broker starts, fills its disk, loses its name server and ends."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
import weakref
from pathlib import Path

import pytest

from mqlake.base import background
from mqlake.base.background import KEEPS_FAILING, BackgroundWork
from mqlake.broker.metrics import health as module
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from tests.broker.live import Peer, make_controller, on_a_broker
from tests.broker.metrics.test_guard import AUTH, PROM
from tests.waiting import until_async


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps failing is known for the process, and another test may have left a client without its cluster."""
    monkeypatch.setattr(background, "_failed", weakref.WeakSet())


def get(port: int, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def both(peer: Peer) -> tuple[tuple[int, dict[str, object]], tuple[int, dict[str, object]]]:
    assert peer.controller.metrics is not None
    port = peer.controller.metrics.port
    return (await asyncio.to_thread(get, port, "/health"), await asyncio.to_thread(get, port, "/ready"))


def test_they_need_no_user_and_say_yes(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        assert await both(peer) == (
            (200, {"healthy": True, "reasons": []}),
            (200, {"ready": True, "reasons": []}),
        )

    on_a_broker(tmp_path, scene, **AUTH)


def test_work_that_keeps_failing_is_shown_and_changes_no_verdict(tmp_path: Path) -> None:
    """Without it a broker whose loops do nothing any more would look sound; a restart is for who reads it to decide."""

    async def scene(peer: Peer) -> None:
        work = BackgroundWork("revive", logging.getLogger("test"))
        for _ in range(KEEPS_FAILING):
            with work.round():
                raise ValueError("x")
        for name, (status, answer) in zip(("healthy", "ready"), await both(peer), strict=True):
            assert (status, answer[name]) == (200, True)
            assert answer["failing"] == [f"revive has failed {KEEPS_FAILING} times: ValueError: x"]

    on_a_broker(tmp_path, scene, **AUTH)


def test_a_full_disk_is_not_ready_and_a_fenced_store_is_sick(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        flags = peer.controller.broker.store.running_flags
        flags.make_disk_full("98 % used")
        health, ready = await both(peer)
        assert health[0] == 200 and ready == (
            503,
            {"ready": False, "reasons": ["the disk is full: 98 % used"]},
        )
        flags.make_disk_ok()
        assert (await both(peer))[1][0] == 200
        flags.make_fenced("Input/output error")
        health, ready = await both(peer)
        assert (
            health == (503, {"healthy": False, "reasons": ["fenced: Input/output error"]}) and ready[0] == 503
        )

    on_a_broker(tmp_path, scene, **PROM)


def test_a_loop_that_does_not_answer_is_sick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(peer: Peer) -> None:
        monkeypatch.setattr(module, "ANSWER_S", 0.0)
        health, ready = await both(peer)
        assert (health[0], ready[0]) == (503, 503) and "event loop" in str(health[1])

    on_a_broker(tmp_path, scene, **PROM)


def test_without_a_name_server_a_broker_is_not_ready(tmp_path: Path) -> None:
    async def scene() -> None:
        namesrv = NamesrvController(NamesrvConfig().replaced({"listenPort": "0", "bindAddress": "127.0.0.1"}))
        await namesrv.start()
        controller = make_controller(tmp_path, namesrvAddr=f"127.0.0.1:{namesrv.port}", **PROM)
        await controller.start()
        try:
            assert controller.metrics is not None
            port = controller.metrics.port
            assert (await asyncio.to_thread(get, port, "/ready"))[0] == 200
            await namesrv.stop()

            async def lost() -> bool:
                status, said = await asyncio.to_thread(get, port, "/ready")
                return status == 503 and said["reasons"] == ["no name server has this broker"]

            await until_async(lost)
        finally:
            await controller.stop()
            await namesrv.stop()

    asyncio.run(scene())
