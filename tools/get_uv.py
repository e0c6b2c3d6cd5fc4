"""Gets uv, which makes the environments: `python tools/get_uv.py 0.13.8 .uv/bin/uv`.

    this Python can make an environment with pip (venv and ensurepip)   pip installs it, as pip is configured
    it cannot: Debian and Ubuntu without python3-venv                   its wheel is taken from the package index
                                                                        by what every Python has, and unpacked

The index is UV_DEFAULT_INDEX, UV_INDEX_URL or PIP_INDEX_URL, in this order, else PyPI: a page that lists the files, in
JSON or HTML. A file whose SHA-256 is not what the index says is refused. Proxies and certificates are those of the
environment (https_proxy, SSL_CERT_FILE).

The Makefile runs it before there is any environment, so it needs nothing but Python 3.11.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import html.parser
import importlib.util
import io
import json
import os
import platform
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import venv
import zipfile
from pathlib import Path

PYPI = "https://pypi.org/simple"
INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
PAGE = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
LIMIT_S = 180
"""Of waiting for the next bytes."""


class CannotGetError(Exception):
    """No uv could be had; the text says why, and what would help."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("command", type=Path, help="where it is put; its environment is two folders above")
    given = parser.parse_args(arguments)
    try:
        if can_make_environments():
            by_pip(given.version, given.command)
        else:
            by_wheel(given.version, given.command)
    except CannotGetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def can_make_environments() -> bool:
    """True if this Python has pip to put into an environment: distributions have it in a package of its own."""
    return bool(importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"))


def by_pip(version: str, command: Path) -> None:
    place = command.parent.parent
    try:
        venv.create(place, with_pip=True, clear=True, symlinks=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        python = command.parent / "python"
        subprocess.run([python, "-m", "pip", "install", *quiet, f"uv=={version}"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotGetError(f"pip could not install uv {version}: {error}") from error


def by_wheel(version: str, command: Path) -> None:
    """ConnectionError and all else that can go wrong is a CannotGetError."""
    index = next((value for name in INDEXES if (value := os.environ.get(name))), PYPI)
    print(f"taking uv {version} from {without_password(index)}", file=sys.stderr, flush=True)
    try:
        address, digest = wheel(index, version)
        data = fetch(address)
        if digest and hashlib.sha256(data).hexdigest() != digest:
            raise CannotGetError(f"{without_password(address)} is not what the index says: another SHA-256")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            binary = archive.read(f"uv-{version}.data/scripts/uv")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise CannotGetError(
            f"uv {version} cannot be taken from {without_password(index)}: {error}\n"
            "Set PIP_INDEX_URL to an index that can be reached, or install uv yourself, or python3-venv."
        ) from error
    command.parent.mkdir(parents=True, exist_ok=True)
    made = command.with_name(f"{command.name}.new")  # never half a command
    made.write_bytes(binary)
    made.chmod(0o755)
    made.replace(command)


def wheel(index: str, version: str) -> tuple[str, str]:
    """(address, SHA-256 or "") of the wheel for this machine."""
    page = f"{index.rstrip('/')}/uv/"
    found = [each for each in files(page, fetch(page)) if fits(each[0], version)]
    if not found:
        raise ValueError(f"no wheel for Linux on {platform.machine()}")
    _, address, digest = found[0]
    return address, digest


def files(page: str, listed: bytes) -> list[tuple[str, str, str]]:
    """(name, address, SHA-256 or "") of the files that an index lists."""
    text = listed.decode()
    if text.lstrip().startswith("{"):
        return [
            (each["filename"], urllib.parse.urljoin(page, each["url"]), each["hashes"].get("sha256", ""))
            for each in json.loads(text)["files"]
        ]
    links = Links()
    links.feed(text)
    found = []
    for link in links.found:
        address, _, fragment = urllib.parse.urljoin(page, link).partition("#")
        name = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rpartition("/")[2])
        found.append((name, address, fragment.removeprefix("sha256=") if "sha256=" in fragment else ""))
    return found


def fits(name: str, version: str) -> bool:
    """True of the wheel for this machine's processor and C library."""
    library = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    start, end = f"uv-{version}-py3-none-", ".whl"
    if not (name.startswith(start) and name.endswith(end)):
        return False
    tags = name[len(start) : -len(end)].split(".")
    return any(tag.startswith(library) and tag.endswith(f"_{platform.machine()}") for tag in tags)


class Links(html.parser.HTMLParser):
    """Where the links of a page lead."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if (tag, name) == ("a", "href") and value]


def fetch(address: str) -> bytes:
    """Raises OSError, of which urllib's errors are."""
    bare, authorization = split_password(address)
    asked = urllib.request.Request(bare, headers={"Accept": PAGE} | authorization)
    with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
        data: bytes = answer.read()
    return data


def split_password(address: str) -> tuple[str, dict[str, str]]:
    """The address without what stands before its @, and that as a header: urllib takes it for the host's name."""
    parts = urllib.parse.urlsplit(address)
    who, at, host = parts.netloc.rpartition("@")
    if not at:
        return address, {}
    secret = base64.b64encode(urllib.parse.unquote(who).encode()).decode()
    return parts._replace(netloc=host).geturl(), {"Authorization": f"Basic {secret}"}


def without_password(address: str) -> str:
    return split_password(address)[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
