"""Pages that a bench touches before a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import pages


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_nothing_is_left_of_them(tmp_path: Path, size: int) -> None:
    free = pages._available()
    pages.touch_pages(tmp_path, size)
    assert list(tmp_path.iterdir()) == []
    assert free > 0


def test_they_are_a_quarter_of_the_memory_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_available", lambda: 1 << 20)
    pages.touch_pages(tmp_path, 1 << 60)  # no file can be as large
    assert list(tmp_path.iterdir()) == []
