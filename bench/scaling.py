"""How processor time and memory grow: `python -m bench.scaling [--only CURVE] [--sizes 1,100] [--json FILE]`.

    curve     sizes, and what one point of it measures
    point     a process of its own, which starts the servers it needs; its figures
    exponent  of the last two points: 0 is constant, 1 linear, more is worse

Only processor time and resident memory are taken: both mean the same beside other programs. `python -m bench` does not
run these: each curve takes minutes. What they say is in docs/scaling.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.__main__ import machine

Figures = dict[str, float]
"""What was measured, by name and unit."""
Point = Callable[[Path, float], Figures]
"""Measures one size in an empty directory."""


@dataclass(frozen=True)
class Curve:
    function: str
    """Module and name of its Point."""
    sizes: tuple[float, ...]
    size: str
    """What grows."""


CURVES = {
    "namesrv": Curve("scaling_cluster.own_topics", (1, 10, 30, 100), "brokers, 1,000 topics of its own each"),
    "namesrv-shared": Curve(
        "scaling_cluster.shared_topics", (1, 10, 30, 100), "brokers with the same 1,000 topics"
    ),
    "namesrv-live": Curve(
        "scaling_cluster.live", (100, 300, 1000), "clients that ask each second, 100 brokers"
    ),
    "topics": Curve(
        "scaling_broker.topics", (10, 1000, 10_000, 100_000), "topics of a broker, one queue each"
    ),
    "queues": Curve("scaling_log.queues", (10, 1000, 10_000, 100_000), "queues of a store, one message each"),
    "groups": Curve("scaling_broker.groups", (1, 100, 1000, 10_000), "groups with offsets in 8 queues"),
    "connections": Curve("scaling_broker.connections", (1, 100, 1000, 2000), "idle connections"),
    "slaves": Curve("scaling_broker.slaves", (0, 1, 2, 4), "slaves of a master"),
    "log": Curve("scaling_log.log", (1, 4, 16, 64, 1024, 8192), "files of a log, 64 messages each"),
    "plan": Curve("scaling_log.planning", (1, 4, 16, 64, 1024, 8192), "files of a log, 64 messages each"),
    "sparse": Curve("scaling_log.sparse", (8, 64), "files of a log with heads, 1 GiB each, nearly all zeros"),
    "manifest": Curve(
        "scaling_log.manifest",
        (100, 1000, 10_000, 100_000),
        "files of 1 GiB that an archive has, 10 topics each",
    ),
    "bucket": Curve("scaling_log.bucket", (4, 16, 64), "files of a log in a bucket"),
}


def measure(name: str, size: float, directory: Path) -> Figures:
    """One point, in a process of its own: memory that an earlier one left would count."""
    directory.mkdir()
    command = [
        sys.executable,
        "-m",
        "bench.scaling",
        "--only",
        name,
        "--sizes",
        f"{size:g}",
        "--point",
        str(directory),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parent.parent)
    figures: Figures = json.loads(done.stdout)
    return figures


def point(name: str) -> Point:
    module, _, function = CURVES[name].function.partition(".")
    found: Point = getattr(importlib.import_module(f"bench.{module}"), function)
    return found


def exponent(sizes: list[float], values: list[float]) -> float | None:
    """The slope between the last two points, both axes logarithmic; None where it says nothing."""
    if len(sizes) < 2 or min(*sizes[-2:], *values[-2:]) <= 0:
        return None
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def table(name: str, points: dict[float, Figures]) -> str:
    """A line for each figure: its values, and how it grows."""
    sizes = list(points)
    width = max(len(figure) for figures in points.values() for figure in figures)
    head = "".join(f"{size:>12,g}" for size in sizes)
    lines = [f"{name}: {CURVES[name].size}", f"  {'':{width}}{head}    exponent"]
    for figure in next(iter(points.values())):
        values = [figures[figure] for figures in points.values()]
        slope = exponent(sizes, values)
        shown = "".join(f"{value:>12,.4g}" for value in values)
        lines.append(f"  {figure:{width}}{shown}    {'' if slope is None else format(slope, '.2f'):>8}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=CURVES, help="this curve (may be repeated)")
    parser.add_argument("--sizes", help="instead of the curve's own, `,` between")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything measured there")
    parser.add_argument("--dir", type=Path, help="where to work; default: the temporary directory")
    parser.add_argument("--point", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    own = None if given.sizes is None else tuple(map(float, given.sizes.split(",")))
    if given.point is not None:
        assert own is not None
        print(json.dumps(point(given.only[0])(given.point, own[0])))
        return 0
    print(f"# {' '.join(f'{key}={value}' for key, value in machine().items())}")
    measured: dict[str, dict[float, Figures]] = {}
    for name in given.only or CURVES:
        measured[name] = {}
        for size in own or CURVES[name].sizes:
            with tempfile.TemporaryDirectory(prefix="mqlake-scaling-", dir=given.dir) as directory:
                measured[name][size] = measure(name, size, Path(directory) / name)
        print(table(name, measured[name]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine(), "curves": measured}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
