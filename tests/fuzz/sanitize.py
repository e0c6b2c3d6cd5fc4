"""Native code with AddressSanitizer and UndefinedBehaviorSanitizer, under damaged bytes and its own tests.

    python -m tests.fuzz.sanitize [--bytes N] [--seed N]

    tools/build_native.py --sanitize ─▶ build/sanitize ─▶ a process each: the canaries, which have to be found,
                                                          headers, frames, pulls, log pieces, puts: N bytes together,
                                                          the tests of native code

A fault ends its process, and this command with status 1 after all have run; what the sanitizer said is on stderr.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGETS = ("send_headers", "send_frames", "pull_frames", "log_pieces", "put_messages")
CANARIES = ("past the end", "numbers at an odd address")
TESTS = (
    "tests/native",
    "tests/formats",
    "tests/store/log/test_fast_put.py",
    "tests/broker/fast",
    "tests/lake/arrow",
)


def environment() -> dict[str, str]:
    """Of a process that may import what was built. The sanitizer's library has to be loaded before Python, which has
    malloc() hand out each object: what Python's own allocator hands out has nothing forbidden around it."""
    compiler = os.environ.get("CC", "gcc").split()
    said = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    name = f"libclang_rt.asan-{os.uname().machine}.so" if "clang" in said else "libasan.so"
    found = subprocess.run(
        [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return {
        **os.environ,
        "LD_PRELOAD": os.path.realpath(found.stdout.strip()),
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


def run_canary(which: str) -> None:
    """A fault of each kind, made by calls that break what a kernel asks of its callers."""
    import numpy as np

    from tests.fuzz.sanitized_native import kernels

    records = kernels("records")
    if which == "past the end":
        records.find_record(np.full(1000, 0xDA, np.uint8), 0, 2000, 0)
    else:
        state = np.zeros(41, np.uint8)[1:].view(np.int64)
        kernels("signatures").take_blocks(state, bytes(64), True)


def run_target(name: str, size: int, seed: int) -> None:
    """A target of this folder, in this process."""
    import importlib

    import tests.fuzz.sanitized_native  # noqa: F401 - before any other import takes native modules

    print(name, *importlib.import_module(f"tests.fuzz.{name}").run(size, seed), flush=True)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sanitize")
    parser.add_argument("--bytes", type=int, default=100_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-tests", action="store_true", help="damaged bytes alone")
    parser.add_argument("--target", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.target in CANARIES:
        run_canary(given.target)
        return 0
    if given.target:
        run_target(given.target, given.bytes, given.seed)
        return 0
    if subprocess.run([sys.executable, "tools/build_native.py", "--sanitize"], cwd=ROOT).returncode:
        return 1
    with_sanitizers = environment()

    def start(*command: str, **more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            [sys.executable, "-m", *command], cwd=ROOT, env=with_sanitizers, text=True, **more
        )

    missed = []
    for canary in CANARIES:
        said = start("tests.fuzz.sanitize", "--target", canary, capture_output=True)
        if said.returncode == 0 or ("Sanitizer" not in said.stderr and "runtime error" not in said.stderr):
            missed.append(f"the canary {canary!r} was not found:\n{said.stderr}")
    share = str(given.bytes // len(TARGETS))
    for target in TARGETS:
        more = ("--bytes", share, "--seed", str(given.seed))
        if start("tests.fuzz.sanitize", "--target", target, *more).returncode:
            missed.append(f"{target} has failed (--seed {given.seed})")
    if (
        not given.without_tests
        and start("pytest", "-q", "-x", "-p", "tests.fuzz.sanitized_native", *TESTS).returncode
    ):
        missed.append("the tests of native code have failed")
    print("\n".join(missed) or f"{given.bytes} bytes: nothing found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
