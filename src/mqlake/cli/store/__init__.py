"""`mqlake store`: commands for a store directory."""

from __future__ import annotations

import click

from mqlake.base.open_files import raise_open_files_limit
from mqlake.cli.lazy_group import LazyGroup

COMMANDS = {
    "info": ("mqlake.cli.store.read:info", "Show files, offsets, topics, queues, checkpoint and state."),
    "dump": ("mqlake.cli.store.read:dump", "Print records from an offset, a queue offset or a time."),
    "search": ("mqlake.cli.store.read:search", "Find messages by key, id, time, tag or topic."),
    "verify": (
        "mqlake.cli.store.check:verify",
        "Check the log, queues and index against each other; modify nothing.",
    ),
    "timers": (
        "mqlake.cli.store.timers:timers",
        "List the timer messages that wait, in the order in which they are due.",
    ),
    "append": ("mqlake.cli.store.write:append", "Append lines or JSON lines to a topic."),
    "rebuild": ("mqlake.cli.store.check:rebuild", "Rebuild consume queues and index from the log."),
    "repair": ("mqlake.cli.store.check:repair", "Repair a damaged store, keeping every intact message."),
    "dropped": (
        "mqlake.cli.store.dropped:dropped",
        "List bytes that were cut out of the log, and put their messages back.",
    ),
    "diff": ("mqlake.cli.store.compare:diff", "Compare two stores byte by byte."),
    "truncate": (
        "mqlake.cli.store.compare:truncate_command",
        "Cut the end off a log.",
    ),
    "backup": (
        "mqlake.cli.store.backup:backup_command",
        "Back up the store in DIR, also while a broker runs on it.",
    ),
    "restore": (
        "mqlake.cli.store.backup:restore_command",
        "Make a store from a backup, or with --from from an archive.",
    ),
    "heads": (
        "mqlake.cli.store.heads:heads",
        "Write the heads of the log in DIR as Parquet: of each record all but its body.",
    ),
    "offload": (
        "mqlake.cli.store.offload:offload",
        "Bring the finished files of a log to the archive at TARGET, such as s3://bucket/store.",
    ),
    "archive": (
        "mqlake.cli.store.archive:archive",
        "Look at an archive, verify it, repair it.",
    ),
    "bench": ("mqlake.cli.store.write:bench", "Measure this machine quickly."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def store() -> None:
    """Inspect, check, fill and repair a store directory.

    DIR is the root of a store (RocketMQ's storePathRootDir): the directory that contains `commitlog`.
    """
    raise_open_files_limit()  # each file of the log takes two, which is too much for 512 of them in most shells
