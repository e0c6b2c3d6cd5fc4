"""`mqlake spark`: the pipeline's jobs, on this machine's cores or on a cluster."""

from __future__ import annotations

import click

from mqlake.cli.lazy_group import LazyGroup

COMMANDS = {
    "verify": ("mqlake.cli.spark.check:verify", "Audit stores in parallel; a report with pictures."),
    "rebuild": ("mqlake.cli.spark.check:rebuild", "Make consume queues and index anew, in parallel."),
    "diff": ("mqlake.cli.spark.check:diff", "What two stores do not have in common."),
    "search": ("mqlake.cli.spark.read:search", "Find messages by key, tag, time, text or SQL."),
    "stats": ("mqlake.cli.spark.read:stats", "Rates, sizes, latencies, top keys, skew; with plots."),
    "export": ("mqlake.cli.spark.read:export", "Messages to Parquet, each once, run after run."),
    "ingest": ("mqlake.cli.spark.write:ingest", "Parquet, CSV, JSON, … to brokers or to a new store."),
    "compact": ("mqlake.cli.spark.write:compact", "The last message of each key, as a new store."),
    "migrate": ("mqlake.cli.metaq.migrate:migrate", "Turn a MetaQ data directory into a RocketMQ store."),
    "replay": ("mqlake.cli.spark.write:replay", "Send stored messages again, to a topic or a cluster."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def spark() -> None:
    """Jobs over whole logs with Apache Spark, on all cores or with --master on a cluster.

    DIR is a store's root directory. Needed: Java 17 and pip install 'mqlake[spark]'.
    """
