"""The body format of a topic in its table: said once, kept in the table's properties, and changed together.

no table yet       as given; `infer` looks at the topic's first messages
nothing given      as the table has it
something given    the table's columns follow: new fields, wider numbers; anything else is refused
infer, once more   fields that the messages since the last commit have, too
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime

from mqlake.errors import MqlakeError, TableError
from mqlake.lake.bodies.body_format import BodyFormat
from mqlake.lake.bodies.decoder import BODY
from mqlake.lake.bodies.inference import SAMPLE
from mqlake.lake.dataset import scan
from mqlake.lake.tables.config import Topic
from mqlake.lake.tables.rows import TableRows
from mqlake.lake.tables.table import DECODER, EARLIER_DECODERS, Table, earlier_decoders


def infer_body_schema(topic: Topic) -> Topic:
    """The topic with a schema for its bodies, where that is to be inferred. ConfigError where it cannot be."""
    if not topic.bodies:
        return topic
    given = BodyFormat.from_spec(topic.bodies)
    return (
        replace(topic, bodies=given.with_sample(_sample(topic, None)).spec) if given.needs_sample else topic
    )


def evolve_table(topic: Topic, table: Table) -> Topic:
    """The topic with the format of bodies that its table has, after the table has followed the one that is given.

    Raises SchemaChangeError for one that it cannot follow, TableError for a table of raw bodies.
    """
    stored = table.properties.get(DECODER, "")
    if not topic.bodies or topic.bodies == stored:
        return topic
    if not stored:
        raise TableError(
            f"table {table.name} has the bodies as they are; a table with their columns needs a name of its own "
            "(--table NAME)"
        )
    before, given = BodyFormat.from_spec(stored), BodyFormat.from_spec(topic.bodies)
    if not given.inferred:
        after = given.following(before)
    elif before.inferred:
        after = before.with_sample(_sample(topic, table))
    else:
        raise TableError(
            f"the columns of table {table.name} were given: infer is for a table that began with it"
        )
    if after.spec != stored:
        earlier = json.dumps([*earlier_decoders(table.properties), stored])
        table.evolve(
            TableRows(topic.columns, after.body_columns).schema,
            {DECODER: after.spec, EARLIER_DECODERS: earlier},
        )
    return replace(topic, bodies=after.spec)


def _sample(topic: Topic, table: Table | None) -> list[bytes | None]:
    """Bodies of the first messages, or of those that came after the table's last commit."""
    state = table.head().state if table is not None else None
    if topic.namesrv:
        versions = table.versions() if table is not None else []
        start = datetime.fromtimestamp(versions[0].at / 1000, UTC) if state and versions else None
        return _first(topic, namesrv=topic.namesrv, start=start)
    found: list[bytes | None] = []
    for name, path in topic.stores.items():
        mark = state.stores.get(name) if state is not None else None
        try:
            found += _first(topic, path=path, start=None if mark is None else mark.offset)
        except MqlakeError:
            if mark is None:
                raise
            found += _first(topic, path=path)  # the log has gone on without its table; the run says so
    return found


def _first(
    topic: Topic,
    *,
    path: str | os.PathLike[str] | None = None,
    namesrv: str | None = None,
    start: object = None,
) -> list[bytes | None]:
    log = scan(path, topic.topic, columns=[BODY], namesrv=namesrv, start=start)  # type: ignore[arg-type]
    bodies: list[bytes | None] = log.head(SAMPLE).column(BODY).to_pylist()
    return bodies
