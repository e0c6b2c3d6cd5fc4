"""`mqlake metaq migrate`, which is also `mqlake spark migrate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mqlake.cli.options import Whole, directory_argument, json_option, set_option
from mqlake.cli.output import (
    as_object,
    count_text,
    note,
    note_error,
    print_json,
    print_table,
    progress,
    size_text,
)
from mqlake.errors import ConfigError
from mqlake.lake.requirements import require_modules
from mqlake.spark.requirements import INSTALL_SPARK

if TYPE_CHECKING:
    from mqlake.migrate.report import MigrationReport

EXIT_DIFFERENT = 1


@click.command()
@directory_argument
@click.argument("store", metavar="STORE", type=click.Path())
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[=NEW]",
    help="Only this topic, perhaps with a new name; may be repeated.  [all topics]",
)
@click.option(
    "--attribute",
    type=click.Choice(["tag", "property"]),
    default="tag",
    show_default=True,
    help="What a message's attribute becomes: its tag, or the property METAQ_ATTRIBUTE.",
)
@click.option(
    "--zookeeper", metavar="HOST:PORT", help="Migrate the offsets of groups from this ZooKeeper.  [none]"
)
@click.option("--zk-root", default="/meta", show_default=True, help="MetaQ's root node there.")
@click.option(
    "--broker-id",
    type=Whole(0, 1023),
    default=0,
    show_default=True,
    help="The broker's number there.",
)
@set_option
@json_option
def migrate(
    directory: str,
    store: str,
    topics: tuple[str, ...],
    attribute: str,
    zookeeper: str | None,
    zk_root: str,
    broker_id: int,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """Turn a MetaQ data directory into a RocketMQ store.

    DIR is a MetaQ broker's dataPath. A partition becomes the queue with its number; ids become keys, attributes tags.
    STORE/metaq/offsets maps byte offsets to queue offsets. An interrupted run resumes where it was, and a later run
    adds new messages. At the end both sides are read again and compared: exit status 1 if they differ.
    """
    require_modules("pyarrow", command=INSTALL_SPARK)
    from mqlake.migrate.migration import migrate as run
    from mqlake.migrate.positions import consumer_positions

    names = dict(_renamed(text) for text in topics) if topics else None
    positions = consumer_positions(zookeeper, root=zk_root, broker_id=broker_id) if zookeeper else []
    with progress("migrating") as report_progress:
        report = run(
            directory,
            store,
            topics=names,
            attribute_as=attribute,
            positions=positions,
            settings=settings,
            progress=report_progress,
        )
    if as_json:
        print_json({"ok": report.ok, **as_object(report)})
    else:
        _print(report)
    if report.source_in_use:
        note("a broker writes to the source: when it has stopped, run this again for its last messages")
    if report.changed_attributes:
        note(
            f"{count_text(report.changed_attributes, 'attribute')} had control characters, which became blanks"
        )
    if not report.ok:
        note_error("the store and the source differ")
        sys.exit(EXIT_DIFFERENT)


def _print(report: MigrationReport) -> None:
    print_table(
        ["partition", "queue", "messages", "stored", "before", "bodies", ""],
        [
            (
                each.name,
                f"{each.to_topic}/{each.partition}",
                each.messages,
                each.stored,
                each.before,
                size_text(each.body_bytes),
                "the same" if each.same and each.messages == each.stored else "DIFFERENT",
            )
            for each in report.partitions
        ],
    )
    if report.positions:
        click.echo()
        print_table(
            ["group", "queue", "offset", "queue offset"],
            [
                (each.group, f"{each.topic}/{each.queue_id}", each.offset, each.queue_offset)
                for each in report.positions
            ],
        )
    count = sum(each.messages for each in report.partitions)
    click.echo(f"\n{count_text(count, 'message')} in {report.store}, {report.seconds:.1f} s")


def _renamed(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not old or (equals and not new):
        raise ConfigError(f"--topic {text!r}: NAME or NAME=NEW is needed")
    return old, new or old
