"""Places of archives that behave as real ones sometimes do: a directory (fsspec's own) behind calls that fail, lie
or end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from mqlake.errors import ArchiveUnavailableError
from mqlake.store.archive.target import Target


class Killed(BaseException):
    """What follows a step did not happen: the process is gone."""


class Place(Target):
    """Counts calls; `on_call(name of the call, object)` is asked before each and may raise."""

    def __init__(self, url: str, on_call: Callable[[str, str], None] = lambda call, name: None) -> None:
        super().__init__(url)
        self.calls: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.on_call = on_call

    def _called(self, call: str, name: str) -> None:
        self.calls[call] += 1
        self.on_call(call, name)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self._called("read", name)
        return super().read(name, start, end)

    def size(self, name: str) -> int | None:
        self._called("size", name)
        return super().size(name)

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        self._called("write", name)
        self.written[name] += 1
        super().write(name, pieces)

    def replace(self, name: str, data: bytes) -> None:
        self._called("replace", name)
        super().replace(name, data)

    def delete(self, name: str) -> None:
        self._called("delete", name)
        super().delete(name)


class DyingPlace(Place):
    """The process dies before, or (`after`) after, its n-th change of the place."""

    def __init__(self, url: str, steps: int, *, after: bool) -> None:
        self._left, self._after = steps, after
        super().__init__(url)

    def _change(self, change: Callable[[], None]) -> None:
        self._left -= 1
        if self._left < 0 and not self._after:
            raise Killed
        change()
        if self._left < 0:
            raise Killed

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        self._change(lambda: super(DyingPlace, self).write(name, pieces))

    def replace(self, name: str, data: bytes) -> None:
        self._change(lambda: super(DyingPlace, self).replace(name, data))

    def delete(self, name: str) -> None:
        self._change(lambda: super(DyingPlace, self).delete(name))


class FlakyPlace(Place):
    """Half of all calls fail; some reads are cut short."""

    def __init__(self, url: str, seed: int = 7) -> None:
        self._random = random.Random(seed)
        super().__init__(url, self._fail)

    def _fail(self, call: str, name: str) -> None:
        if self._random.random() < 0.5:
            raise ArchiveUnavailableError(f"{self.url}/{name} cannot be reached: 503 Slow Down")


def tries(call: Callable[[], object], most: int = 2000) -> int:
    """Calls until it works; how often it failed."""
    for failures in range(most):
        with suppress(ArchiveUnavailableError):
            call()
            return failures
    raise AssertionError(f"it did not work {most} times")
