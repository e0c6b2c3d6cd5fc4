"""The lake part of `mqlake demo`: one airline's flights as an Iceberg table, and SQL over table and log.

log    ├── first half: in the table ──┤├── the rest: read from the log ──┤
DuckDB └──────────── one answer, equal to what the file comes to ─────────┘
"""

from __future__ import annotations

from mqlake.lake.bodies.body_format import BodyFormat
from mqlake.lake.tables.append_run import LocalEngine
from mqlake.lake.tables.config import Lake, LakeFile, Topic, table_name
from mqlake.lake.tables.query import query
from mqlake.lake.tables.topic import RunOptions, TopicTable, one_step
from mqlake_flights.questions import BODY_SCHEMA

BY_MONTH = """
    select value.month, count(*), count(value.dep_delay), coalesce(sum(value.dep_delay), 0)
    from {table} group by 1 order by 1
"""


def table_of(store: str, directory: str, topic: str) -> TopicTable:
    """The topic's table in a lake in `directory`, with about half of the log in it; a lake.toml names it."""
    bodies = BodyFormat.given(json=BODY_SCHEMA)
    assert bodies is not None
    given = Topic(topic, {"demo": store}, bodies=bodies.spec)
    lake = Lake(directory)
    kept = TopicTable.open(lake, given).source.lag(topic, None).kept or 1
    table = TopicTable.open(lake, given, RunOptions(bytes_max=max(1, kept // 2)))
    if table.table.head().state is None:
        one_step([table], LocalEngine())
    LakeFile(lake, {topic: given}).save(f"{directory}/lake.toml")
    return table


def delays_by_month(table: TopicTable) -> dict[int, tuple[int, int, int]]:
    """By month: flights, those that left, minutes of departure delay; of table and log."""
    _, rows = query(BY_MONTH.format(table=table_name(table.topic.topic)), [table])
    return {month: (flights, departed, int(minutes)) for month, flights, departed, minutes in rows}
