"""`mqlake admin namesrv` and `mqlake admin kv`: settings and key-value configuration of the name servers."""

from __future__ import annotations

import click

from mqlake.cli.admin.shared import admin_command, listing_command
from mqlake.cli.options import confirm, yes_option
from mqlake.cli.output import print_fields, print_json, print_result
from mqlake.client.admin import Admin
from mqlake.errors import ResponseError
from mqlake.remoting.codes import ResponseCode


@click.group()
def namesrv() -> None:
    """Settings of the name servers."""


@namesrv.command("config")
@admin_command
async def namesrv_config(admin: Admin, as_json: bool) -> None:
    """Show the settings of each name server."""
    configs = await admin.name_servers.get_name_server_config()
    if as_json:
        print_json(configs)
        return
    for number, (address, config) in enumerate(configs.items()):
        click.echo(("\n" if number else "") + address)
        print_fields(sorted(config.items()), indent=2)


@namesrv.command("set")
@click.option("-k", "--key", required=True, help="Setting, by its RocketMQ name.")
@click.option("-v", "--value", required=True, help="New value.")
@admin_command
async def namesrv_set(admin: Admin, key: str, value: str, as_json: bool) -> None:
    """Change a setting of all name servers."""
    await admin.name_servers.update_name_server_config({key: value})
    addresses = admin.name_servers.addresses
    text = f"{key}={value} on {', '.join(addresses)}"
    print_result({"key": key, "value": value, "nameServers": addresses}, text, as_json=as_json)


@click.group()
def kv() -> None:
    """Key-value configuration of the name servers."""


namespace_option = click.option(
    "-s", "--namespace", required=True, help="Namespace of the key, e.g. ORDER_TOPIC_CONFIG."
)
key_option = click.option("-k", "--key", required=True, help="Key.")


@kv.command("list")
@namespace_option
@listing_command
async def kv_list(admin: Admin, namespace: str, as_json: bool) -> None:
    """List the keys and values of a namespace."""
    table = await admin.name_servers.get_kv_list_by_namespace(namespace)
    if as_json:
        print_json(table)
    else:
        print_fields(sorted(table.items()))


@kv.command("get")
@namespace_option
@key_option
@admin_command
async def kv_get(admin: Admin, namespace: str, key: str, as_json: bool) -> None:
    """Show the value of a key."""
    value = await admin.name_servers.get_kv_config_value(namespace, key)
    print_result({"namespace": namespace, "key": key, "value": value}, value or "", as_json=as_json)


@kv.command("put")
@namespace_option
@key_option
@click.option("-v", "--value", required=True, help="New value.")
@admin_command
async def kv_put(admin: Admin, namespace: str, key: str, value: str, as_json: bool) -> None:
    """Set a key on all name servers."""
    await admin.name_servers.put_kv_config_value(namespace, key, value)
    shown = {"namespace": namespace, "key": key, "value": value}
    print_result(shown, f"{namespace}: {key}={value}", as_json=as_json)


@kv.command("delete")
@namespace_option
@key_option
@yes_option
@admin_command
async def kv_delete(admin: Admin, namespace: str, key: str, yes: bool, as_json: bool) -> None:
    """Delete a key on all name servers. Exit status 1 if there was none."""
    confirm(f"Delete key {key} of namespace {namespace} on all name servers", yes=yes, as_json=as_json)
    missing = None
    try:
        await admin.name_servers.get_kv_config_value(namespace, key)
    except ResponseError as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        missing = error
    await admin.name_servers.delete_kv_config_value(namespace, key)  # in any case: only one of them was asked
    if missing is not None:
        raise missing
    shown = {"namespace": namespace, "key": key, "deleted": True}
    print_result(shown, f"{namespace}: {key}: deleted", as_json=as_json)
