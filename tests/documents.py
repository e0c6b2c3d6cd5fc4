"""Code blocks of the documents, for tests that run what they show."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Language and text of a page's blocks in these languages, in their order; `page`: as docs/client.md."""
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [(language, text) for language, text in found if language in languages]


def snippets(page: str, language: str) -> list[str]:
    return [text for _, text in blocks(page, language)]
