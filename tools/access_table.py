"""Writes the table of requests in docs/access-control.md from mqlake.auth.requests; --check only says whether it is up
to date."""

from __future__ import annotations

import sys
from pathlib import Path

from mqlake.auth.requests import RULES, Rule

PAGE = Path(__file__).resolve().parent.parent / "docs" / "access-control.md"
BEGIN, END = "<!-- made by tools/access_table.py -->", "<!-- end -->"


def table() -> str:
    """A row for each request code."""
    lines = ["| code | request | needs | RocketMQ 5.3.3 |", "|---|---|---|---|"]
    lines += [row(RULES[code]) for code in sorted(RULES)]
    return "\n".join(lines)


def row(rule: Rule) -> str:
    return f"| {rule.code} | {rule.name} | {rule.text} | {rule.differs or 'the same'} |"


def with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        if page == with_table(page):
            print(f"{PAGE.name}: up to date")
            return 0
        print(f"{PAGE} is not what the code says; run: .venv/bin/python tools/access_table.py")
        return 1
    PAGE.write_text(with_table(page), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
