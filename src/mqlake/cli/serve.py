"""`mqlake serve`: a name server and brokers, with no configuration needed.

One broker runs in this process, next to the name server. Several brokers run in processes of their own and share
nothing: each has a store and a port, and the queues of a topic are spread over all of them. A broker that dies is
restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from mqlake.auth.config import SECRETS, AuthConfig
from mqlake.auth.first_users import FIRST_USER, FirstUsers
from mqlake.base.disk import DiskSpace
from mqlake.base.java_properties import read_properties
from mqlake.base.net import format_address, is_every_address, require_free_port
from mqlake.base.open_files import raise_open_files_limit
from mqlake.base.settings import parse_assignments
from mqlake.cli.durability import acknowledgement_text
from mqlake.cli.logs import log_options
from mqlake.cli.options import SMALL_STORE, Whole, accept_loss_option, port_to_choose
from mqlake.cli.output import note, note_where_it_listens, print_json_line, size_text, time_text
from mqlake.cli.stopping import stop_event
from mqlake.errors import ConfigError, MqlakeError
from mqlake.remoting.loop import run
from mqlake.remoting.tls import TlsMode
from mqlake.store.config import BrokerRole

if TYPE_CHECKING:
    from mqlake.broker.config import BrokerConfig
    from mqlake.namesrv.server import NamesrvController
    from mqlake.proxy.server import GrpcServer
    from mqlake.store.config import MessageStoreConfig

BROKER_PORT_STEP = 10
"""Between the ports of brokers; the VIP port is two below, the HA port one above."""
READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 60.0
RESTART_S, RESTART_MAX_S = 0.5, 60.0
"""Pause before a broker is restarted; it doubles each time a broker ends within LIVED_S."""
LIVED_S = 10.0
UNSEEN = SECRETS | {"tls.server.keyPassword"}
"""Settings that brokers in processes of their own get through stdin: everybody can see a command line."""


@click.command()
@click.option(
    "--store",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False),
    default="mqlake-data",
    show_default=True,
    help="Data directory.",
)
@click.option(
    "--namesrv-port",
    type=Whole(0, 65535),
    default=9876,
    show_default=True,
    help="Port of the name server; 0 picks a free one.",
)
@click.option(
    "--port",
    type=Whole(0, 65535),
    default=10911,
    show_default=True,
    help="Port of the first broker; 0 picks a free one. Each further broker is 10 above the one before.",
)
@click.option(
    "--grpc-port",
    type=Whole(-1, 65535),
    help="Port for RocketMQ 5's gRPC clients; 0 picks a free one, -1 turns it off.  [8081; 0 with --port=0]",
)
@click.option(
    "--console-port",
    type=Whole(0, 65535),
    help="Port for the console, pages that show the cluster; 0 picks a free one.  [no console]",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="With --console-port: let users send messages, reset offsets and change settings there.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on and to advertise. 0.0.0.0 listens on all and advertises this machine's address.",
)
@click.option(
    "--advertise",
    default="",
    metavar="HOST[:PORT[:GRPC_PORT]]",
    help="Address for clients if it is not --host, as behind NAT or in a container.",
)
@click.option("-c", "--config", "config_path", type=click.Path(), help="broker.conf with further settings.")
@click.option(
    "--brokers",
    type=Whole(1, 256),
    default=1,
    show_default=True,
    help="Number of brokers; several run in processes of their own.",
)
@click.option(
    "--replicas",
    type=Whole(0, 16),
    default=0,
    show_default=True,
    help="Slaves of each broker, in processes of their own.",
)
@click.option(
    "--failover",
    metavar="etcd://HOST:PORT,...",
    help="Let a slave take over by itself when its master is gone, by this consensus service.",
)
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Setting of broker.conf; repeatable."
)
@click.option(
    "--auth",
    is_flag=True,
    help="Access control: requests must be signed. The first start makes the user `admin` and shows its secret once.",
)
@click.option(
    "--ephemeral",
    is_flag=True,
    help="For tests: free ports, small files, and a temporary directory that is deleted at the end.",
)
@click.option(
    "--from-archive",
    is_flag=True,
    help="Make a broker's store from its archive (setting `archive`) if its directory is empty, as on a new machine.",
)
@accept_loss_option
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON.")
@log_options
def serve(
    directory: str,
    namesrv_port: int,
    port: int,
    grpc_port: int | None,
    console_port: int | None,
    allow_changes: bool,
    host: str,
    advertise: str,
    config_path: str | None,
    brokers: int,
    replicas: int,
    failover: str | None,
    settings: tuple[str, ...],
    auth: bool,
    ephemeral: bool,
    from_archive: bool,
    accept_loss: bool,
    as_json: bool,
) -> None:
    """Run a name server and a broker.

    RocketMQ clients connect to them unchanged. Ctrl-C or SIGTERM shuts both down cleanly.
    """
    from mqlake.base.net import local_address
    from mqlake.broker.config import is_known, read_settings, read_settings_of_store, require_known

    advertised = local_address() if is_every_address(host) else host
    common = {"brokerIP1": advertised, "brokerIP2": advertised}
    if ephemeral:
        from mqlake.cli import ephemeral as for_tests

        if for_tests.is_given("directory"):
            raise ConfigError("--ephemeral makes its own directory; do not give --store")
        directory = for_tests.prepare()
        common.update(for_tests.SETTINGS)
        namesrv_port = namesrv_port if for_tests.is_given("namesrv_port") else 0
        port = port if for_tests.is_given("port") else 0
    if config_path is not None:
        common.update(read_properties(config_path))
    chosen = {
        "bindAddress": host,
        **({"advertise": advertise} if advertise else {}),
        **({} if failover is None else {"failover": failover}),
        **parse_assignments(settings),
    }
    require_known(chosen)
    config, _, remarks = read_settings({**common, **chosen})  # raises ConfigError for an invalid value
    for remark in remarks:
        note(f"{config_path or '--set'}: {remark}")
    if common.get("bindAddress", host) != host:
        note(f"{config_path}: bindAddress={common['bindAddress']} is ignored; --host is {host}")
    grpc = _grpc_port(grpc_port, port, {**common, **chosen})
    common = {key: value for key, value in common.items() if is_known(key)}  # passed on to brokers as --set
    for properties in (common, chosen):
        properties.pop("grpcServerPort", None)
    if "storePathRootDir" not in chosen and os.path.isdir(os.path.join(directory, "commitlog")):
        raise ConfigError(
            f"{directory} is itself a store, not a directory of brokers; use --set storePathRootDir={directory}"
        )
    of_brokers = _masters(directory, brokers, port, common, chosen)
    if from_archive:
        _restore(of_brokers)
    if config.tls.mode is TlsMode.ENFORCING:
        for properties in of_brokers:
            properties.setdefault("tls.enable", "true")  # the name server enforces it, too
    for option, asked in (
        ("--grpc-port", grpc.port if grpc.asked else None),
        ("--console-port", console_port),
    ):
        if asked is not None and asked >= 0:
            with port_to_choose(option):
                require_free_port(config.bind_address, asked)
    first = FirstUsers(os.path.join(directory, "auth")) if auth else None
    if first is not None:
        for properties in of_brokers:
            properties.update({key: value for key, value in first.settings.items() if key not in chosen})
    first_broker = read_settings_of_store(of_brokers[0])
    auth_config = first_broker.config.auth
    if brokers > 1:
        _set_apart(of_brokers, {**common, **chosen}, chosen, config.metrics_prom_exporter_port)
    if failover is not None and not replicas:
        raise ConfigError("--failover needs replicas that can take over: give --replicas 1 or more as well")
    if replicas:
        of_brokers += _slaves(of_brokers, replicas, config.metrics_prom_exporter_port)
    if len(of_brokers) == 1:
        of_brokers[0]["grpcServerPort"] = str(grpc.port)  # else one endpoint is in front of them
    if console_port is not None:
        from mqlake.cli.console import require_console

        require_console()
    elif allow_changes:
        raise ConfigError("--allow-changes is for the console; give --console-port as well")
    console = None if console_port is None else _Console(console_port, allow_changes)
    note_small_disk(first_broker.store_config, len(of_brokers))
    raise_open_files_limit()
    note_where_it_listens(config.bind_address, guarded=auth_config.guards_broker)
    started = _Brokers(of_brokers, accept_loss)
    run(_serve(directory, host, namesrv_port, grpc, console, started, config, auth_config, first, as_json))


class _Brokers(NamedTuple):
    """The settings of each, and whether its store may open without flushed messages that are gone."""

    settings: list[dict[str, str]]
    accept_loss: bool


class _Console(NamedTuple):
    port: int
    allow_changes: bool


class _Grpc(NamedTuple):
    """The endpoint for gRPC clients; port -1: none. `asked`: it is an error if that is not possible."""

    port: int
    asked: bool


def _grpc_port(given: int | None, broker_port: int, properties: Mapping[str, str]) -> _Grpc:
    """MissingPartError if gRPC is asked for and not installed."""
    from mqlake.cli.grpc_endpoint import GRPC_PORT, INSTALL, grpc_is_installed, require_grpc

    if given is None and "grpcServerPort" in properties:
        given = int(properties["grpcServerPort"])
    if given is not None:
        if given >= 0:
            require_grpc()
        return _Grpc(given, True)
    if grpc_is_installed():
        return _Grpc(GRPC_PORT if broker_port else 0, False)
    note(f"gRPC clients are not served: {INSTALL}")
    return _Grpc(-1, False)


def _masters(
    directory: str, count: int, port: int, common: Mapping[str, str], chosen: Mapping[str, str]
) -> list[dict[str, str]]:
    """The settings of each master. `common` counts less than what makes them differ, `chosen` (--set) more."""
    masters = [
        {
            "brokerName": f"broker-{i}",
            **common,
            "storePathRootDir": os.path.join(directory, f"broker-{i}"),
            "listenPort": str(port + BROKER_PORT_STEP * i if port else 0),
            **chosen,
        }
        for i in range(count)
    ]
    if count > 1:
        for i, each in enumerate(masters):
            if each.get("archive"):  # a place is of one log
                each["archive"] = f"{each['archive'].rstrip('/')}/broker-{i}"
    return masters


def _restore(of_brokers: list[dict[str, str]]) -> None:
    """Makes the stores that are not there from their archives. ConfigError without `archive`; raises what restoring
    does."""
    from mqlake.broker.config import read_settings
    from mqlake.store.archive.target import parse_options
    from mqlake.store.archive_restore import restore_archive

    for properties in of_brokers:
        config = read_settings(properties).store_config
        root = config.store_path_root_dir
        if not config.archive:
            raise ConfigError(
                "--from-archive: set archive to the place, such as --set archive=s3://bucket/store"
            )
        if os.path.isdir(root) and os.listdir(root):
            note(f"{root} is there already: nothing is restored")
            continue
        report = restore_archive(config.archive, root, storage_options=parse_options(config.archive_options))
        note(
            f"{root}: made from {report.archive}, offsets {report.begin:,} to {report.end:,}; what was "
            "acknowledged after "
            f"{time_text(report.saved_timestamp)} is not in it"
        )


def _set_apart(
    of_brokers: list[dict[str, str]], given: Mapping[str, str], chosen: Mapping[str, str], metrics_port: int
) -> None:
    """Makes settings given for all brokers differ between them; raises ConfigError if they cannot."""
    for key in ("listenPort", "storePathRootDir", "storePathCommitLog"):
        if key in chosen or (key == "storePathCommitLog" and key in given):
            raise ConfigError(f"{key}: brokers cannot share it; do not set it with --brokers")
    for i, properties in enumerate(of_brokers):
        if "brokerName" in given:
            properties["brokerName"] = f"{given['brokerName']}-{i}"
        if metrics_port:
            properties["metricsPromExporterPort"] = str(metrics_port + i)


def _slaves(masters: list[dict[str, str]], replicas: int, metrics_port: int) -> list[dict[str, str]]:
    """The settings of `replicas` slaves of each master; all brokers answer reads of slaves' consumers."""
    from mqlake.broker.config import read_settings_of_store

    slaves: list[dict[str, str]] = []
    for master in masters:
        size = read_settings_of_store(master).store_config.mapped_file_size_commit_log
        master.setdefault("slaveReadEnable", "true")
        for number in range(1, replicas + 1):
            place = len(masters) + len(slaves)
            slave = {
                **master,
                "mappedFileSizeCommitLog": str(size),  # a new slave has no files that would say so
                "brokerRole": BrokerRole.SLAVE.name,
                "brokerId": str(number),
                "storePathRootDir": f"{master['storePathRootDir']}-slave-{number}",
            }
            if master["listenPort"] != "0":
                slave["listenPort"] = str(int(masters[0]["listenPort"]) + BROKER_PORT_STEP * place)
            if metrics_port:
                slave["metricsPromExporterPort"] = str(metrics_port + place)
            slaves.append(slave)
    return slaves


def _title(properties: Mapping[str, str]) -> str:
    """Returns the name of a broker process: masters are called by theirs."""
    number = int(properties.get("brokerId", "0"))
    return f"{properties['brokerName']} slave {number}" if number else properties["brokerName"]


async def _serve(
    directory: str,
    host: str,
    namesrv_port: int,
    grpc: _Grpc,
    console: _Console | None,
    brokers: _Brokers,
    config: BrokerConfig,
    auth: AuthConfig,
    first: FirstUsers | None,
    as_json: bool,
) -> None:
    from mqlake.broker.config import read_settings
    from mqlake.namesrv.config import NamesrvConfig
    from mqlake.namesrv.server import NamesrvController

    stop, of_brokers = stop_event(), brokers.settings
    async with contextlib.AsyncExitStack() as running:
        namesrv = NamesrvController(
            NamesrvConfig(
                listen_port=namesrv_port,
                bind_address=host,
                kv_config_path=os.path.join(directory, "namesrv", "kvConfig.json"),
                config_store_path=os.path.join(directory, "namesrv", "namesrv.properties"),
                tls=config.tls,
                auth=auth.replaced({"authConfigPath": _access_directory(of_brokers[0])}),
            )
        )
        with port_to_choose("--namesrv-port"):
            await namesrv.start()
        running.push_async_callback(namesrv.stop)
        shown = "127.0.0.1" if is_every_address(host) else host
        namesrv_addr = format_address((shown, namesrv.port))
        for properties in of_brokers:
            others = properties.get("namesrvAddr", "").split(";")
            properties["namesrvAddr"] = ";".join(dict.fromkeys([namesrv_addr, *filter(None, others)]))
        grpc_addr = ""
        if len(of_brokers) == 1:
            address, listens, grpc_addr = await _start_here(
                of_brokers[0], grpc, running, accept_loss=brokers.accept_loss
            )
            addresses, shown_brokers = [address], [_shown(address, listens)]
        else:
            children = _Children(stop)
            running.push_async_callback(children.stop)
            await children.start(of_brokers, accept_loss=brokers.accept_loss)
            addresses = shown_brokers = await children.wait_until_ready(namesrv, of_brokers)
            if grpc.port >= 0 and auth.authentication_enabled and auth.inner_credentials is None:
                note(
                    "gRPC clients are not served: with several brokers and access control "
                    "innerClientAuthenticationCredentials are needed, of a super user"
                )
            elif grpc.port >= 0 and not stop.is_set():
                grpc_addr = await _start_proxy(namesrv_addr, host, grpc, config, auth, running)
        console_url = ""
        if console is not None and not stop.is_set():
            console_url = await _start_console(namesrv_addr, host, console, config, stop, running)
        settle()
        if not stop.is_set():
            kept = acknowledgement_text(read_settings(of_brokers[0]).store_config)
            _say_where(
                namesrv_addr,
                addresses,
                shown_brokers,
                grpc_addr,
                console_url,
                directory,
                kept,
                first,
                as_json,
            )
        await stop.wait()


async def _start_proxy(
    namesrv_addr: str,
    host: str,
    grpc: _Grpc,
    config: BrokerConfig,
    auth: AuthConfig,
    running: contextlib.AsyncExitStack,
) -> str:
    """One gRPC endpoint in front of several brokers; its address."""
    from mqlake.cli.grpc_endpoint import start_proxy
    from mqlake.client.config import ClientConfig
    from mqlake.remoting.tls import client_context

    context = client_context() if config.tls.mode is TlsMode.ENFORCING else None
    inner = auth.inner_credentials if auth.authentication_enabled else None
    where = ClientConfig(
        namesrv_addr=namesrv_addr,
        tls=context,
        access_key="" if inner is None else inner.access_key,
        secret_key="" if inner is None else inner.secret_key,
    )
    checked = None if inner is None else auth
    starting = start_proxy(where, grpc.port, host, config.advertise, config.tls, checked, config.grpc_server)
    return await _started(starting, host, grpc, running)


async def _start_console(
    namesrv_addr: str,
    host: str,
    console: _Console,
    config: BrokerConfig,
    stop: asyncio.Event,
    running: contextlib.AsyncExitStack,
) -> str:
    """Pages on this cluster, from a process of their own: none takes time or memory of a broker. Their address."""
    port = console.port

    async def run_console() -> asyncio.subprocess.Process:
        options = ["--until-eof", "--json", f"--namesrv={namesrv_addr}", f"--host={host}", f"--port={port}"]
        options += ["--context=", "--credentials="]  # whatever the environment says
        if config.tls.mode is TlsMode.ENFORCING:
            options.append("--tls")
        if console.allow_changes:
            options.append("--allow-changes")
        return await _start_process("console", *options, stdout=asyncio.subprocess.PIPE)

    children = _Children(stop)
    running.push_async_callback(children.stop)
    process = await children.keep("the console", run_console)
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        if stop.is_set():
            return ""
        raise MqlakeError("the console ended before it was ready")
    url = str(json.loads(line)["url"])
    port = int(url.rstrip("/").rpartition(":")[2])
    children.restart()
    return url


async def _start_here(
    properties: Mapping[str, str], grpc: _Grpc, running: contextlib.AsyncExitStack, *, accept_loss: bool
) -> tuple[str, str, str]:
    """The broker's address for clients, the one that it listens on, and that for gRPC clients (empty: none)."""
    from mqlake.broker.config import read_settings_of_store
    from mqlake.broker.controller import BrokerController

    settings = read_settings_of_store(properties)
    if settings.config.failover:
        raise ConfigError("failover: give --replicas 1 or more, or run each replica with `mqlake broker`")
    controller = BrokerController(settings.config, settings.store_config)
    with port_to_choose("--port"):
        await controller.start(accept_loss=accept_loss)
    running.push_async_callback(controller.stop)
    if controller.metrics is not None:
        note(f"metrics      {controller.metrics.where}")
    host = settings.config.bind_address
    listens = format_address(("127.0.0.1" if is_every_address(host) else host, controller.port))
    if grpc.port < 0:
        return controller.broker_addr, listens, ""
    from mqlake.cli.grpc_endpoint import start_beside

    return controller.broker_addr, listens, await _started(start_beside(controller), host, grpc, running)


def _shown(address: str, listens: str) -> str:
    """A broker's address for clients, and the one that it listens on if that is another."""
    return address if address == listens else f"{listens}, for clients {address}"


async def _started(
    starting: Awaitable[GrpcServer], host: str, grpc: _Grpc, running: contextlib.AsyncExitStack
) -> str:
    """The address of a gRPC endpoint; empty if it cannot listen and was not requested."""
    from mqlake.cli.grpc_endpoint import where_it_serves

    try:
        with port_to_choose("--grpc-port"):
            server = await starting
    except ConfigError as error:
        if grpc.asked:
            raise
        note(f"gRPC clients are not served: {error}")
        return ""
    running.push_async_callback(server.stop)
    return where_it_serves(server, host)


def _access_directory(properties: Mapping[str, str]) -> str:
    """Returns the directory in which a broker keeps its users."""
    return properties.get("authConfigPath") or os.path.join(properties["storePathRootDir"], "config")


def _say_where(
    namesrv_addr: str,
    brokers: list[str],
    shown_brokers: list[str],
    grpc_addr: str,
    console_url: str,
    directory: str,
    kept: str,
    first: FirstUsers | None,
    as_json: bool,
) -> None:
    secret = first.secret_to_show() if first else None
    if as_json:
        place = {"namesrv": namesrv_addr, "brokers": brokers, "grpc": grpc_addr or None, "store": directory}
        place |= {"console": console_url} if console_url else {}
        print_json_line(place if secret is None else {**place, "user": FIRST_USER, "password": secret})
    else:
        click.echo(f"name server  {namesrv_addr}")
        for address in shown_brokers:
            click.echo(f"broker       {address}")
        if grpc_addr:
            click.echo(f"gRPC         {grpc_addr}")
        if console_url:
            click.echo(f"console      {console_url}")
        click.echo(f"data         {directory}")
        click.echo(f"durability   {kept}")
        if secret is not None:
            click.echo(f"user         {FIRST_USER}")
            click.echo(f"secret       {secret}     (shown only now)")
            click.echo(f"set          export MQLAKE_ACCESS_KEY={FIRST_USER} MQLAKE_SECRET_KEY={secret}")
        click.echo(f"try          echo hello | mqlake produce -n {namesrv_addr} TestTopic")
    sys.stdout.flush()


def note_small_disk(config: MessageStoreConfig, brokers: int = 1) -> None:
    """Warns if what the store allocates next does not fit on its disk: sends will be refused then."""
    place = os.path.abspath(config.commit_log_dir)
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    is_new = not (os.path.isdir(config.commit_log_dir) and os.listdir(config.commit_log_dir))
    free = DiskSpace.of(place).free
    needed = brokers * (config.new_store_size if is_new else config.mapped_file_size_commit_log)
    if free >= needed:
        return
    what = ("a new store" if brokers == 1 else "new stores") if is_new else "the next commit log file"
    takes = "takes" if brokers == 1 or not is_new else "take"
    smaller = f", or make a smaller store: {SMALL_STORE}" if is_new else ""
    note(f"{place}: {size_text(free)} free, {what} {takes} {size_text(needed)}; free some space{smaller}")


def settle() -> None:
    """Takes all objects made at the start out of garbage collection: they live to the end."""
    gc.collect()
    gc.freeze()


async def _start_process(command: str, *options: str, stdout: int) -> asyncio.subprocess.Process:
    """A command of mqlake with a pipe from this process as its stdin."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mqlake",
        command,
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=stdout,
        start_new_session=True,  # Ctrl-C goes to this process, which stops them
    )


async def _run_broker(properties: Mapping[str, str], *options: str) -> asyncio.subprocess.Process:
    seen = (f"--set={key}={value}" for key, value in properties.items() if key not in UNSEEN)
    process = await _start_process(
        "broker", "--until-eof", "--unseen", *options, *seen, stdout=asyncio.subprocess.DEVNULL
    )
    assert process.stdin is not None
    process.stdin.write(
        json.dumps({key: properties[key] for key in UNSEEN & properties.keys()}).encode() + b"\n"
    )
    return process


class _Children:
    """Brokers, or the console. Each has a pipe from this process as its stdin, and stops when this process is gone.

    Once all have been ready, one that ends by itself is restarted, after longer and longer pauses if it keeps ending.
    """

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._ready = False
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, of_brokers: Iterable[Mapping[str, str]], *, accept_loss: bool) -> None:
        for properties in of_brokers:
            run = functools.partial(_run_broker, properties)
            await self.keep(_title(properties), run, *(["--accept-loss"] if accept_loss else []))

    async def keep(
        self, name: str, run: Callable[..., Awaitable[asyncio.subprocess.Process]], *at_first: str
    ) -> asyncio.subprocess.Process:
        """The process, which is from now on looked after. `at_first`: options that a restart does not have."""
        process = self._processes[name] = await run(*at_first)
        self._keepers.append(asyncio.create_task(self._keep(name, run, process)))
        return process

    def restart(self) -> None:
        """Restarts from now on every process that ends: all are ready."""
        self._ready = True

    async def _keep(
        self,
        name: str,
        run: Callable[[], Awaitable[asyncio.subprocess.Process]],
        process: asyncio.subprocess.Process,
    ) -> None:
        loop = asyncio.get_running_loop()
        began, pause_s = loop.time(), RESTART_S
        while True:
            status = await process.wait()
            del self._processes[name]
            if self._stop.is_set():
                return
            pause_s = RESTART_S if loop.time() - began > LIVED_S else min(pause_s * 2, RESTART_MAX_S)
            others = f"; {len(self._processes)} still running" if len(self._keepers) > 1 else ""
            again = f", restarting it in {pause_s:g} s" if self._ready else ""
            note(f"{name} (process {process.pid}) ended with status {status}{others}{again}")
            if not self._ready:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            if self._stop.is_set():
                return
            began = loop.time()
            process = self._processes[name] = await run()

    async def wait_until_ready(
        self, namesrv: NamesrvController, of_brokers: Sequence[Mapping[str, str]]
    ) -> list[str]:
        """Their addresses, once all have registered. Raises MqlakeError if one ends before."""
        wanted = [(each["brokerName"], int(each.get("brokerId", "0"))) for each in of_brokers]
        async with asyncio.timeout(READY_TIMEOUT_S):
            while not self._stop.is_set():
                table = namesrv.routes.broker_addr_table
                found = [
                    table[name].broker_addrs.get(number) if name in table else None for name, number in wanted
                ]
                addresses = [address for address in found if address is not None]
                if len(addresses) == len(wanted):
                    self.restart()
                    return addresses
                if len(self._processes) < len(wanted):
                    raise MqlakeError("a broker ended before it was ready")
                await asyncio.sleep(0.05)
        return []

    async def stop(self) -> None:
        self._stop.set()
        for process in list(self._processes.values()):
            process.terminate()
        if self._keepers:
            _, late = await asyncio.wait(self._keepers, timeout=STOP_TIMEOUT_S)
            if late:
                for name, process in self._processes.items():
                    note(f"{name} (process {process.pid}) does not stop; killing it")
                    process.kill()
                await asyncio.wait(late)
