"""`mqlake metaq`: MetaQ's broker, client and data directories."""

from __future__ import annotations

import click

from mqlake.cli.lazy_group import LazyGroup

COMMANDS = {
    "serve": ("mqlake.cli.metaq.serve:serve", "Run a broker, with a ZooKeeper when there is none."),
    "produce": ("mqlake.cli.metaq.messages:produce", "Send lines, or a file, to a topic."),
    "consume": ("mqlake.cli.metaq.messages:consume", "Print a topic's messages, as a group or all of them."),
    "stats": ("mqlake.cli.metaq.messages:stats", "What brokers tell of themselves."),
    "store": ("mqlake.cli.metaq.store:store", "Look into, check and mend a data directory."),
    "migrate": ("mqlake.cli.metaq.migrate:migrate", "Make a RocketMQ store of a data directory."),
    "partitions": ("mqlake.cli.metaq.admin:partitions", "Close and open a topic's partitions."),
    "transactions": ("mqlake.cli.metaq.admin:transactions", "List prepared transactions, and end them."),
    "reload": ("mqlake.cli.metaq.admin:reload_config", "Have a broker read its topics anew."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def metaq() -> None:
    """MetaQ (Metamorphosis 1.4.6): the broker, clients, and data directories.

    The original Java clients work with the broker, and either broker opens the other's directories.
    """
