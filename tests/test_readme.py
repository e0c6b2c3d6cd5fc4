"""What the README tells people to do, done: its commands and programs, in their order, on one running broker."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.documents import snippets
from tests.interop.brokers import Server

README = (Path(__file__).parents[1] / "README.md").read_text()
BIN = Path(sys.executable).parent


@contextlib.contextmanager
def served(place: Path) -> Iterator[dict[str, str]]:
    """The environment in which the name server that runs is found."""
    command = [str(BIN / "mqlake"), "serve", "--store", str(place / "mqlake-data")]
    server = Server(
        [*command, "--port", "0", "--namesrv-port", "0"], r"-n (\S+:\d+)", place / "serve.log", os.environ
    )
    try:
        path = f"{BIN}:{os.environ['PATH']}"
        yield {**os.environ, "NAMESRV_ADDR": server.match.group(1), "PATH": path}
    finally:
        assert server.end(signal.SIGTERM) == 0


def run(command: list[str], place: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_everything_it_shows_works_in_its_order(tmp_path: Path) -> None:
    make, serving, looking, mending = snippets("README.md", "")
    client, lake = snippets("README.md", "python")
    assert make.startswith("make demo")
    with served(tmp_path) as environment:
        started, _, rest = serving.partition("\n")
        assert started == "mqlake serve"
        shown = run(["bash", "-euc", rest], tmp_path, environment).splitlines()
        assert sorted(shown[:1000], key=int) == [str(number) for number in range(1, 1001)]

        client = client.replace("127.0.0.1:9876", environment["NAMESRV_ADDR"])
        assert run([sys.executable, "-c", client], tmp_path, environment) == "[b'1 apple']\n"

        counts = run([sys.executable, "-c", lake], tmp_path, environment)
        assert re.search(r"Numbers\|\s*0\|\s*250\|", counts) and re.search(r"Orders\|\s*\d\|\s*1\|", counts)

        assert "order-1" in run(["bash", "-euc", looking], tmp_path, environment)
    assert mending.count("broker-0") == 3
    run(["bash", "-euc", mending], tmp_path, environment)
