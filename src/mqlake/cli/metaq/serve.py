"""`mqlake metaq serve`: runs a broker until a signal stops it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Mapping
from typing import Any

import click

from mqlake.base.java_properties import read_properties
from mqlake.base.net import format_address, is_every_address
from mqlake.base.settings import parse_assignments
from mqlake.cli.logs import log_options
from mqlake.cli.options import Whole
from mqlake.cli.output import count_text, note, note_where_it_listens, print_json_line
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.metaq.broker.admin_http import AdminHttp
from mqlake.metaq.broker.broker import MetaMorphosisBroker
from mqlake.metaq.broker.data_http import DataHttp
from mqlake.metaq.broker.replication import SamsaConfig, SlaveConfig
from mqlake.metaq.config.meta_config import MetaConfig, SystemConfig, ZKConfig, check_system, topic_values
from mqlake.metaq.config.values import parse_int
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.remoting.loop import run

ZOOKEEPER_PORT = 2181
HTTP_PORT = 8080
PLUGINS = ("samsa", "gregor", "metaslave", "jettyBroker")
FAST_BOOT = "meta.fast_boot"
OWN_SESSION_MS = 6000
"""Session timeout with our own ZooKeeper: after a crash the next broker waits this long."""


@click.command()
@click.option("--store", "store_path", type=click.Path(file_okay=False), help="The data directory.  [~/meta]")
@click.option("-p", "--port", type=Whole(0, 65535), help="Port to listen on; 0: any free one.  [8123]")
@click.option(
    "--host",
    help="Address to listen on; 0.0.0.0: all addresses.  [127.0.0.1, or 0.0.0.0 with a host name]",
)
@click.option(
    "--host-name",
    help="Name under which clients reach the broker.  [--host, or the machine's address]",
)
@click.option("--broker-id", type=Whole(0, 1023), help="The broker's number.  [0]")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[=PARTITIONS]",
    help="A topic; may be repeated.  [test]",
)
@click.option("-c", "--config", "config_path", type=click.Path(), help="MetaQ's server.ini.")
@click.option(
    "--zookeeper", metavar="HOST:PORT", help="The ZooKeeper to use, host:port,... or host:port/path."
)
@click.option(
    "--zookeeper-port",
    type=Whole(0, 65535),
    default=ZOOKEEPER_PORT,
    show_default=True,
    help="Port of the ZooKeeper to start when none is given; 0: any free port.",
)
@click.option(
    "--admin-host", default="127.0.0.1", show_default=True, help="Address of the HTTP administration."
)
@click.option(
    "--admin-port",
    type=Whole(0, 65535),
    help="Its port; 0: any free one.  [8120, dashboardHttpPort]",
)
@click.option("--fast-boot", is_flag=True, help="Trust the partitions without checking them.")
@click.option(
    "-D",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="System property of the original: meta.fast_boot=true is --fast-boot.",
)
@click.option(
    "-F",
    "plugins",
    multiple=True,
    metavar="NAME=FILE",
    help="Replication as in the original: samsa=FILE (a master with a synchronous slave), gregor (that slave), "
    "metaslave=FILE (an asynchronous slave); FILE is a .properties file. jettyBroker[=FILE]: messages over HTTP on "
    "port 8080, or `port` in the file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@log_options
def serve(
    store_path: str | None,
    port: int | None,
    host: str | None,
    host_name: str | None,
    broker_id: int | None,
    topics: tuple[str, ...],
    config_path: str | None,
    zookeeper: str | None,
    zookeeper_port: int,
    admin_host: str,
    admin_port: int | None,
    fast_boot: bool,
    properties: tuple[str, ...],
    plugins: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a MetaQ broker.

    By default it serves clients on this machine only; use --host or --host-name for others.

    Without --zookeeper and --config it starts a real ZooKeeper as a child process, on the loopback; that ends with the
    broker, its data stays in the data directory. Ctrl-C or SIGTERM stop the broker, SIGHUP makes it read its topics
    again.
    """
    config = _config(config_path, topics)
    fast_boot |= _is_fast_boot(parse_assignments(properties))
    given: dict[str, Any] = {
        "data_path": store_path,
        "data_log_path": None if store_path is None else "",
        "server_port": port,
        "host_name": host_name,
        "broker_id": broker_id,
        "dashboard_http_port": admin_port,
    }
    _change_system(config, **{name: value for name, value in given.items() if value is not None})
    check_system(config.system)
    if host is None:
        host = "0.0.0.0" if config.system.host_name else "127.0.0.1"
    if not config.system.host_name and not is_every_address(host):
        _change_system(config, host_name=host)
    if store_path is not None:
        config.topic_config_map = {
            name: dataclasses.replace(topic, data_path=store_path)
            for name, topic in config.topic_config_map.items()
        }
    for remark in config.remarks:
        note(f"{config_path}: {remark}")
    roles = _roles(plugins)
    child = None
    if zookeeper is not None:
        config.zookeeper = dataclasses.replace(config.zookeeper, zk_connect=zookeeper)
    elif config_path is None and "gregor" not in roles:
        directory = os.path.join(config.system.effective_data_path, "zookeeper")
        child = EmbeddedZookeeper(directory, zookeeper_port)
        child.start()
        config.zookeeper = dataclasses.replace(
            config.zookeeper, zk_connect=child.connect_string, zk_session_timeout_ms=OWN_SESSION_MS
        )
        if not as_json:
            click.echo(f"ZooKeeper runs on {child.connect_string}; --zookeeper HOST:PORT uses another")
    try:
        run(_serve(config, host, admin_host, fast_boot, roles, as_json))
    finally:
        if child is not None:
            child.stop()


def _is_fast_boot(properties: Mapping[str, str]) -> bool:
    """Returns the choice that the original's system properties make. ConfigError for others, and for no boolean."""
    for name in properties:
        if name != FAST_BOOT:
            raise UnknownKeyError(name, [FAST_BOOT], what="property")
    value = properties.get(FAST_BOOT, "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"{FAST_BOOT}={value}: it can be true or false")
    return value == "true"


def _config(config_path: str | None, topics: tuple[str, ...]) -> MetaConfig:
    if config_path is not None:
        config = MetaConfig.load(config_path)
        for topic, values in topic_values(topics).items():
            config.add_topic(topic, values)
        return config
    # without a file: each message is on the disk before its answer; the topic is that of the original's sample
    return MetaConfig(SystemConfig(unflush_threshold=0), ZKConfig(), topic_values(topics or ("test",)))


def _change_system(config: MetaConfig, **changes: Any) -> None:
    config.system = dataclasses.replace(config.system, **changes)


def _roles(plugins: tuple[str, ...]) -> dict[str, Any]:
    """The plugins as arguments of the broker. ConfigError, OSError."""
    found: dict[str, Any] = {}
    for plugin in plugins:
        name, _, path = plugin.partition("=")
        if name not in PLUGINS:
            raise UnknownKeyError(name, PLUGINS, what="plugin")
        values = read_properties(path) if path else {}
        if name == "gregor":
            found["gregor"] = True
        elif name == "samsa":
            found["samsa"] = SamsaConfig.from_mapping(values)
        elif name == "metaslave":
            found["slave"] = SlaveConfig.from_mapping(values)
        else:
            found["http_port"] = parse_int(values.get("port", str(HTTP_PORT)))
    return found


async def _serve(
    config: MetaConfig, host: str, admin_host: str, fast_boot: bool, roles: dict[str, Any], as_json: bool
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, config.reload)
    http_port = roles.pop("http_port", None)
    broker = MetaMorphosisBroker(config, host=host, fast_boot=fast_boot, **roles)
    admin, data_http = AdminHttp(broker), DataHttp(broker)
    await broker.start()
    try:
        await admin.start(admin_host, config.system.dashboard_http_port)
        if http_port is not None:
            await data_http.start(host, http_port)
        note_where_it_listens(host)
        loaded = broker.load_report
        for name, size in loaded.truncated.items():
            if name not in loaded.kept:  # those are in the log
                note(f"{name}: {count_text(size, 'byte')} of an incomplete message cut off")
        _print_addresses(
            {
                "broker": broker.broker_string,
                "listens": format_address((host, broker.server.port)),
                "brokerId": config.system.broker_id,
                "admin": f"{admin_host}:{admin.port}",
                "httpPort": None if http_port is None else data_http.server.port,
                "zookeeper": config.zookeeper.zk_connect,
                "dataPath": config.system.effective_data_path,
                "partitions": loaded.stores,
            },
            host,
            as_json,
        )
        await stop.wait()
    finally:
        await data_http.stop()
        await admin.stop()
        await broker.stop()


def _print_addresses(shown: dict[str, Any], host: str, as_json: bool) -> None:
    if as_json:
        print_json_line(shown)
        return
    if shown["httpPort"] is not None:
        click.echo(f"messages over HTTP on {format_address((host, shown['httpPort']))}")
    click.echo(f"{shown['dataPath']}: {count_text(shown['partitions'], 'partition')}")
    click.echo(f"administration on http://{shown['admin']}")
    click.echo(f"clients reach the broker as {shown['broker']}")
    click.echo(f"broker {shown['brokerId']} listens on {shown['listens']}")
