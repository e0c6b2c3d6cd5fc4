"""`mqlake context`: clusters by name, so that commands need no addresses and keys."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import click

from mqlake.cli.clients import read_credentials
from mqlake.cli.contexts import Context, read_contexts, write_contexts
from mqlake.cli.options import confirm, json_option, yes_option
from mqlake.cli.output import note, print_fields, print_json, print_result, print_table
from mqlake.client.api.name_servers import parse_addresses
from mqlake.errors import ConfigError, MqlakeError

_NAME = re.compile(r"[^\W_][\w.-]*")


@click.group()
def context() -> None:
    """Name clusters: their name servers, credentials and TLS.

    Every command that takes -n uses the current context, or the one of --context NAME ($MQLAKE_CONTEXT). With -n or
    $NAMESRV_ADDR and no --context the current one is ignored.
    """


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        return [name for name in read_contexts().contexts if name.startswith(incomplete)]
    except (ConfigError, OSError):
        return []


@context.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the contexts; `*` marks the current one."""
    found = read_contexts()
    if as_json:
        print_json(
            [
                {"name": name, "current": name == found.current, **each.shown()}
                for name, each in found.contexts.items()
            ]
        )
        return
    if not found.contexts:
        note("no contexts; `mqlake context set NAME -n HOST:PORT` makes one")
        return
    print_table(
        ("", "name", "name servers", "user", "TLS"),
        [
            ("*" if name == found.current else "", name, each.namesrv, each.access_key or "-",
             "yes" if each.tls or each.tls_ca or each.tls_cert else "no")
            for name, each in found.contexts.items()
        ],
    )  # fmt: skip


@context.command("set")
@click.argument("name", shell_complete=_complete)
@click.option("-n", "--namesrv", metavar="HOST:PORT", help="Name servers, separated by `;`.")
@click.option("--tls/--no-tls", default=None, help="Use TLS without verifying certificates.")
@click.option(
    "--tls-ca", metavar="FILE", help="Use TLS, and verify certificates against the CAs in this PEM file."
)
@click.option(
    "--tls-cert", metavar="FILE", help="Use TLS, and show the certificate in this PEM file with its key."
)
@click.option("--access-key", envvar="MQLAKE_ACCESS_KEY", help="Access key; defaults to $MQLAKE_ACCESS_KEY.")
@click.option("--secret-key", envvar="MQLAKE_SECRET_KEY", help="Secret key; prefer $MQLAKE_SECRET_KEY.")
@click.option(
    "--credentials", type=click.Path(), metavar="FILE", help="File with accessKey=… and secretKey=…."
)
@click.option("--use", is_flag=True, help="Make it the current one.")
@json_option
def set_command(name: str, credentials: str | None, use: bool, as_json: bool, **given: Any) -> None:
    """Make or change a context: what is not given stays, an empty text removes a field."""
    found = read_contexts()
    if credentials:
        given["access_key"], given["secret_key"] = read_credentials(credentials)
    changed = dataclasses.replace(
        found.contexts.get(name, Context()),
        **{key: value for key, value in given.items() if value is not None},
    )
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"context {name!r}: a name has letters, digits, `.`, `_` and `-`, and begins with a letter or digit"
        )
    if not changed.namesrv:
        raise ConfigError("name the context's name servers with -n HOST:PORT")
    parse_addresses(changed.namesrv)
    if bool(changed.access_key) != bool(changed.secret_key):
        raise ConfigError(f"{name}: --access-key and --secret-key belong together")
    current = name if use or not found.current else found.current
    write_contexts(dataclasses.replace(found, contexts={**found.contexts, name: changed}, current=current))
    _show(name, changed, current, as_json)


def _show(name: str, each: Context, current: str, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "current": name == current, **each.shown()})
    else:
        print_fields([("context", name + (" (current)" if name == current else "")), *each.shown().items()])


@context.command("use")
@click.argument("name", shell_complete=_complete)
@json_option
def use_command(name: str, as_json: bool) -> None:
    """Make a context the current one; `-` for none."""
    found = read_contexts()
    if name == "-":
        write_contexts(dataclasses.replace(found, current=""))
        print_result({"current": None}, "no current context", as_json=as_json)
        return
    chosen = found.named(name)
    write_contexts(dataclasses.replace(found, current=name))
    _show(name, chosen, name, as_json)


@context.command("show")
@click.argument("name", required=False, shell_complete=_complete)
@json_option
def show_command(name: str | None, as_json: bool) -> None:
    """Show a context, or the current one; never its secret."""
    found = read_contexts()
    wanted = name or found.current
    if not wanted:
        raise MqlakeError("there is no current context; `mqlake context use NAME` chooses one")
    _show(wanted, found.named(wanted), found.current, as_json)


@context.command("delete")
@click.argument("name", shell_complete=_complete)
@yes_option
@json_option
def delete_command(name: str, yes: bool, as_json: bool) -> None:
    """Delete a context, with its credentials."""
    found = read_contexts()
    found.named(name)
    confirm(f"Delete the context {name} with its credentials", yes=yes, as_json=as_json)
    left = {each: value for each, value in found.contexts.items() if each != name}
    current = "" if found.current == name else found.current
    write_contexts(dataclasses.replace(found, contexts=left, current=current))
    print_result({"deleted": name}, f"deleted {name}", as_json=as_json)
