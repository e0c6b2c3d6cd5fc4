"""`mqlake metaq`: MetaQ's broker, client and data directories."""

from __future__ import annotations

import click

from mqlake.cli.lazy_group import LazyGroup

COMMANDS = {
    "serve": ("mqlake.cli.metaq.serve:serve", "Run a broker, and a ZooKeeper unless one is given."),
    "produce": ("mqlake.cli.metaq.messages:produce", "Send lines, or a file, to a topic."),
    "consume": (
        "mqlake.cli.metaq.messages:consume",
        "Print messages: all of a topic, or as a consumer of a group.",
    ),
    "stats": ("mqlake.cli.metaq.messages:stats", "Show the statistics of brokers."),
    "store": ("mqlake.cli.metaq.store:store", "Inspect, check and repair a data directory."),
    "migrate": ("mqlake.cli.metaq.migrate:migrate", "Turn a data directory into a RocketMQ store."),
    "partitions": ("mqlake.cli.metaq.admin:partitions", "Close and open a topic's partitions."),
    "transactions": ("mqlake.cli.metaq.admin:transactions", "List and end prepared transactions."),
    "reload": ("mqlake.cli.metaq.admin:reload_config", "Make a broker read its topics again."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def metaq() -> None:
    """MetaQ (Metamorphosis 1.4.6): the broker, clients, and data directories.

    The original Java clients work with the broker, and either broker opens the other's directories.
    """
