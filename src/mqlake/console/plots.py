"""Plots as inline SVG, made here: a line over time, bars, a timeline. Colours come from the style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from mqlake.base.clock import now_ms
from mqlake.base.rendering import time_text

WIDTH, HEIGHT = 640, 120
PAD = 4


def sparkline(values: Sequence[float], label: str, *, width: int = 120, height: int = 24) -> Markup:
    """A line without axes, for a cell of a table."""
    return _line(values, label, width, height, css="spark")


def line(values: Sequence[float], label: str, interval_s: float = 0.0) -> Markup:
    """A line with its area filled, on axes from 0 to the highest value and over the time of day, and in words."""
    if not values:
        return Markup("<figure>{}<figcaption>no samples yet</figcaption></figure>").format(
            _line(values, label, WIDTH, HEIGHT, css="plot")
        )
    span_s = (len(values) - 1) * interval_s
    span = f"{span_s / 60:.0f} min" if span_s >= 60 else f"{span_s:.0f} s"
    moments = (span_s, span_s / 2, 0) if span_s >= 2 else (0,)
    times = Markup("").join(
        Markup("<span>{}</span>").format(time_text(now_ms() - round(ago * 1000))[11:19]) for ago in moments
    )
    return Markup(
        '<figure class="chart"><div class="y"><span>{}</span><span>0</span></div>{}'
        '<div class="x">{}</div>'
        "<figcaption>now {} · peak {} · last {}</figcaption></figure>"
    ).format(
        _short(max(values) or 1.0),
        _line(values, label, WIDTH, HEIGHT, css="plot"),
        times,
        _short(values[-1]),
        _short(max(values)),
        span,
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def _line(values: Sequence[float], label: str, width: int, height: int, css: str) -> Markup:
    top = max(values, default=0.0) or 1.0
    step = (width - 2 * PAD) / max(1, len(values) - 1)
    points = [
        (PAD + number * step, height - PAD - value / top * (height - 2 * PAD))
        for number, value in enumerate(values)
    ]
    if len(points) == 1:
        points.append((float(width - PAD), points[0][1]))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"{PAD},{height - PAD} {path} {points[-1][0]:.1f},{height - PAD}" if points else ""
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" width="{}" height="{}" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><title>{}</title><polygon class="area" points="{}"/>'
        '<polyline class="stroke" points="{}"/></svg>'
    ).format(css, width, height, width, height, label, label, area, path)


def bar(share: float, label: str, css: str = "") -> Markup:
    """A bar that is filled to `share` (0 to 1)."""
    filled = 100 * min(1.0, max(0.0, share))
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 8" width="100" height="8" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><title>{}</title><rect class="back" width="100" height="8"/>'
        '<rect class="fill" width="{:.2f}" height="8"/></svg>'
    ).format(css, label, label, filled)


def timeline(spans: Sequence[dict[str, Any]]) -> Markup:
    """Draws the history of a message: `name`, `begin` and `end` (ms), `good`; a row each, all on one scale."""
    if not spans:
        return Markup("")
    first = min(span["begin"] for span in spans)
    last = max(max(span["end"] for span in spans), first + 1)
    row, left, width = 26, 190, 640
    scale = (width - left - 90) / (last - first)
    parts = []
    for number, span in enumerate(spans):
        x = left + (span["begin"] - first) * scale
        long = max(3.0, (span["end"] - span["begin"]) * scale)
        y = number * row
        text = f"{span['end'] - span['begin']} ms"
        parts.append(
            f'<text x="0" y="{y + 17}">{escape(str(span["name"])[:28])}</text>'
            f'<rect class="{"good" if span["good"] else "bad"}" x="{x:.1f}" y="{y + 5}" width="{long:.1f}" '
            f'height="16" rx="2"/><text class="quiet" x="{x + long + 6:.1f}" y="{y + 17}">{text}</text>'
        )
    height = row * len(spans)
    return Markup(
        f'<svg class="timeline" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="trace">{"".join(parts)}</svg>'
    )
