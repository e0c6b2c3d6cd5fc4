"""How much memory recovery, rebuild and verification take that they did not take before, on a log of 4 GiB.

Each runs in a process of its own, which notes its resident memory before, and the peak (VmHWM) after it. Pages of
mapped files count: a log that stays mapped and touched from end to end would show as 4 GiB.

    python -m bench.memory recover|rebuild|verify ROOT          prints {"growth_bytes": ..., "seconds": ...}
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.context import MIB, Context
from bench.measure import Line
from bench.opening import crash, lose_derived
from bench.workload import make_log
from mqlake.store import open_store
from mqlake.store.check.verify import verify_store

GROWTH_MAX = 300 * MIB
PREPARE: dict[str, Callable[[Path], None]] = {
    "recover": crash,
    "rebuild": lose_derived,
    "verify": lambda root: None,
}


def status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def run(what: str, root: Path, log_file: int) -> dict[str, float]:
    """In this process, which is therefore one that does nothing else."""
    # what is compiled and loaded once, whatever the log's size, is there before
    with open_store(root.parent / "small", {"mappedFileSizeCommitLog": MIB}) as store:
        store.wait_until_dispatched()
    verify_store(root.parent / "small")
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    began = time.perf_counter()
    if what == "verify":
        assert verify_store(root).ok
        peak = status("VmHWM")
    else:
        with open_store(root, {"mappedFileSizeCommitLog": log_file}) as store:
            store.wait_until_dispatched()
            peak = status("VmHWM")
    return {"growth_bytes": peak - before, "seconds": time.perf_counter() - began}


def memory(context: Context) -> Iterator[Line]:
    scale = context.scale
    with context.scratch("memory") as root:
        log = root / "log"
        with context.progress.step(f"memory: making a log of {scale.memory_log / 1e9:.1f} GB"):
            make_log(log, scale.memory_log, {"mappedFileSizeCommitLog": scale.recovered_file})
            make_log(root / "small", MIB // 2, {"mappedFileSizeCommitLog": MIB})
        for what in PREPARE:
            context.progress.say(f"memory: {what}")
            PREPARE[what](log)
            done = subprocess.run(
                [sys.executable, "-m", "bench.memory", what, str(log), str(scale.recovered_file)],
                stdout=subprocess.PIPE,
                check=True,
                cwd=Path(__file__).parent.parent,
            )
            growth = json.loads(done.stdout)["growth_bytes"]
            yield Line(
                f"memory growth, {what} of {scale.memory_log / (1 << 30):.3g} GiB",
                growth / MIB,
                "MiB",
                target=f"< {GROWTH_MAX // MIB}",
                met=growth < GROWTH_MAX,
            )


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
