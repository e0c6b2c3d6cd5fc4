"""`mqlake broker`: one broker, until a signal stops it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from mqlake.base.java_properties import read_properties
from mqlake.base.net import format_address, is_every_address, require_free_port
from mqlake.base.open_files import raise_open_files_limit
from mqlake.base.settings import parse_assignments
from mqlake.cli.durability import acknowledgement_text
from mqlake.cli.logs import log_options
from mqlake.cli.options import accept_loss_option, port_to_choose
from mqlake.cli.output import note, note_where_it_listens, print_json, print_json_line
from mqlake.cli.serve import note_small_disk, settle
from mqlake.cli.stopping import stop_event
from mqlake.remoting.loop import run

if TYPE_CHECKING:
    from mqlake.broker.config import BrokerConfig
    from mqlake.broker.controller import BrokerController
    from mqlake.proxy.server import GrpcServer
    from mqlake.store.config import MessageStoreConfig


@click.command()
@click.option("-c", "--config", "config_path", type=click.Path(), help="RocketMQ broker.conf.")
@click.option(
    "--host",
    help="Address to listen on and to advertise.  [listens on 0.0.0.0, advertises brokerIP1]",
)
@click.option("-n", "--namesrv", "namesrv_addr", help="Name servers: host:port, separated by `;`.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Setting of broker.conf; repeatable."
)
@click.option(
    "-p",
    "--print-config",
    is_flag=True,
    help="Print every setting with its value, and exit.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@accept_loss_option
@click.option(
    "--until-eof", is_flag=True, hidden=True, help="Stop at the end of stdin: the parent process has gone."
)
@click.option(
    "--unseen", is_flag=True, hidden=True, help="Read settings from the first line of stdin, as JSON."
)
@log_options
def broker(
    config_path: str | None,
    host: str | None,
    namesrv_addr: str | None,
    settings: tuple[str, ...],
    print_config: bool,
    as_json: bool,
    accept_loss: bool,
    until_eof: bool,
    unseen: bool,
) -> None:
    """Run a broker.

    It registers with the name servers in namesrvAddr, or in $NAMESRV_ADDR. Ctrl-C or SIGTERM shuts it down
    cleanly.
    """
    from mqlake.broker.config import read_settings_of_store, require_known

    properties = {} if config_path is None else read_properties(config_path)
    if config_path is not None:
        properties["brokerConfigPath"] = config_path
    assigned = parse_assignments(settings)
    if unseen:
        assigned.update(_read_unseen())
    require_known(assigned)
    if host is not None:
        properties["bindAddress"] = host
        if not is_every_address(host):
            properties = {"brokerIP1": host, "brokerIP2": host, **properties}
    properties.update(assigned)
    if namesrv_addr is not None:
        properties["namesrvAddr"] = namesrv_addr
    config, store_config, remarks = read_settings_of_store(properties)
    for remark in remarks:
        note(f"{config_path or '--set'}: {remark}")
    if print_config:
        _print_settings({**config.to_mapping(), **store_config.to_mapping()}, as_json)
    else:
        note_small_disk(store_config)
        raise_open_files_limit()
        run(_run(config, store_config, as_json, until_eof, accept_loss=accept_loss))


def _read_unseen() -> dict[str, str]:
    """The settings that the parent process sends before anything else: one line of JSON."""
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows is not ours
        byte = os.read(0, 1)
        if not byte:
            return {}
        line += byte
    return {str(key): str(value) for key, value in json.loads(line).items()}


def _print_settings(values: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        print_json(values)
        return
    for key, value in values.items():
        click.echo(f"{key}={str(value).lower() if isinstance(value, bool) else value}")


async def _run(
    config: BrokerConfig,
    store_config: MessageStoreConfig,
    as_json: bool,
    until_eof: bool,
    *,
    accept_loss: bool,
) -> None:
    stop = stop_event(until_eof=until_eof)
    while await _live(config, store_config, as_json, until_eof, stop, accept_loss=accept_loss):
        accept_loss = False


async def _live(
    config: BrokerConfig,
    store_config: MessageStoreConfig,
    as_json: bool,
    until_eof: bool,
    stop: asyncio.Event,
    *,
    accept_loss: bool,
) -> bool:
    """Until a signal comes; True: once more, since another replica is master now (failover)."""
    from mqlake.broker.controller import BrokerController

    if config.grpc_server_port >= 0:
        require_free_port(config.bind_address, config.grpc_server_port)
    controller = BrokerController(config, dataclasses.replace(store_config))
    with port_to_choose("--set listenPort=PORT"):
        await controller.start(accept_loss=accept_loss)
    settle()
    grpc_server: GrpcServer | None = None
    try:
        if config.grpc_server_port >= 0:
            from mqlake.cli.grpc_endpoint import start_beside, where_it_serves

            grpc_server = await start_beside(controller)
            note(f"gRPC: {where_it_serves(grpc_server, config.bind_address)}")
        _say_where(controller, config, store_config, as_json)
        if controller.metrics is not None:
            note(f"metrics: {controller.metrics.where}")
        if not until_eof:  # else `mqlake serve` warns
            note_where_it_listens(config.bind_address, guarded=config.auth.guards_broker)
        await _end_of_life(controller, stop)
    finally:
        if grpc_server is not None:
            await grpc_server.stop()
        await controller.stop()
    if stop.is_set() or controller.failover is None:
        return False
    await asyncio.to_thread(controller.failover.prepare_next_life)
    return True


async def _end_of_life(controller: BrokerController, stop: asyncio.Event) -> None:
    failover = controller.failover
    if failover is None:
        await stop.wait()
        return
    waits = [asyncio.create_task(stop.wait()), asyncio.create_task(failover.ended.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if stop.is_set():
        await failover.hand_over()


def _say_where(
    controller: BrokerController, config: BrokerConfig, store_config: MessageStoreConfig, as_json: bool
) -> None:
    known_to = config.namesrv_addresses
    listens = format_address((config.bind_address, controller.port))
    if as_json:
        place = {
            "broker": config.broker_name,
            "address": controller.broker_addr,
            "listens": listens,
            "store": os.path.abspath(store_config.store_path_root_dir),
            "namesrv": known_to,
        }
        print_json_line(place)
    else:
        click.echo(f"broker {config.broker_name} listens on {listens}")
        click.echo(f"its data is in {os.path.abspath(store_config.store_path_root_dir)} (storePathRootDir)")
        registered = controller.registration.registered_with
        if registered:
            click.echo(f"registered as {controller.broker_addr} with {', '.join(registered)}")
        if missing := [each for each in known_to if each not in registered]:
            click.echo(f"not registered yet with {', '.join(missing)}; trying again")
        click.echo(acknowledgement_text(store_config))
    if not known_to:
        note("this broker registers with no name server; set namesrvAddr, or use -n")
