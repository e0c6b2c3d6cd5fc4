"""Parts outside Python that tests run: a test whose part is missing is skipped, counted and named at the end.

With MQLAKE_REQUIRE_PARTS set (as CI does) it fails instead: there nothing is left out silently.

    3 tests skipped: missing: Chromium, for the console in the tests; install it with: apt-get install chromium
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterable

from tools.parts import PARTS, find, problem

from mqlake.errors import MissingPartError

REQUIRED = "MQLAKE_REQUIRE_PARTS"
OF_MARKERS = {"java": ("java", "javac", "maven"), "spark": ("java",)}
"""What tests of these markers need."""
BY_COMMAND = {part.command: name for name, part in PARTS.items()}
_LABEL = "part "

problem_once = functools.cache(problem)


class PartMissingError(RuntimeError):
    """A part that the test needs is not on this machine; the text has the command that installs it."""


def needed(part: str) -> str:
    """The path of the part's command. Raises PartMissingError."""
    path = find(part)
    if path is None:
        raise PartMissingError(problem(part))
    return path


def are_required() -> bool:
    return bool(os.environ.get(REQUIRED))


def of_markers(markers: Iterable[str]) -> str | None:
    """What is wrong with the first missing part that a marker names."""
    parts = (part for marker in markers for part in OF_MARKERS.get(marker, ()))
    return next(filter(None, map(problem_once, parts)), None)


def missing_in(error: BaseException | None) -> str | None:
    """What is missing, if `error` comes of a missing part, be it a test's or one that mqlake itself names (Java)."""
    while error is not None:
        if isinstance(error, PartMissingError):
            return str(error)
        if isinstance(error, MissingPartError) and "Java" in str(error):
            return problem_once("java")
        if isinstance(error, FileNotFoundError) and (part := BY_COMMAND.get(str(error.filename))):
            return problem_once(part)
        error = error.__cause__ or error.__context__
    return None


def reason(trouble: str) -> str:
    """The reason of a skip, which `summary` recognizes."""
    return f"{_LABEL}{trouble}"


def summary(reasons: Iterable[str]) -> list[str]:
    """A line for each missing part: how many tests it kept from running, and the command that installs it."""
    counts = Counter(
        text.partition(_LABEL)[2] for text in reasons if text.removeprefix("Skipped: ").startswith(_LABEL)
    )
    return [
        f"{count} {'test' if count == 1 else 'tests'} skipped: {trouble}"
        for trouble, count in sorted(counts.items())
    ]
