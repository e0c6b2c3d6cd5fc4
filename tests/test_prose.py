"""Prose is wrapped; what is not prose stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import prose
from tools.prose import WIDTH, main, wrapped

LONG = "a word and another word, and so on until it is over; " * 4


def test_a_long_paragraph_is_wrapped_and_keeps_its_words() -> None:
    text = f"# Title\n\n{LONG}\nshort\n\nfits\nas it is\n"
    better = wrapped(text)
    assert better.split() == text.split()
    assert all(len(line) <= WIDTH for line in better.splitlines())
    assert better.startswith("# Title\n\na word") and better.endswith("\n\nfits\nas it is\n")
    assert wrapped(better) == better


def test_items_of_lists_keep_their_indent() -> None:
    text = f"- {LONG}\n- two\n  lines\n1. {LONG}\n"
    first, *rest = wrapped(text).splitlines()
    assert first.startswith("- a word")
    assert [line for line in rest if not line.startswith(("  ", "   "))] == [
        "- two",
        rest[rest.index("- two") + 2],
    ]
    assert rest[rest.index("- two") + 1] == "  lines"
    assert rest[rest.index("- two") + 3].startswith("   ")


@pytest.mark.parametrize(
    "text",
    [
        f"```\n{LONG}\n```",
        f"| {LONG} |",
        f"## {LONG}",
        f"<!-- {LONG}\n{LONG} -->",
        f"text\n\n    a drawing {LONG}\n    {LONG}",
        f"[link](https://example.org/{'x' * WIDTH})",
    ],
)
def test_what_is_not_prose_stays(text: str) -> None:
    assert wrapped(text) == text


def test_code_and_a_dash_do_not_begin_a_line() -> None:
    for place in range(80, 100):
        text = "x" * place + " - `some code` 1. and # more words that go on for a while"
        better = wrapped(text)
        assert "some code" in better
        assert not any(line.startswith(("- ", "1. ", "# ")) for line in better.splitlines())
        assert wrapped(better) == better


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(LONG)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "DOCUMENTS", [page])
    assert main(fix=False) == 1
    assert "page.md: prose is wider" in capsys.readouterr().out and page.read_text() == LONG
    assert main(fix=True) == 0
    assert main(fix=False) == 0
