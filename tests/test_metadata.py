"""The wheel's metadata: a description that makes sense away from the repository, and pages that exist."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RELATIVE_LINK = re.compile(r"\]\((?!https?://)")
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hook() -> Iterator[Any]:
    """tools.metadata; of hatchling, which is there in builds only, it gets the class it derives from."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    vars(interface)["MetadataHookInterface"] = object
    with pytest.MonkeyPatch.context() as patch:
        for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
            patch.setitem(sys.modules, name, ModuleType(name))
        patch.setitem(sys.modules, interface.__name__, interface)
        from tools import metadata as module

        yield module


def test_without_an_address_links_are_their_text(hook: Any) -> None:
    text = hook.description(README, "")
    assert RELATIVE_LINK.search(README)
    assert not RELATIVE_LINK.search(text)
    assert "| docs/broker.md |" in text
    assert text.count("\n") == README.count("\n")
    assert hook.urls("") == {"Apache RocketMQ": "https://rocketmq.apache.org/"}


def test_with_an_address_links_lead_to_files_that_exist(hook: Any) -> None:
    address = "https://example.org/mq/lake"
    text = hook.description(README, address)
    assert not RELATIVE_LINK.search(text)
    pages = re.findall(rf"{address}/blob/main/([\w./-]+)", text) + [
        url.removeprefix(f"{address}/blob/main/")
        for url in hook.urls(address).values()
        if url.startswith(f"{address}/")
    ]
    assert "docs/broker.md" in pages
    assert "SECURITY.md" in pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_the_hook_makes_the_installed_metadata() -> None:
    found = metadata("mqlake")
    assert "Apache RocketMQ, https://rocketmq.apache.org/" in found.get_all("Project-URL", [])
    assert found.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert not RELATIVE_LINK.search(str(found.get_payload() or found["Description"]))


def test_the_trademarks_are_named() -> None:
    for name in ("README.md", "NOTICE"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert "trademarks of the Apache Software Foundation" in text
        assert "not affiliated with the Foundation" in text
