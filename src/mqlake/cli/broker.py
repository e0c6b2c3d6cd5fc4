"""`mqlake broker`: one broker, until it is told to stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from mqlake.cli.logs import log_options
from mqlake.cli.output import note
from mqlake.cli.serve import settle, told_to_stop
from mqlake.remoting.loop import run
from mqlake.remoting.server import raise_open_files_limit
from mqlake.store.config import parse_assignments, read_properties

if TYPE_CHECKING:
    from mqlake.broker.config import BrokerConfig
    from mqlake.store.config import MessageStoreConfig


@click.command()
@click.option("-c", "--config", "config_path", type=click.Path(), help="A broker.conf, as RocketMQ has it.")
@click.option("-n", "--namesrv", "namesrv_addr", help="Name servers: host:port with ; between.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="A key of broker.conf; any number of times."
)
@click.option(
    "-p",
    "--print-config",
    is_flag=True,
    help="Print every setting with its value, and end.",
)
@click.option("--until-eof", is_flag=True, hidden=True, help="Stop when stdin ends: who holds it has gone.")
@log_options
def broker(
    config_path: str | None,
    namesrv_addr: str | None,
    settings: tuple[str, ...],
    print_config: bool,
    until_eof: bool,
) -> None:
    """Run a broker.

    It registers with the name servers of namesrvAddr (or of NAMESRV_ADDR in the environment), and ends with
    Ctrl-C or SIGTERM.
    """
    from mqlake.broker.config import read_settings

    properties = {} if config_path is None else read_properties(config_path)
    if config_path is not None:
        properties["brokerConfigPath"] = config_path
    properties.update(parse_assignments(settings))
    if namesrv_addr is not None:
        properties["namesrvAddr"] = namesrv_addr
    config, store_config, remarks = read_settings(properties)
    for remark in remarks:
        note(f"{config_path or '--set'}: {remark}")
    if print_config:
        _print_settings({**config.to_mapping(), **store_config.to_mapping()})
    else:
        raise_open_files_limit()
        run(_run(config, store_config, until_eof))


def _print_settings(values: Mapping[str, object]) -> None:
    for key, value in values.items():
        click.echo(f"{key}={str(value).lower() if isinstance(value, bool) else value}")


async def _run(config: BrokerConfig, store_config: MessageStoreConfig, until_eof: bool) -> None:
    from mqlake.broker.controller import BrokerController

    stop = told_to_stop(until_eof=until_eof)
    controller = BrokerController(config, store_config)
    await controller.start()
    settle()
    try:
        click.echo(f"broker {config.broker_name} listens on {config.bind_address}:{controller.port}")
        if config.namesrv_addresses:
            click.echo(f"it is known as {controller.broker_addr} to {', '.join(config.namesrv_addresses)}")
        else:
            note("no name server is told of this broker: give namesrvAddr, or -n")
        if controller.metrics is not None:
            note(f"metrics: {controller.metrics.url}")
        await stop.wait()
    finally:
        await controller.stop()
