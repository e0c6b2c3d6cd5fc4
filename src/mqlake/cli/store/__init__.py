"""`mqlake store`: the commands on a store directory."""

from __future__ import annotations

import click

from mqlake.cli.lazy_group import LazyGroup

COMMANDS = {
    "info": ("mqlake.cli.store.read:info", "Files, ranges, topics, queues, checkpoint; clean or not."),
    "dump": ("mqlake.cli.store.read:dump", "Print records from an offset, a queue position or a time."),
    "search": ("mqlake.cli.store.read:search", "Find messages by key, id, time, tag or topic."),
    "verify": ("mqlake.cli.store.check:verify", "Check everything against everything; change nothing."),
    "append": ("mqlake.cli.store.write:append", "Put lines or JSON lines into a topic."),
    "rebuild": ("mqlake.cli.store.check:rebuild", "Make consume queues and index anew from the log."),
    "repair": ("mqlake.cli.store.check:repair", "Save what a damaged store still holds."),
    "dropped": (
        "mqlake.cli.store.dropped:dropped",
        "List the copies of bytes that left the log, and put their messages back.",
    ),
    "bench": ("mqlake.cli.store.write:bench", "Quick figures of this machine."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def store() -> None:
    """Look into, check, fill and mend a store directory.

    DIR is a store's root (RocketMQ's storePathRootDir): the directory with `commitlog` in it.
    """
