"""Streaming queries of tests. Spark gives the Python process of a stream 10 s to start, which a busy machine may not
make: such a query is started again, a bounded number of times. It goes on from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from mqlake.spark.error_messages import when_workers_start
from tests.waiting import PATIENCE_S, until

TRIES = int(PATIENCE_S // 10)

TRIES = 20
"""At 10 s each: as patient as other tests."""


def catch_up(writer: Callable[[], DataStreamWriter]) -> None:
    """Runs a query until it has read what there is. Raises its StreamingQueryException."""
    finish(lambda: writer().trigger(availableNow=True).start())


def finish(start: Callable[[], StreamingQuery]) -> None:
    """Waits until a query ends. Raises its StreamingQueryException."""
    when_workers_start(lambda: start().awaitTermination(), TRIES)


def follow(
    start: Callable[[], StreamingQuery], meanwhile: Callable[[], object] = lambda: None
) -> StreamingQuery:
    """A running query that has finished its first batch. Raises its StreamingQueryException."""

    def begin() -> StreamingQuery:
        query = start()

        def has_begun() -> bool:
            meanwhile()
            return query.lastProgress is not None or query.exception() is not None

        until(has_begun, "the stream's first batch")
        if (error := query.exception()) is not None:
            raise error
        return query

    return when_workers_start(begin, TRIES)
