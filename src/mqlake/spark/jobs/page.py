"""Reports as one HTML file: tables, and pictures inside it as PNG, so that it can be mailed and kept.

Pictures are drawn by matplotlib without a display; each function takes plain lists and gives the bytes of a PNG.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mqlake.lake.requirements import require_modules

INK, QUIET, LINE, ALARM = "#1f2933", "#7b8794", "#2f6f9f", "#c0392b"
COLOURS = ("#16425b", "#2f6f9f", "#6ba5cc", "#e0a458", "#c0392b", "#7a9e7e", "#7b8794", "#b8d4e6")
INSTALL_PICTURES = "pip install matplotlib"
BARS_MAX = 30
"""Bars drawn at most; of more, the longest."""

TIME_MAX_MS = 32_503_680_000_000
"""The year 3000: what a damaged record says may lie beyond, where there is no axis."""
MARKED_MAX = 60
"""With no more points than these each is marked: between two of them nothing need have been."""

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1f2933; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; font-size: .9rem } th { text-align: left; border-bottom: 2px solid #7b8794 }
td, th { padding: .2rem .9rem .2rem 0; vertical-align: top } td.number { text-align: right; white-space: nowrap }
tr + tr td { border-top: 1px solid #e4e7eb } img { max-width: 100% } .bad { color: #c0392b } p { max-width: 50rem }
"""


@dataclass
class Page:
    """Parts are added from top to bottom; text() is the whole document."""

    title: str
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, text: str, *, bad: bool = False) -> None:
        self.parts.append(f"<p{' class=bad' if bad else ''}>{html.escape(text)}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
        body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
        self.parts.append(f"<table><tr>{head}</tr>{body}</table>")

    def picture(self, png: bytes, what: str) -> None:
        data = base64.b64encode(png).decode()
        self.parts.append(f'<img alt="{html.escape(what)}" src="data:image/png;base64,{data}">')

    def text(self) -> str:
        title = html.escape(self.title)
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            f"<style>{_STYLE}</style><h1>{title}</h1>{''.join(self.parts)}</html>\n"
        )


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{html.escape('' if value is None else str(value))}</td>"
    return (
        f"<td class=number>{value:,}</td>"
        if isinstance(value, int)
        else f"<td class=number>{value:,.2f}</td>"
    )


# ---------------------------------------------------------------------- pictures


def bars(values: Mapping[str, float], label: str) -> bytes:
    """A horizontal bar a name, the longest above."""
    longest = sorted(values.items(), key=lambda item: -item[1])[:BARS_MAX][::-1]
    figure, axes = _figure(height=0.7 + 0.26 * len(longest))
    axes.barh([_short(name) for name, _ in longest], [value for _, value in longest], color=LINE)
    axes.set_xlabel(label)
    return _png(figure)


def spans(values: Mapping[str, tuple[int, int]], label: str) -> bytes:
    """From when to when, a line a name; times in ms."""
    chosen = sorted(values.items(), key=lambda item: item[1])[:BARS_MAX][::-1]
    figure, axes = _figure(height=0.7 + 0.26 * len(chosen))
    for row, (_, (first, last)) in enumerate(chosen):
        axes.plot([_time(first), _time(last)], [row, row], color=LINE, linewidth=5, solid_capstyle="round")
    axes.set_yticks(range(len(chosen)), [_short(name) for name, _ in chosen])
    axes.set_xlabel(label)
    _dates(axes)
    return _png(figure)


def lines(series: Mapping[str, Sequence[tuple[datetime, float]]], label: str) -> bytes:
    """A line a name over time, from 1970 to the year 3000; of many the ones with the largest sums."""
    chosen = sorted(series.items(), key=lambda item: -sum(value for _, value in item[1]))[: len(COLOURS)]
    figure, axes = _figure(height=3.4)
    for (name, points), colour in zip(chosen, COLOURS, strict=False):
        ordered = [point for point in sorted(points) if 1970 <= point[0].year < 3000]
        marker = "o" if len(ordered) <= MARKED_MAX else ""
        axes.plot(
            [t for t, _ in ordered], [v for _, v in ordered], color=colour, label=_short(name), marker=marker
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)
    if chosen:
        axes.legend(frameon=False, fontsize=8)
    _dates(axes)
    return _png(figure)


def _figure(height: float) -> tuple[Any, Any]:
    require_modules("matplotlib", command=INSTALL_PICTURES)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)
    return figure, axes


def _dates(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:38] + "…"


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(ms, 0), TIME_MAX_MS) / 1000, UTC)
