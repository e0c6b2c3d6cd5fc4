"""`mqlake spark`: jobs over whole logs, on all cores or on a cluster."""

from __future__ import annotations

import click

from mqlake.cli.lazy_group import LazyGroup

COMMANDS = {
    "verify": ("mqlake.cli.spark.check:verify", "Verify stores in parallel; report with charts."),
    "rebuild": ("mqlake.cli.spark.check:rebuild", "Rebuild consume queues and index in parallel."),
    "diff": ("mqlake.cli.spark.check:diff", "Compare two stores."),
    "search": ("mqlake.cli.spark.read:search", "Find messages by key, tag, time, text or SQL."),
    "stats": ("mqlake.cli.spark.read:stats", "Show rates, sizes, latencies, top keys and skew; with plots."),
    "export": ("mqlake.cli.spark.read:export", "Export messages to Parquet, exactly once, incrementally."),
    "ingest": (
        "mqlake.cli.spark.write:ingest",
        "Send rows of Parquet, CSV, JSON, … to brokers or to a new store.",
    ),
    "compact": ("mqlake.cli.spark.write:compact", "Write the last message of each key to a new store."),
    "migrate": ("mqlake.cli.metaq.migrate:migrate", "Turn a MetaQ data directory into a RocketMQ store."),
    "replay": ("mqlake.cli.spark.write:replay", "Send stored messages again, to a topic or a cluster."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def spark() -> None:
    """Jobs over whole logs with Apache Spark, on all cores, or on a cluster with --master.

    DIR is the root directory of a store. Requires Java 17 or newer and `pip install 'mqlake[spark]'`.
    """
