"""Tries a wheel as a newcomer does: install it into a clean environment, then run what the documents begin with.

    python3.12 tools/try_wheel.py dist/mqlake-1.0-py3-none-any.whl [--extras console,auth,grpc] [--constraint FILE]

The wheel of mqlake-client is taken from beside it. It needs nothing but the interpreter that it is run with, which is
the one that gets the environment, so it also runs in a container or a chroot. Each step is a line; the first that fails
ends it with what the program said.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT_S = 300.0
SHARED = {
    "share/man/man1/mqlake.1": ".TH",
    "share/bash-completion/completions/mqlake": "complete",
    "share/zsh/site-functions/_mqlake": "#compdef mqlake",
    "share/fish/vendor_completions.d/mqlake.fish": "complete",
}
"""Files beside the package, and what each has in it."""
FRESH = ("--refresh-package", "mqlake-client")
"""For uv, which keeps what it has installed by name and version: an older build of this version would be taken."""
SUITE = """
from mqlake.client import Message
from mqlake.client.blocking import Producer

def test_sends(rocketmq):
    with Producer("orders", rocketmq.namesrv) as producer:
        assert producer.send(Message(rocketmq.topic("orders"), b"1 apple")).queue_offset == 0
"""


class Trial:
    """One environment, below `place`."""

    def __init__(self, place: Path, wheel: Path, extras: str, constraint: Path | None, uv: str) -> None:
        self.place, self.wheel, self.extras, self.constraint, self.uv = place, wheel, extras, constraint, uv
        self.prefix = place / "venv"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MQLAKE"))
        }
        kept.pop("VIRTUAL_ENV", None)
        self.environment = kept | {
            "PATH": f"{self.prefix}/bin:{os.environ.get('PATH', '')}",
        }

    def run(self, *command: str, stdin: str = "") -> str:
        """Its stdout. SystemExit with both outputs if it fails."""
        done = subprocess.run(
            command,
            input=stdin,
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    # ------------------------------------------------------------------ steps

    def install(self) -> str:
        wanted = [f"{self.wheel}[{self.extras}]" if self.extras else str(self.wheel), "pytest"]
        constraint = ["--constraint", str(self.constraint)] if self.constraint else []
        if self.uv:
            self.run(self.uv, "venv", "--quiet", "--python", sys.executable, str(self.prefix))
            pip = [self.uv, "pip", "install", "--quiet", "--python", str(self.prefix), *FRESH]
        else:
            venv.create(self.prefix, with_pip=True)
            pip = ["python", "-m", "pip", "install", "--quiet"]
        self.run(*pip, "--find-links", str(self.wheel.parent), *constraint, *wanted)
        return self.run("mqlake", "--version").strip()

    def help(self) -> str:
        text = self.run("mqlake", "--help")
        assert "Usage: mqlake" in text, text
        return f"{len(text.splitlines())} lines"

    def shared_files(self) -> str:
        for name, part in SHARED.items():
            text = (self.prefix / name).read_text(encoding="utf-8")
            assert part in text, f"{name} has no {part!r}"
        offered = self.run(
            "bash", "-c", f"source {self.prefix}/share/bash-completion/completions/mqlake; complete -p mqlake"
        )
        return offered.strip()

    def completion(self) -> str:
        """What the shell would offer after `mqlake ser`."""
        self.environment |= {
            "_MQLAKE_COMPLETE": "bash_complete",
            "COMP_WORDS": "mqlake ser",
            "COMP_CWORD": "1",
        }
        try:
            offered = self.run("mqlake").split()
        finally:
            for name in ("_MQLAKE_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
                del self.environment[name]
        assert any(each.endswith("serve") for each in offered), offered
        return " ".join(offered)

    def send_and_receive(self) -> str:
        began = time.monotonic()
        with self.serving() as server:
            ready = time.monotonic() - began
            self.run("mqlake", "produce", "-n", server["namesrv"], "Orders", stdin="1 apple\n2 pears\n")
            arguments = ["consume", "-n", server["namesrv"], "Orders", "--group", "shop", "--exit-at-end"]
            found = self.run("mqlake", *arguments, "--from", "earliest")
            assert "1 apple" in found and "2 pears" in found, found
        return f"ready after {ready:.1f} s, 2 messages"

    def plugin(self) -> str:
        (self.place / "test_orders.py").write_text(SUITE, encoding="utf-8")
        text = self.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py")
        assert "1 passed" in text, text
        return text.strip().splitlines()[-1]

    def console(self) -> str:
        with self.serving("--console-port", "0") as server:
            text = urllib.request.urlopen(f"{server['console']}topics", timeout=30).read().decode()
        assert "<h1>" in text, text
        return f"{len(text)} bytes of HTML"

    @contextmanager
    def serving(self, *arguments: str) -> Iterator[dict[str, Any]]:
        command = ["mqlake", "serve", "--ephemeral", "--json", *arguments]
        with subprocess.Popen(
            command, cwd=self.place, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                yield json.loads(server.stdout.readline())
            finally:
                server.send_signal(signal.SIGTERM)
                status = server.wait(LIMIT_S)
        assert status == 0, f"mqlake serve ended with {status}"


def steps(trial: Trial) -> list[tuple[str, Callable[[], str]]]:
    found = [
        ("install", trial.install),
        ("mqlake --help", trial.help),
        ("man page and completions", trial.shared_files),
        ("completion", trial.completion),
        ("serve, produce, consume", trial.send_and_receive),
        ("pytest plugin", trial.plugin),
    ]
    return found + ([("console", trial.console)] if "console" in trial.extras.split(",") else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path, help="the wheel, as `make wheel` leaves it in dist/")
    parser.add_argument("--extras", default="", help="extras to install with it, such as console,auth,grpc")
    parser.add_argument("--constraint", type=Path, help="versions, in the form of a requirements file")
    parser.add_argument(
        "--uv", default="", help="uv, to install with instead of venv and pip; keeps packages in its cache"
    )
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="mqlake-trial-"))
    print(f"Python {platform.python_version()} ({sys.executable}), {given.wheel.name}", flush=True)
    constraint = given.constraint.resolve() if given.constraint else None
    try:
        for name, step in steps(Trial(place, given.wheel.resolve(), given.extras, constraint, given.uv)):
            began = time.monotonic()
            said = step()
            print(f"ok    {name}: {said} ({time.monotonic() - began:.1f} s)", flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
