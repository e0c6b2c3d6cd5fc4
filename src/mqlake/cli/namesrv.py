"""`mqlake namesrv`: a name server, until a signal stops it."""

from __future__ import annotations

import click

from mqlake.base.java_properties import read_properties
from mqlake.base.net import format_address, is_every_address
from mqlake.base.open_files import raise_open_files_limit
from mqlake.cli.logs import log_options
from mqlake.cli.options import Whole, port_to_choose
from mqlake.cli.output import note, note_where_it_listens, print_json_line
from mqlake.cli.stopping import stop_event
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.loop import run


@click.command()
@click.option("-p", "--port", type=Whole(0, 65535), help="Port to listen on; 0 picks a free one.  [9876]")
@click.option("--host", help="Address to listen on.  [0.0.0.0]")
@click.option("-c", "--config", "config_path", type=click.Path(), help="RocketMQ namesrv.conf.")
@click.option("--kv-path", type=click.Path(), help="File for the key-value configuration.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@log_options
def namesrv(
    port: int | None, host: str | None, config_path: str | None, kv_path: str | None, as_json: bool
) -> None:
    """Run a name server: brokers register with it, clients look topics up.

    Ctrl-C or SIGTERM shuts it down cleanly.
    """
    properties = {} if config_path is None else read_properties(config_path)
    if port is not None:
        properties["listenPort"] = str(port)
    if host is not None:
        properties["bindAddress"] = host
    if kv_path is not None:
        properties["kvConfigPath"] = kv_path
    config, remarks = NamesrvConfig.from_mapping(properties)
    for remark in remarks:
        note(f"{config_path}: {remark}")
    raise_open_files_limit()
    run(_serve(config, as_json))


async def _serve(config: NamesrvConfig, as_json: bool) -> None:
    stop = stop_event()
    controller = NamesrvController(config)
    with port_to_choose("--port"):
        await controller.start()
    try:
        listens = format_address((config.bind_address, controller.port))
        host = "127.0.0.1" if is_every_address(config.bind_address) else config.bind_address
        address = format_address((host, controller.port))
        if as_json:
            print_json_line({"namesrv": address, "listens": listens})
        else:
            click.echo(f"name server listens on {listens}")
            click.echo(f"set on brokers and clients  namesrvAddr={address}")
        note_where_it_listens(config.bind_address, guarded=config.auth.authentication_enabled)
        await stop.wait()
    finally:
        await controller.stop()
