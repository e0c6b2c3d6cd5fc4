"""`mqlake spark ingest | compact | replay`."""

from __future__ import annotations

from typing import Any

import click

from mqlake.cli.options import Whole, assignments, json_option, set_option
from mqlake.cli.output import as_object, count_text, print_json, print_table
from mqlake.cli.spark.shared import Where, check_stores, job, spark_options, wanted_options
from mqlake.errors import ConfigError


def _show_written(path: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    messages = sum(row["messages"] for row in rows)
    if as_json:
        print_json({"path": path, "messages": messages, "queues": as_object(rows)})
        return
    print_table(
        ["topic", "queue", "messages"], [[row["topic"], row["queueId"], row["messages"]] for row in rows]
    )
    click.echo(f"\n{path}: {count_text(messages, 'message')}")


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--to-broker", "namesrv", metavar="HOST:PORT", help="Send to the cluster of this name server.")
@click.option(
    "--to-store", "store", metavar="DIR", type=click.Path(), help="Write a new store to this directory."
)
@click.option(
    "--format",
    "kind",
    metavar="FORMAT",
    help="parquet, csv, json, orc, text, …; by default taken from the file extension.",
)
@click.option(
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=assignments,
    help="Option of the format; repeatable.",
)
@click.option("--topic", metavar="TOPIC", help="Topic for all rows.")
@click.option("--topic-from", "topic_sql", metavar="SQL", help="Topic of each row; default: column `topic`.")
@click.option(
    "--body-from", "body", metavar="SQL", help="Body of each row; default: column `body`, or the row as JSON."
)
@click.option(
    "--keys-from", "keys", metavar="SQL", help="Keys of each row; default: column `keys`, if there is one."
)
@click.option(
    "--tags-from", "tags", metavar="SQL", help="Tags of each row; default: column `tags`, if there is one."
)
@click.option(
    "--order-by", "sharding_key", metavar="SQL", help="Rows with equal values go to one queue, in order."
)
@click.option(
    "--property",
    "properties",
    metavar="NAME=SQL",
    multiple=True,
    callback=assignments,
    help="Property of the messages; repeatable.",
)
@click.option(
    "--queues",
    type=Whole(1),
    default=4,
    show_default=True,
    help="Number of queues per topic of a new store.",
)
@set_option
@json_option
@spark_options
def ingest(
    files: tuple[str, ...],
    namesrv: str | None,
    store: str | None,
    kind: str | None,
    options: dict[str, str],
    queues: int,
    settings: dict[str, str],
    as_json: bool,
    where: Where,
    **shape: Any,
) -> None:
    """Turn rows of files into messages, sent to brokers or written to a new store that RocketMQ can open.

    SQL is a Spark SQL expression over the columns of a row, such as a column name. Brokers get each row at least
    once; a new store appears when it is complete.
    """
    if (namesrv is None) == (store is None):
        raise ConfigError("use either --to-broker or --to-store")
    with job(where, "ingesting") as spark:
        from mqlake.spark.jobs.ingest import read_rows, to_brokers
        from mqlake.spark.jobs.messages import Shape, shaped, write_store

        rows = read_rows(spark, *files, kind=kind, options=options)
        messages = shaped(rows, Shape(**shape))
        if store is not None:
            written = write_store(messages, store, queues=queues, settings=settings)
            result = [row.asDict() for row in written.collect()]
        else:
            assert namesrv is not None
            sent = messages.count()
            to_brokers(messages, namesrv)
    if store is not None:
        _show_written(store, result, as_json)
    elif as_json:
        print_json({"namesrv": namesrv, "messages": sent})
    else:
        click.echo(f"{count_text(sent, 'message')} sent")


@click.command()
@click.argument("directories", metavar="DIR... OUT", nargs=-1, required=True, type=click.Path())
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; repeatable.")
@set_option
@json_option
@spark_options
def compact(
    directories: tuple[str, ...],
    topics: tuple[str, ...],
    settings: dict[str, str],
    as_json: bool,
    where: Where,
) -> None:
    """Write the last message of each key in the stores DIR... to a new store OUT.

    As in RocketMQ's compaction topics, an empty body deletes its key. Messages without keys are dropped.
    """
    *stores, out = directories
    if not stores:
        raise ConfigError("DIR or OUT is missing: name at least one store, and the directory of the new one")
    check_stores(*stores)
    with job(where, "compacting") as spark:
        import mqlake.spark
        from mqlake.spark.jobs.compact import COLUMNS
        from mqlake.spark.jobs.compact import compact as compact_job

        options = {"topics": list(topics)} if topics else {}
        messages = mqlake.spark.read_log(spark, *stores, columns=COLUMNS, **options)
        rows = [row.asDict() for row in compact_job(messages, out, settings=settings).collect()]
    _show_written(out, rows, as_json)


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@wanted_options
@click.option(
    "--to-broker", "namesrv", metavar="HOST:PORT", required=True, help="Name server of the cluster."
)
@click.option(
    "--to-topic", "topic", metavar="TOPIC", help="Topic for all messages; default: their own topics."
)
@click.option("--ordered", is_flag=True, help="Send messages of one queue to one queue, in order.")
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@json_option
@spark_options
def replay(
    directories: tuple[str, ...],
    namesrv: str,
    topic: str | None,
    ordered: bool,
    dry_run: bool,
    as_json: bool,
    where: Where,
    **wanted: Any,
) -> None:
    """Send stored messages again, to another topic or another cluster: all of them, or those that match.

    Each message is sent at least once, except those without a body, which brokers refuse. Keys, tags and properties
    of the application are kept.
    """
    check_stores(*directories)
    with job(where, "replaying") as spark:
        from mqlake.spark.jobs.replay import replay as replay_job
        from mqlake.spark.jobs.replay import sendable
        from mqlake.spark.jobs.search import Wanted, search

        messages = search(spark, *directories, wanted=Wanted(**wanted))
        found, count = messages.count(), sendable(messages).count()
        if not dry_run:
            replay_job(messages, namesrv, topic=topic, ordered=ordered)
    if as_json:
        print_json({"namesrv": namesrv, "messages": count, "withoutBody": found - count, "dryRun": dry_run})
    else:
        click.echo(f"{count_text(count, 'message')} {'would be sent' if dry_run else 'sent'}")
        if found > count:
            click.echo(
                f"{count_text(found - count, 'message')} without a body left out, which brokers refuse"
            )
