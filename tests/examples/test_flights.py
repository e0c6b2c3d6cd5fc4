from __future__ import annotations

import itertools
import os

import orjson
import pytest

from mqlake_flights.flights import QUEUES, ROWS_IN_ALL, airlines, count_truth, read_flights


def test_the_first_flight() -> None:
    flight = next(read_flights())
    message = flight.message()
    assert (message.topic, message.tags, message.keys) == ("flights-UA", "EWR", "N14228 UA1545")
    assert 0 <= message.queue_id < QUEUES
    assert message.born_timestamp == 1_357_034_400_000  # 2013-01-01 05:00 in New York
    assert message.properties["row"] == "0"
    body = orjson.loads(message.body)
    assert (body["year"], body["dep_delay"], body["dest"], body["tailnum"]) == (2013, 2, "IAH", "N14228")


def test_rows_can_be_taken_from_the_middle() -> None:
    assert list(read_flights(5, 9)) == list(itertools.islice(read_flights(), 5, 9))


def test_missing_values() -> None:
    flight = next(each for each in read_flights(stop=2000) if each.values["tailnum"] is None)
    assert flight.values["dep_delay"] is None
    assert flight.keys == [f"{flight.values['carrier']}{flight.values['flight']}"]


def test_truth_of_a_part() -> None:
    truth = count_truth(500)
    assert truth.rows == sum(truth.by_airline.values()) == sum(truth.by_queue.values()) == 500
    assert truth.dep_delay == sum(truth.delay_by_airline_month.values())
    assert set(truth.by_airline) <= set(airlines())


@pytest.mark.campaign
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=1 asks for it")
def test_the_whole_year() -> None:
    truth = count_truth(None)
    assert truth.rows == ROWS_IN_ALL
    assert truth.departed == 328_521
    assert {month for _, month in truth.by_airline_month} == set(range(1, 13))
