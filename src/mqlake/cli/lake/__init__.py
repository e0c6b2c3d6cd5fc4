"""`mqlake lake`: topics as Iceberg and Delta tables."""

from __future__ import annotations

import click

from mqlake.cli.lazy_group import LazyGroup

COMMANDS = {
    "add": ("mqlake.cli.lake.run:add", "Add topics to a lake.toml, which run then keeps up to date."),
    "run": ("mqlake.cli.lake.run:run", "Append what the log has and the tables lack."),
    "status": ("mqlake.cli.lake.inspect:status", "Show how far each table is, and its lag."),
    "query": ("mqlake.cli.lake.inspect:query", "SQL over tables and what the log has after them."),
    "verify": ("mqlake.cli.lake.inspect:verify", "Prove that each message is in its table once."),
    "rewind": ("mqlake.cli.lake.maintain:rewind", "Take tables back to an earlier version."),
    "compact": ("mqlake.cli.lake.maintain:compact", "Make large data files of small ones."),
    "expire": ("mqlake.cli.lake.maintain:expire", "Forget old versions and delete their files."),
    "orphans": ("mqlake.cli.lake.maintain:orphans", "List, or delete, files that no table knows."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def lake() -> None:
    """Topics as Iceberg and Delta tables, each message once; SQL over table and live log.

    PLACE is a lake.toml, the folder that has one, or the root directory of a store, DIR or NAME=DIR. Requires
    `pip install 'mqlake[lake]'`.
    """
