"""Pages and their pictures, of usual figures and of what damage makes of them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mqlake.spark.jobs.page import Page, bars, lines, spans

PNG = b"\x89PNG"


@pytest.mark.parametrize(
    "values", [{}, {"a": (5, 5)}, {"a": (-5, 1 << 62)}, {f"topic-{n}" * 9: (n, 2 * n) for n in range(50)}]
)
def test_pictures(values: dict[str, tuple[int, int]]) -> None:
    assert spans(values, "stored").startswith(PNG)
    assert bars({name: last for name, (_, last) in values.items()}, "MiB").startswith(PNG)


@pytest.mark.parametrize("years", [[], [2024], [1, 2024, 2025, 9999]])
def test_lines(years: list[int]) -> None:
    points = [(datetime(year, 1, 1, tzinfo=UTC), float(year)) for year in years]
    assert lines({"a": points, "b": points[:1]}, "messages").startswith(PNG)


def test_text_is_text() -> None:
    page = Page("a < b")
    page.heading("<h>")
    page.paragraph("<script>", bad=True)
    page.table(["<n>"], [["<v>"], [1234], [0.5], [None], [True]])
    page.picture(b"png", '"quoted"')
    text = page.text()
    assert "<script>" not in text and "<v>" not in text and "1,234" in text and "0.50" in text
    assert "&quot;quoted&quot;" in text
