"""`mqlake admin broker ha` and `promote`: the slaves of each master, their lag, and promoting a slave."""

from __future__ import annotations

from typing import NamedTuple

import click

from mqlake.cli.admin.shared import admin_command, broker_option, cluster_option, listing_command
from mqlake.cli.options import confirm, yes_option
from mqlake.cli.output import note, print_json, size_text
from mqlake.cli.table import Column, Table
from mqlake.client.admin import Admin, Broker
from mqlake.client.overview import ha_status, slave_lag
from mqlake.errors import MqlakeError, ResponseError
from mqlake.remoting.bodies.admin import HARuntimeInfo


def replicas_text(info: HARuntimeInfo | None) -> str:
    if info is None:
        return "?"
    if info.master:
        if not info.ha_connection_info:
            return "-"
        lag = max(each.diff for each in info.ha_connection_info)
        return f"{len(info.ha_connection_info)}, lag {size_text(lag)}"
    lag = slave_lag(info)
    return "slave" if lag < 0 else f"slave, lag {size_text(lag)}"


class _Link(NamedTuple):
    broker: Broker
    peer: str
    role: str
    offset: int
    lag: int
    in_sync: bool | None
    rate: int
    trouble: str


def _links(broker: Broker, info: HARuntimeInfo, state: dict[str, str]) -> list[_Link]:
    if info.master:
        return [
            _Link(
                broker,
                each.addr or "",
                "slave",
                each.slave_ack_offset,
                each.diff,
                each.in_sync,
                each.transferred_byte_in_second,
                "ahead of its master" if each.diff < 0 else "",
            )
            for each in info.ha_connection_info
        ]
    client = info.ha_client_runtime_info
    rate, trouble = client.transferred_byte_in_second, state.get("haTroubleText", "")
    return [
        _Link(
            broker,
            client.master_addr or "",
            "master",
            client.max_offset,
            slave_lag(info),
            None,
            rate,
            trouble,
        )
    ]


_LINKS: Table[_Link] = Table(
    Column("broker", lambda row: row.broker.name),
    Column("brokerId", lambda row: row.broker.broker_id, "id", str),
    Column("peer", lambda row: row.peer),
    Column("peerRole", lambda row: row.role, "is its"),
    Column("offset", lambda row: row.offset),
    Column("lagBytes", lambda row: row.lag, "lag", lambda lag: "?" if lag < 0 else size_text(lag)),
    Column(
        "inSync", lambda row: row.in_sync, "in sync", lambda value: {None: "-"}.get(value, str(value).lower())
    ),
    Column("bytesPerSecond", lambda row: row.rate, "rate", lambda rate: f"{size_text(rate)}/s"),
    Column("trouble", lambda row: row.trouble),
)


@click.command()
@broker_option
@cluster_option
@listing_command
async def ha(admin: Admin, broker: str | None, cluster: str | None, as_json: bool) -> None:
    """Show replication: the slaves of each master, and what each slave lacks."""
    brokers = await admin.list_brokers(cluster)
    if broker is not None:
        known = [each for each in brokers if broker in (each.name, each.address)]
        brokers = known or [Broker("", broker, 0, await admin.broker_address(broker))]
    rows: list[_Link] = []
    for each in brokers:
        info = await ha_status(admin, each.address)
        if info is None:
            note(f"{each.name} at {each.address} does not report its replication")
            continue
        state = {} if info.master else await admin.brokers.get_broker_runtime_info(each.address)
        rows += _links(each, info, state)
    _LINKS.show(rows, as_json=as_json)


@click.command()
@click.option("-b", "--broker", metavar="HOST:PORT", required=True, help="The slave.")
@click.option("--sync", "is_sync", is_flag=True, help="As SYNC_MASTER.  [ASYNC_MASTER]")
@click.option("--force", is_flag=True, help="Also while its master still answers.")
@yes_option
@admin_command
async def promote(admin: Admin, broker: str, is_sync: bool, force: bool, yes: bool, as_json: bool) -> None:
    """Make a slave the master, without a restart.

    The slave refuses while its master still answers, and unless it has dispatched all of its log. It keeps what it
    has; what the old master did not send before it died is not there. The old master must not come back as brokerId 0:
    start it with brokerRole=SLAVE, after `mqlake store truncate` if it has more.
    """
    role = "SYNC_MASTER" if is_sync else "ASYNC_MASTER"
    confirm(f"Make {broker} {role}", yes=yes, as_json=as_json)
    try:
        await admin.brokers.promote(broker, role, force=force)
    except ResponseError as error:
        raise MqlakeError(f"{broker}: {error.remark}") from error
    if as_json:
        print_json({"broker": broker, "brokerRole": role})
    else:
        click.echo(f"{broker} is {role} now")
