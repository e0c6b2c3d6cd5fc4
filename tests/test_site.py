"""The documentation: it builds as a site without a warning, and no link of a document is dead.

Without this a page that is renamed leaves links to nowhere, and a docstring that Sphinx cannot read reaches readers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path for folder in (".", "docs", "bench", "examples", "deploy") for path in (ROOT / folder).glob("*.md")
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def anchors(document: Path) -> set[str]:
    """As forges name headings: lower case, without punctuation, spaces as hyphens."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> list[str]:
    dead = []
    for link in LINK.findall(document.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_link_is_dead(document: Path) -> None:
    assert dead_links(document) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One two\n[a](#one-two) [b](#three) [c](gone.md) [d](page.md#one-two) [e](https://host/)\n"
    )
    assert dead_links(page) == ["#three", "gone.md"]


@pytest.mark.nightly
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", "docs"]
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "MQLAKE_VERSIONS": "0.1.0=/0.1.0/ 0.0.9=/0.0.9/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first = (tmp_path / "README.html").read_text(encoding="utf-8")
    assert 'href="client.html"' in first and "/0.0.9/" in first
    client = (tmp_path / "site" / "api-client.html").read_text(encoding="utf-8")
    assert "mqlake.client.Producer.send" in client and "mqlake.client.blocking.PushConsumer" in client
    assert (tmp_path / "searchindex.js").stat().st_size > 10_000
