"""Load balancing: which consumer of a group gets which partitions, computed as in the original.

Partitions, `<broker>-<number>`, and consumers are sorted as text ("0-10" before "0-2").
"""

from __future__ import annotations

import bisect
import enum
import hashlib
import struct
from collections.abc import Sequence

VIRTUAL_NODES = 160
_POINTS = struct.Struct("<4I")


class LoadBalanceStrategyType(enum.Enum):
    DEFAULT = "default"
    """A range each; the first ones get one more if the division leaves a rest."""
    CONSIST = "consist"
    """Consistent hashing (ketama): few partitions move when a consumer joins or leaves."""


def partitions_of(
    consumer: str,
    consumers: Sequence[str],
    partitions: Sequence[str],
    strategy: LoadBalanceStrategyType = LoadBalanceStrategyType.DEFAULT,
) -> list[str]:
    """The partitions of `consumer`; none if it is not in `consumers`."""
    consumers, partitions = sorted(consumers), sorted(partitions)
    if consumer not in consumers:
        return []
    if strategy is LoadBalanceStrategyType.CONSIST:
        return _consistent(consumer, consumers, partitions)
    each, more = divmod(len(partitions), len(consumers))
    place = consumers.index(consumer)
    start = each * place + min(place, more)
    return partitions[start : start + each + (place < more)]


def _consistent(consumer: str, consumers: Sequence[str], partitions: Sequence[str]) -> list[str]:
    ring: dict[int, str] = {}
    for name in consumers:
        for i in range(VIRTUAL_NODES // 4):
            for point in _POINTS.unpack(_md5(f"{name}-{i}")):
                ring[point] = name
    points = sorted(ring)
    found = []
    for partition in partitions:
        at = bisect.bisect_left(points, _POINTS.unpack(_md5(partition))[0])
        if ring[points[at % len(points)]] == consumer:
            found.append(partition)
    return found


def _md5(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()
