"""`mqlake lake`: topics as Iceberg and Delta tables."""

from __future__ import annotations

import click

from mqlake.cli.lazy_group import LazyGroup

COMMANDS = {
    "run": ("mqlake.cli.lake.run:run", "Append what the log has and the tables lack."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def lake() -> None:
    """Topics as Iceberg and Delta tables, each message once; SQL over table and live log.

    PLACE is a lake.toml, the folder that has one, or the root directory of a store, DIR or NAME=DIR. Requires
    `pip install 'mqlake[lake]'`.
    """
