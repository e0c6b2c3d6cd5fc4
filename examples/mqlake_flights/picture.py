"""The picture that `mqlake demo` ends with: what went in, what was asked, and the crash in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import TwoSlopeNorm

from mqlake_flights.flights import MONTHS

INK, QUIET, LINE, ALARM = "#1f2933", "#7b8794", "#2f6f9f", "#c0392b"
QUEUE_COLOURS = ("#16425b", "#2f6f9f", "#6ba5cc", "#b8d4e6")


@dataclass
class Timeline:
    """Rows acknowledged over time (s, rows), per writing process; `killed_at` and `resumed_at` in s."""

    before: Sequence[tuple[float, int]]
    after: Sequence[tuple[float, int]]
    killed_at: float | None
    resumed_at: float
    survived: int


def draw(
    path: str,
    *,
    names: Mapping[str, str],
    delays: Mapping[tuple[str, int], tuple[int, int]],
    queues: Mapping[tuple[str, int], int],
    timeline: Timeline,
    title: str,
) -> None:
    """Writes a PNG. `delays`: (airline, month) → (flights that left, minutes of delay); `queues`: (airline, queue)
    → messages."""
    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.edgecolor": QUIET,
            "axes.labelcolor": INK,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    figure = plt.figure(figsize=(13, 8.2), dpi=120, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.04, hspace=0.06)
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.0, 1.55))
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold")
    _draw_timeline(top.subplots(), timeline)
    left, right = bottom.subplots(1, 2, width_ratios=(1.75, 1))
    airlines = sorted(names, key=lambda code: -sum(n for (c, _), n in queues.items() if c == code))
    airlines = [code for code in airlines if any(c == code for c, _ in queues)]
    _draw_delays(bottom, left, airlines, names, delays)
    _draw_queues(right, airlines, queues)
    figure.savefig(path)
    plt.close(figure)


def _draw_timeline(axes: plt.Axes, timeline: Timeline) -> None:
    for points in (timeline.before, timeline.after):
        if points:
            seconds, rows = zip(*points, strict=True)
            axes.fill_between(seconds, rows, color=LINE, alpha=0.12, linewidth=0)
            axes.plot(seconds, rows, color=LINE, linewidth=2)
    if timeline.killed_at is not None:
        axes.axvspan(timeline.killed_at, timeline.resumed_at, color=ALARM, alpha=0.08, linewidth=0)
        axes.plot(timeline.killed_at, timeline.survived, "X", color=ALARM, markersize=11, zorder=5)
        axes.annotate(
            "SIGKILL",
            (timeline.killed_at, timeline.survived),
            xytext=(-10, 6),
            textcoords="offset points",
            ha="right",
            color=ALARM,
            fontweight="bold",
        )
        axes.plot(
            (timeline.killed_at, timeline.resumed_at),
            (timeline.survived,) * 2,
            ":",
            color=ALARM,
            linewidth=1.5,
        )
        axes.annotate(
            f"{timeline.survived:,} messages survive;\nthe next process recovers and goes on",
            (timeline.resumed_at, timeline.survived),
            xytext=(10, -4),
            textcoords="offset points",
            va="top",
            color=INK,
        )
    axes.set_title("The ingest: messages in the store", loc="left", fontsize=10.5, fontweight="bold")
    axes.set_xlabel("seconds")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(axis="y", color=QUIET, alpha=0.2)


def _draw_delays(
    figure: object,
    axes: plt.Axes,
    airlines: Sequence[str],
    names: Mapping[str, str],
    delays: Mapping[tuple[str, int], tuple[int, int]],
) -> None:
    mean = np.full((len(airlines), 12), np.nan)
    for row, code in enumerate(airlines):
        for month in range(1, 13):
            departed, minutes = delays.get((code, month), (0, 0))
            if departed:
                mean[row, month - 1] = minutes / departed
    shown = mean[np.isfinite(mean)]
    high = float(np.percentile(shown, 98)) if len(shown) else 1.0
    high = max(high, 5.0)
    norm = TwoSlopeNorm(vcenter=0.0, vmin=-max(5.0, high / 4), vmax=high)
    image = axes.imshow(mean, aspect="auto", cmap="RdBu_r", norm=norm)
    for (row, column), value in np.ndenumerate(mean):
        if np.isfinite(value):
            strong = value > 0.55 * high
            axes.text(
                column,
                row,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=7.5,
                color="w" if strong else INK,
            )
    axes.set_xticks(range(12), MONTHS)
    axes.set_yticks(range(len(airlines)), [f"{names[code]}  {code}" for code in airlines])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("Mean departure delay, minutes", loc="left", fontsize=10.5, fontweight="bold")
    bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=25, pad=0.02)  # type: ignore[attr-defined]
    bar.outline.set_visible(False)


def _draw_queues(axes: plt.Axes, airlines: Sequence[str], queues: Mapping[tuple[str, int], int]) -> None:
    left = np.zeros(len(airlines))
    for queue_id in sorted({queue_id for _, queue_id in queues}):
        counts = np.array([queues.get((code, queue_id), 0) for code in airlines], float)
        colour = QUEUE_COLOURS[queue_id % len(QUEUE_COLOURS)]
        axes.barh(
            range(len(airlines)), counts, left=left, color=colour, label=f"queue {queue_id}", height=0.72
        )
        left += counts
    for row, total in enumerate(left):
        axes.text(total, row, f"  {total:,.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(airlines)), [f"flights-{code}" for code in airlines])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value / 1000:.0f}k" if value >= 1000 else f"{value:.0f}"
    )
    axes.set_xlim(right=left.max() * 1.18 if len(left) else 1)
    axes.spines["left"].set_visible(False)
    axes.set_title("Messages by topic and queue", loc="left", fontsize=10.5, fontweight="bold")
    axes.legend(frameon=False, loc="lower right", fontsize=8.5)
