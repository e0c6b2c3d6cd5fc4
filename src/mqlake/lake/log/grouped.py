"""Small items grouped into the work of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

ITEMS_A_TASK_MAX = 4096

T = TypeVar("T")


def grouped(items: Iterable[T], size_of: Callable[[T], int], size_max: int) -> list[tuple[T, ...]]:
    """Consecutive items in groups of at most `size_max`, unless a single one is larger, and ITEMS_A_TASK_MAX items."""
    groups: list[tuple[T, ...]] = []
    group: list[T] = []
    size = 0
    for item in items:
        added = size_of(item)
        if group and (size + added > size_max or len(group) == ITEMS_A_TASK_MAX):
            groups.append(tuple(group))
            group, size = [], 0
        group.append(item)
        size += added
    return [*groups, tuple(group)] if group else groups
