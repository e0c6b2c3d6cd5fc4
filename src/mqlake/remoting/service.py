"""Service: started and closed by `async with`, or by hand."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Service:
    """`async with` starts it, and closes it in any case."""

    async def start(self) -> None:
        """Starts background work, if there is any."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
