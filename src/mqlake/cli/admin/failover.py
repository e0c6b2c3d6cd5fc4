"""`mqlake admin failover`: who is master of a group, where that is decided, and moving it.

The record is read and written in the consensus service itself, so it is there when no broker runs. Where the service
is, a broker of the group says, or --service.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from mqlake.cli.admin.shared import admin_command
from mqlake.cli.options import Whole, confirm, yes_option
from mqlake.cli.output import print_json
from mqlake.cli.table import Column, Table
from mqlake.client.admin import Admin
from mqlake.errors import FailoverError, MqlakeError

if TYPE_CHECKING:
    from mqlake.broker.failover.orders import Orders
    from mqlake.broker.failover.record import Record

T = TypeVar("T")
TIMEOUT_S = 5.0


@click.group()
def failover() -> None:
    """Groups of replicas whose master is decided in a consensus service (failover=etcd://...)."""


def _group_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-b", "--broker", metavar="NAME", required=True, help="brokerName of the group."),
        click.option(
            "-c",
            "--cluster",
            metavar="CLUSTER",
            help="Its cluster.  [as the name server has it, DefaultCluster]",
        ),
        click.option(
            "--service",
            metavar="etcd://HOST:PORT,...",
            help="The consensus service.  [what a broker of the group has as its `failover`]",
        ),
    ):
        function = option(function)
    return function


async def _with_orders(
    admin: Admin, broker: str, cluster: str | None, service: str | None, what: Callable[[Orders], T]
) -> T:
    from mqlake.broker.failover.etcd import open_service
    from mqlake.broker.failover.orders import Orders
    from mqlake.broker.failover.service import parse_where

    if service is None:
        service, found = await _of_broker(admin, broker)
        cluster = cluster or found
    where = parse_where(service)
    with contextlib.closing(open_service(where, TIMEOUT_S)) as opened:
        orders = Orders(opened, where, cluster or "DefaultCluster", broker)
        return await asyncio.to_thread(what, orders)


async def _of_broker(admin: Admin, name: str) -> tuple[str, str]:
    """(failover, cluster) of the brokers of this name."""
    brokers = [each for each in await admin.list_brokers(None) if each.name == name]
    if not brokers:
        raise FailoverError(
            f"no broker of the name {name} is registered: say where its group is with --service"
        )
    trouble = ""
    for each in brokers:
        try:
            config = await admin.brokers.get_broker_config(each.address)
        except MqlakeError as error:
            trouble = f": {error}"
            continue
        if config.get("failover"):
            return config["failover"], config.get("brokerClusterName", "")
        trouble = ": it runs without failover"
    raise FailoverError(f"{name} does not say which consensus service it has{trouble}")


class _Replica(NamedTuple):
    number: int
    role: str
    in_sync: bool
    excluded: bool
    address: str


_REPLICAS: Table[_Replica] = Table(
    Column("replica", lambda row: row.number),
    Column("role", lambda row: row.role),
    Column("inSync", lambda row: row.in_sync, "in sync", lambda value: str(value).lower()),
    Column("excluded", lambda row: row.excluded, "excluded", lambda value: str(value).lower()),
    Column("address", lambda row: row.address),
)


def _replicas(record: Record) -> list[_Replica]:
    members = {replica for replica, _ in record.in_sync}
    return [
        _Replica(
            number,
            "master" if number == record.master and not record.released else "slave",
            number in members,
            number in record.excluded,
            record.address if number == record.master else "",
        )
        for number in sorted({*members, record.master, *record.excluded})
    ]


def _show(record: Record, as_json: bool) -> None:
    begins = record.begins[-1][1]
    if as_json:
        print_json(
            {
                "epoch": record.epoch,
                "master": None if record.released else record.master,
                "address": record.address,
                "begins": begins,
                "leaseMs": record.lease_ms,
                "inSync": sorted(replica for replica, _ in record.in_sync),
                "excluded": list(record.excluded),
                "successor": record.successor,
                "unclean": record.unclean,
            }
        )
        return
    click.echo(f"epoch     {record.epoch}, since offset {begins}")
    click.echo(f"lease     {record.lease_ms} ms")
    if record.successor is not None:
        who = f"replica {record.successor}" if record.successor >= 0 else "another replica"
        click.echo(f"moving    to {who}{', unclean' if record.unclean else ''}")
    _REPLICAS.print(_replicas(record))


@failover.command()
@_group_options
@admin_command
async def status(admin: Admin, broker: str, cluster: str | None, service: str | None, as_json: bool) -> None:
    """Show the epoch, its master, and who could take over.

    Replicas that are neither master nor in sync are not listed; `mqlake admin broker ha` shows all that follow.
    """
    _show(await _with_orders(admin, broker, cluster, service, lambda orders: orders.read()), as_json)


@failover.command()
@click.argument("replica", type=Whole(0))
@click.option(
    "--unclean",
    is_flag=True,
    help="Also if it lacks acknowledged messages: those that only the in-sync set has are lost.",
)
@yes_option
@_group_options
@admin_command
async def elect(
    admin: Admin,
    replica: int,
    unclean: bool,
    broker: str,
    cluster: str | None,
    service: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Make a replica (its brokerId) the master.

    The present master hands over once the replica has everything, so nothing is lost. Where there is none, the replica
    takes over when the old lease is over.
    """
    if unclean:
        record = await _with_orders(admin, broker, cluster, service, lambda orders: orders.read())
        having = sorted(each for each, _ in record.in_sync)
        question = (
            f"Make replica {replica} the master of {broker}, without the messages since offset {record.begins[-1][1]} "
            f"that only the replicas {having} may have (they keep them in dropped/)"
        )
        confirm(question, yes=yes, as_json=as_json)
    _show(
        await _with_orders(
            admin, broker, cluster, service, lambda orders: orders.elect(replica, unclean=unclean)
        ),
        as_json,
    )


@failover.command()
@_group_options
@admin_command
async def resign(admin: Admin, broker: str, cluster: str | None, service: str | None, as_json: bool) -> None:
    """Have the master hand over to the replica that has most."""
    _show(await _with_orders(admin, broker, cluster, service, lambda orders: orders.resign()), as_json)


@failover.command()
@click.argument("replica", type=Whole(0))
@click.option("--undo", is_flag=True, help="Let it be a member again.")
@_group_options
@admin_command
async def exclude(
    admin: Admin,
    replica: int,
    undo: bool,
    broker: str,
    cluster: str | None,
    service: str | None,
    as_json: bool,
) -> None:
    """Keep a replica (its brokerId) from becoming master; it goes on following."""

    def order(orders: Orders) -> Record:
        return orders.include(replica) if undo else orders.exclude(replica)

    _show(await _with_orders(admin, broker, cluster, service, order), as_json)
