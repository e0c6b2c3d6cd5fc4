"""Findings: the results of a check of a store, each with the file and the byte it is about."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter

KEPT_OF_A_KIND = 100


class Severity(enum.Enum):
    DAMAGE = "damage"
    """Something is lost, wrong or cannot be found."""
    NOTE = "note"
    """Information: the next start of the store repairs it, or it is expected after what happened."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """`offset` counts bytes from the start of the file `path`."""

    severity: Severity
    kind: str
    path: str
    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}: byte {self.offset}: {self.kind}: {self.text}"


class Findings:
    """Collects findings: keeps the first hundred of each kind, and counts all."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.counts: Counter[tuple[Severity, str]] = Counter()

    def add(self, finding: Finding, count: int = 1) -> None:
        """`count`: how many like it this one stands for."""
        key = (finding.severity, finding.kind)
        if self.counts[key] < KEPT_OF_A_KIND:
            self.kept.append(finding)
        self.counts[key] += count

    def damage(self, kind: str, path: str, offset: int, text: str) -> None:
        self.add(Finding(Severity.DAMAGE, kind, path, offset, text))

    def note(self, kind: str, path: str, offset: int, text: str) -> None:
        self.add(Finding(Severity.NOTE, kind, path, offset, text))

    def of(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.kept if finding.severity is severity]

    @property
    def damage_count(self) -> int:
        return sum(count for (severity, _), count in self.counts.items() if severity is Severity.DAMAGE)
