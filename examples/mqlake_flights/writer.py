"""The process of the demo that writes: it puts flights into a store until it is done or killed.

    python -m mqlake_flights.writer STORE ROWS [HOLD]

It says how far it has come as JSON lines on stdout: what recovery found and which row comes next, then the
number of rows that the store has acknowledged. Where to go on it asks the store alone. At row HOLD it stops and
waits to be killed: rows are put so fast that a small demo would be over before the signal comes.
"""

from __future__ import annotations

import logging
import signal
import sys
import time

import orjson

from mqlake.errors import StoreError
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.recovery import RecoveryReport
from mqlake.store.results import PutMessageStatus
from mqlake_flights.flights import QUEUES, ROW_PROPERTY, TOPIC_PREFIX, airlines, read_flights

SETTINGS = {
    "mappedFileSizeCommitLog": 64 << 20,  # small enough that the demo fills some of them
    "maxHashSlotNum": 500_000,
    "maxIndexNum": 2_000_000,
}
REPORT_INTERVAL_S = 0.02


def say(**values: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(values) + b"\n")
    sys.stdout.buffer.flush()


def next_row(store: DefaultMessageStore) -> int:
    """The first row that the store does not have.

    Rows are put in order, so it is the number of messages; the newest message must carry the row before it.
    Raises StoreError when it does not.
    """
    count, newest = 0, -1
    for airline in airlines():
        topic = f"{TOPIC_PREFIX}{airline}"
        for queue_id in range(QUEUES):
            end = store.max_offset_in_queue(topic, queue_id)
            count += end
            if end:
                (last,) = store.get_message("demo", topic, queue_id, end - 1, 1).messages()
                newest = max(newest, int(last.properties[ROW_PROPERTY]))
    if newest != count - 1:
        raise StoreError(f"the store holds {count} flights, but the newest is row {newest}: some are missing")
    return count


def write(path: str, rows: int, hold: int | None) -> None:
    def recovered(report: RecoveryReport) -> None:
        say(event="recovered", text=report.describe(), records=report.records_scanned, seconds=report.seconds)

    with open_store(path, SETTINGS, on_recovered=recovered) as store:
        first = next_row(store)
        say(event="open", rows=first)
        told = time.monotonic()
        put = first
        for flight in read_flights(first, rows):
            result = store.put_message(flight.message())
            if result.status is not PutMessageStatus.PUT_OK:
                raise StoreError(f"row {flight.row} was refused: {result.status.value} ({result.reason})")
            put += 1
            now = time.monotonic()
            if now - told >= REPORT_INTERVAL_S or put == hold:
                told = now
                say(event="put", rows=put)
            if put == hold:
                signal.pause()
        say(event="put", rows=put)
    say(event="closed", rows=put)


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="  %(message)s")
    path, rows, *rest = arguments
    try:
        write(path, int(rows), int(rest[0]) if rest else None)
    except (StoreError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
