"""Keeps the lines of prose in the documents within 100 columns, so that a diff shows what changed; --fix wraps them.

Tables, code, headings, comments and longer links stay as they are, and so does a paragraph that fits.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
WIDTH = 100
ITEM = re.compile(r"(\s*)([-*] |\d+\. )?")
HELD = "\0"
"""Stands for a space at which no line may be broken: in `code`, and before what would begin an item."""
VERBATIM = "\0verbatim"


def wrapped(text: str) -> str:
    return "\n".join(line for block in _blocks(text.split("\n")) for line in _fitting(block))


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Paragraphs and items of lists; and every other line by itself, after VERBATIM."""
    block: list[str] = []
    is_code = is_comment = False
    for line in lines:
        is_comment |= line.startswith("<!--")
        is_fence = line.lstrip().startswith("```")
        is_drawing = not block and line.startswith("    ")
        if is_code or is_comment or is_fence or is_drawing or not line.strip() or line.lstrip()[0] in "#|>":
            yield block
            yield [VERBATIM, line]
            block = []
            is_code ^= is_fence
            is_comment &= "-->" not in line
            continue
        if ITEM.match(line)[2]:  # type: ignore[index]
            yield block
            block = []
        block.append(line)
    yield block


def _fitting(block: list[str]) -> list[str]:
    if block[:1] == [VERBATIM]:
        return block[1:]
    if all(len(line) <= WIDTH for line in block):
        return block
    item = ITEM.match(block[0])
    assert item is not None
    text = " ".join(line.strip() for line in block)
    text = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", HELD), text)
    text = re.sub(r" (?=([-*#|>+]|\d+\.) )", HELD, text[len(item[2] or "") :])
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=item[0], subsequent_indent=" " * len(item[0]), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(HELD, " ") for line in lines]


def main(fix: bool) -> int:
    found = 0
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        if (better := wrapped(text)) != text:
            found += 1
            print(f"{path.relative_to(ROOT)}: {'wrapped' if fix else 'prose is wider than 100 columns'}")
            if fix:
                path.write_text(better, encoding="utf-8")
    if found and not fix:
        print("`make format` wraps it")
    elif not found:
        print(f"prose: {len(DOCUMENTS)} documents, at most {WIDTH} columns")
    return int(bool(found) and not fix)


if __name__ == "__main__":
    sys.exit(main("--fix" in sys.argv[1:]))
