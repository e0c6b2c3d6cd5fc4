from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mqlake.broker.state.config_manager import ConfigManager
from mqlake.errors import FormatError, StoreCorruptError


class Numbers(ConfigManager):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.numbers: list[int] = []

    def encode(self) -> dict[str, Any]:
        return {"numbers": list(self.numbers)}

    def decode(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise FormatError(0, "an object is needed")
        self.numbers = value["numbers"]


def loaded(path: str) -> list[int]:
    manager = Numbers(path)
    manager.load()
    return manager.numbers


def test_what_was_persisted_is_loaded(tmp_path):
    path = str(tmp_path / "config" / "numbers.json")
    manager = Numbers(path)
    manager.load()  # there is none yet
    manager.numbers = [1, 2]
    manager.persist()
    assert loaded(path) == [1, 2]


def test_in_the_background_only_what_has_changed(tmp_path):
    path = tmp_path / "numbers.json"
    manager = Numbers(str(path))
    manager.numbers = [1]
    asyncio.run(manager.persist_in_background())
    assert not path.exists()
    manager.dirty = True
    asyncio.run(manager.persist_in_background())
    assert loaded(str(path)) == [1] and not manager.dirty


def test_an_older_copy_never_overwrites_a_newer_one(tmp_path):
    """The background write is slow to start; an operator's change is written at once meanwhile."""
    path = str(tmp_path / "numbers.json")
    gate = threading.Event()

    class Slow(Numbers):
        def _write(self, copy: int, content: Callable[[], dict[str, Any]]) -> None:
            if content()["numbers"] == [1]:
                gate.wait(60)
            super()._write(copy, content)

    async def run() -> None:
        manager = Slow(path)
        manager.numbers, manager.dirty = [1], True
        background = asyncio.create_task(manager.persist_in_background())
        await asyncio.sleep(0)
        manager.numbers = [1, 2]
        manager.persist()
        gate.set()
        await background

    asyncio.run(run())
    assert loaded(path) == [1, 2]


def test_a_failed_write_is_tried_again(tmp_path):
    path = tmp_path / "config" / "numbers.json"
    (tmp_path / "config").write_text("in the way")
    manager = Numbers(str(path))
    manager.numbers, manager.dirty = [1], True
    with pytest.raises(OSError, match=r"not kept.*numbers\.json"):
        asyncio.run(manager.persist_in_background())
    assert manager.dirty
    (tmp_path / "config").unlink()
    asyncio.run(manager.persist_in_background())
    assert loaded(str(path)) == [1]


def test_a_wrong_file_is_named(tmp_path):
    path = tmp_path / "numbers.json"
    path.write_text("[1]")
    with pytest.raises(FormatError, match=r"numbers\.json: an object"):
        loaded(str(path))
    path.write_text("{")
    with pytest.raises(StoreCorruptError, match=r"numbers\.json"):
        loaded(str(path))
