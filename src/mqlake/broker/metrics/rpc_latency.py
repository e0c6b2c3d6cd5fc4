"""RpcLatencies: how long requests took, by code and answer, as RocketMQ's histogram rocketmq_rpc_latency counts it.

    latencies.processor_table()     a table for a server, whose processors are measured
    latencies.record(...)           for fast paths, which answer many requests at once
    latencies.sources               of those that count by themselves: asked whenever somebody looks at the histograms

A request's time runs from the call of its processor to its answer; for a held pull it includes the wait
(`is_long_polling`). Requests that were never answered because their client disconnected are not counted. There is one
series for each (request code, response code, held, one way) that has occurred.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mqlake.base.histogram import Histogram
from mqlake.errors import ResponseError
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import ONEWAY_FLAG, RemotingCommand
from mqlake.remoting.connection import Answer, Connection, Processor, ProcessorTable

BUCKETS_MS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
_PULLS = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))


@dataclass(frozen=True, slots=True)
class Rpc:
    """The labels of one series."""

    request_code: int
    response_code: int
    is_long_polling: bool
    oneway: bool


class RpcLatencies:
    """On the event loop."""

    def __init__(self) -> None:
        self._histograms: dict[Rpc, Histogram] = {}
        self.sources: list[Callable[[], Iterable[tuple[Rpc, int, int]]]] = []
        """Requests of less than a millisecond since the last call: kind, how many, and nanoseconds of all."""

    @property
    def histograms(self) -> dict[Rpc, Histogram]:
        for source in self.sources:
            for rpc, count, elapsed_ns in source():
                histogram = self._histogram(rpc)
                histogram.add(0, 0, count)
                histogram.sum += elapsed_ns
        return self._histograms

    def record(self, rpc: Rpc, elapsed_ns: int, times: int = 1) -> None:
        """Counts `times` requests of the same duration. RocketMQ counts whole milliseconds."""
        if times:
            self._histogram(rpc).add(elapsed_ns // 1_000_000, elapsed_ns, times)

    def _histogram(self, rpc: Rpc) -> Histogram:
        histogram = self._histograms.get(rpc)
        if histogram is None:
            histogram = self._histograms[rpc] = Histogram(BUCKETS_MS)
        return histogram

    def processor_table(self) -> ProcessorTable:
        return _MeasuredTable(self)


class _MeasuredTable(ProcessorTable):
    def __init__(self, latencies: RpcLatencies) -> None:
        super().__init__()
        self._latencies = latencies

    def register(self, codes: int | Iterable[int], processor: Processor) -> None:
        for code in (codes,) if isinstance(codes, int) else codes:
            super().register(code, processor)
            is_async = self._processors[int(code)][1]
            self._processors[int(code)] = (self._measured(int(code), processor), is_async)

    def _measured(self, code: int, processor: Processor) -> Processor:
        def measured(connection: Connection, request: RemotingCommand) -> Answer | asyncio.Future[Answer]:
            began = time.monotonic_ns()
            oneway = request.flag & ONEWAY_FLAG != 0

            def answered(response_code: int, held: bool = False) -> None:
                elapsed = time.monotonic_ns() - began
                self._latencies.record(Rpc(code, int(response_code), held, oneway), elapsed)

            try:
                answer = processor(connection, request)
            except Exception as error:
                answered(_code_of(error))
                raise
            if answer is None:
                return None
            if isinstance(answer, RemotingCommand):
                answered(answer.code)
                return answer
            # a pull from disk is a coroutine, one that waits for the dispatch of its messages a task
            held = (
                code in _PULLS and isinstance(answer, asyncio.Future) and not isinstance(answer, asyncio.Task)
            )
            later = asyncio.ensure_future(answer)

            def done(later: asyncio.Future[Answer]) -> None:
                if later.cancelled():
                    return
                if (error := later.exception()) is not None:
                    answered(_code_of(error), held)
                elif (answer := later.result()) is not None:
                    answered(answer.code, held)

            later.add_done_callback(done)
            return later

        return measured


def _code_of(error: BaseException) -> int:
    return error.code if isinstance(error, ResponseError) else ResponseCode.SYSTEM_ERROR
