"""uv is had by pip, or without it from the wheel that an index lists: in JSON or HTML, with a password, damaged."""

from __future__ import annotations

import base64
import hashlib
import http.server
import importlib.util
import io
import json
import os
import platform
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools import get_uv

ROOT = Path(__file__).resolve().parent.parent
VERSION = "7.8.9"
MACHINE = platform.machine()
LIBC = "manylinux_2_17" if platform.libc_ver()[0] == "glibc" else "musllinux_1_1"
WHEEL = f"uv-{VERSION}-py3-none-{LIBC}_{MACHINE}.another_1_1_{MACHINE}.whl"
OTHERS = [
    f"uv-{VERSION}-py3-none-{LIBC}_pdp11.whl",
    f"uv-7.8.8-py3-none-{LIBC}_{MACHINE}.whl",
    f"uv-{VERSION}.tar.gz",
]


def packed() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"uv-{VERSION}.data/scripts/uv"), f"#!/bin/sh\necho uv {VERSION}\n")
    return made.getvalue()


class Index(http.server.BaseHTTPRequestHandler):
    """Lists the wheel among others below /simple, and the wheel alone is there."""

    def do_GET(self) -> None:
        server: Any = self.server
        if server.secret and self.headers["Authorization"] != f"Basic {server.secret}":
            self.send_error(401)
        elif self.path == "/simple/uv/":
            assert self.headers["Accept"] == get_uv.PAGE
            self.answer(server.page)
        elif self.path == f"/files/{WHEEL}":
            self.answer(packed())
        else:
            self.send_error(404)

    def answer(self, data: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def index() -> Iterator[Any]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        server.page, server.secret = as_json(), ""  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def as_json(digest: str | None = None) -> bytes:
    digest = digest or hashlib.sha256(packed()).hexdigest()
    names = [*OTHERS, WHEEL]
    found = [{"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest}} for name in names]
    return json.dumps({"files": found}).encode()


def as_html() -> bytes:
    digest = hashlib.sha256(packed()).hexdigest()
    links = [f'<a href="/files/{name}#sha256={digest}" data-x>{name}</a>' for name in [*OTHERS, WHEEL]]
    return f"<!DOCTYPE html><html><body>{'<br/>'.join(links)}</body></html>".encode()


def get(
    index: Any, command: Path, variable: str = "PIP_INDEX_URL", who: str = ""
) -> subprocess.CompletedProcess[str]:
    """As the Makefile does, with a Python that has no ensurepip."""
    environment = {name: value for name, value in os.environ.items() if name not in get_uv.INDEXES}
    environment[variable] = f"http://{who}127.0.0.1:{index.server_port}/simple"
    without = "import importlib.util as u; found = u.find_spec\n"
    without += "u.find_spec = lambda name, *more: None if name == 'ensurepip' else found(name, *more)\n"
    script = f"{without}import sys; sys.path.insert(0, 'tools'); import get_uv; sys.exit(get_uv.main(sys.argv[1:]))"
    arguments = [sys.executable, "-c", script, VERSION, str(command)]
    return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("variable", get_uv.INDEXES)
@pytest.mark.parametrize("page", [as_json(), as_html()], ids=["json", "html"])
def test_without_ensurepip_the_wheel_is_unpacked(
    index: Any, tmp_path: Path, page: bytes, variable: str
) -> None:
    index.page = page
    command = tmp_path / "bin" / "uv"
    done = get(index, command, variable)
    assert done.returncode == 0, done.stderr
    assert f"taking uv {VERSION} from http://127.0.0.1:{index.server_port}/simple" in done.stderr
    assert subprocess.check_output([command], text=True) == f"uv {VERSION}\n"
    assert [path.name for path in command.parent.iterdir()] == ["uv"]


def test_a_password_is_sent_and_not_shown(index: Any, tmp_path: Path) -> None:
    index.secret = base64.b64encode(b"me:p@ss").decode()
    done = get(index, tmp_path / "uv", who="me:p%40ss@")
    assert done.returncode == 0, done.stderr
    assert "p%40ss" not in done.stderr and "p@ss" not in done.stderr


def test_another_file_than_the_index_says_is_refused(index: Any, tmp_path: Path) -> None:
    index.page = as_json(digest="0" * 64)
    done = get(index, tmp_path / "uv")
    assert done.returncode == 1
    assert f"{WHEEL} is not what the index says: another SHA-256" in done.stderr
    assert not (tmp_path / "uv").exists()


@pytest.mark.parametrize("page", [b'{"files": []}', b"<html></html>", b"\xff"])
def test_an_index_without_the_wheel_is_an_error_that_says_what_to_do(
    index: Any, tmp_path: Path, page: bytes
) -> None:
    index.page = page
    done = get(index, tmp_path / "uv")
    assert done.returncode == 1
    assert f"uv {VERSION} cannot be taken from http://127.0.0.1:" in done.stderr
    assert done.stderr.endswith("or install uv yourself, or python3-venv.\n")


@pytest.mark.nightly  # an environment with pip takes seconds of processor time
def test_with_ensurepip_pip_installs_it(index: Any, tmp_path: Path) -> None:
    """The real pip, whose complaint of an index without uv is its own; the wheel would have been found there."""
    assert importlib.util.find_spec("ensurepip")
    index.page = b"<html></html>"
    command = [
        sys.executable,
        str(ROOT / "tools" / "get_uv.py"),
        VERSION,
        str(tmp_path / "uv" / "bin" / "uv"),
    ]
    address = f"http://127.0.0.1:{index.server_port}/simple"
    environment = os.environ | {"PIP_INDEX_URL": address, "PIP_FIND_LINKS": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"pip could not install uv {VERSION}" in done.stderr
    assert (tmp_path / "uv" / "bin" / "pip").exists()
