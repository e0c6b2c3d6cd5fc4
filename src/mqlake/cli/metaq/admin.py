"""`mqlake metaq partitions | transactions | reload`: administration of a running broker."""

from __future__ import annotations

import http.client
import urllib.parse
from collections.abc import Callable
from typing import Any, TypeVar

import click
import orjson

from mqlake.base.net import parse_address, reason_of
from mqlake.cli.options import Whole, confirm, json_option, yes_option
from mqlake.cli.output import print_fields, print_json
from mqlake.errors import ConfigError, RemotingConnectError

Command = TypeVar("Command", bound=Callable[..., Any])
TIMEOUT_S = 10.0


def broker_option(command: Command) -> Command:
    return click.option(
        "--admin",
        metavar="HOST:PORT",
        default="127.0.0.1:8120",
        show_default=True,
        help="The broker's address for administration.",
    )(command)


def asked(admin: str, method: str, path: str, **query: object) -> Any:
    """The broker's answer. ConfigError if it refuses, RemotingConnectError."""
    host, port = parse_address(admin)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        value = orjson.loads(answer.read())
    except (OSError, http.client.HTTPException) as error:
        raise RemotingConnectError(admin, reason_of(error)) from None
    except orjson.JSONDecodeError:
        raise RemotingConnectError(admin, "this is not the answer of a MetaQ broker") from None
    finally:
        connection.close()
    if not isinstance(value, dict) or (answer.status != http.client.OK and "error" not in value):
        raise RemotingConnectError(admin, "this is not the answer of a MetaQ broker")
    if answer.status != http.client.OK:
        raise ConfigError(f"{admin}: {value['error']}")
    return value


def _show(value: Any, as_json: bool, empty: str) -> None:
    if as_json:
        print_json(value)
    elif value:
        print_fields([(name, each) for name, each in value.items()])
    else:
        click.echo(empty)


@click.group()
def partitions() -> None:
    """Close and open a topic's partitions: puts to and gets from closed ones are answered 403."""


def _closed(value: dict[str, list[int]], as_json: bool) -> None:
    shown: Any = value if as_json else {t: "closed: " + " ".join(map(str, n)) for t, n in value.items()}
    _show(shown, as_json, "all partitions are open")


@partitions.command("list")
@broker_option
@json_option
def list_closed(admin: str, as_json: bool) -> None:
    """List the closed partitions."""
    _closed(asked(admin, "GET", "/partitions/closed"), as_json)


@partitions.command("close")
@click.argument("topic")
@click.argument("start", type=Whole(0))
@click.argument("end", type=Whole(0))
@broker_option
@json_option
def close_partitions(topic: str, start: int, end: int, admin: str, as_json: bool) -> None:
    """Close the partitions START to END of TOPIC; a restart of the broker opens them."""
    _closed(asked(admin, "POST", "/partitions/close", topic=topic, start=start, end=end), as_json)


@partitions.command("open")
@click.argument("topic")
@broker_option
@json_option
def open_partitions(topic: str, admin: str, as_json: bool) -> None:
    """Open all partitions of TOPIC."""
    _closed(asked(admin, "POST", "/partitions/open", topic=topic), as_json)


@click.group()
def transactions() -> None:
    """List prepared XA transactions, and end them in place of their manager."""


@transactions.command("list")
@broker_option
@json_option
def list_transactions(admin: str, as_json: bool) -> None:
    """Show the number of active transactions, and the prepared ones."""
    value = asked(admin, "GET", "/transactions")
    if as_json:
        print_json(value)
        return
    click.echo(f"active  {value['active']}")
    for key in value["prepared"]:
        click.echo(f"prepared  {key}")


@transactions.command("end")
@click.argument("how", type=click.Choice(["commit", "rollback", "complete"]))
@click.argument("key")
@broker_option
@yes_option
@json_option
def end_transaction(how: str, key: str, admin: str, yes: bool, as_json: bool) -> None:
    """Commit, roll back, or only delist the prepared transaction KEY; its manager gets the outcome when it asks."""
    confirm(
        f"End transaction {key} on {admin} by {how}, whatever its manager decides", yes=yes, as_json=as_json
    )
    _show(asked(admin, "POST", f"/transactions/{how}", key=key), as_json, "")


@click.command("reload")
@broker_option
@json_option
def reload_config(admin: str, as_json: bool) -> None:
    """Make a broker read the topics in its server.ini again."""
    value = asked(admin, "POST", "/reload-config")
    if as_json:
        print_json(value)
    else:
        click.echo(
            "reloaded" if value["reloaded"] else "not reloaded: the file has not changed, or it has errors"
        )
