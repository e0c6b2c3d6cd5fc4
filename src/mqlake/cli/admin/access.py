"""`mqlake admin user` and `mqlake admin acl`: users of brokers, and what they may do.

A change goes to every broker of the cluster, slaves too: brokers do not tell each other. One that is away misses it, so
each command says what became of it where, and `user check` compares them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from mqlake.auth.evaluator import evaluate, fits, need, rank
from mqlake.auth.model import (
    Acl,
    Action,
    Decision,
    IllegalError,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
    acl_to_info,
    checked_entry,
    user_to_info,
    username_of,
)
from mqlake.auth.state import State
from mqlake.auth.storage import Storage, encode
from mqlake.cli.admin.shared import admin_command, broker_option, cluster_option, listing_command
from mqlake.cli.options import ExistingPath, confirm, yes_option
from mqlake.cli.output import print_fields, print_json, print_result, print_table
from mqlake.client.admin import Admin
from mqlake.errors import ConfigError, MqlakeError

PASSWORD_VARIABLE = "MQLAKE_USER_PASSWORD"
MASK = "******"

TYPES = click.Choice([each.text for each in UserType], case_sensitive=False)
STATUSES = click.Choice([each.text for each in UserStatus], case_sensitive=False)
DECISIONS = click.Choice([each.text for each in Decision], case_sensitive=False)
POLICY_TYPES = click.Choice([each.text for each in PolicyType], case_sensitive=False)

user_name_option = click.option("-u", "--username", "name", metavar="USER", required=True, help="User.")
password_option = click.option(
    "-p",
    "--password",
    envvar=PASSWORD_VARIABLE,
    help=f"Secret key. Prefer ${PASSWORD_VARIABLE}: other users can see a command line.",
)
subject_option = click.option(
    "-s", "--subject", metavar="USER", required=True, help="User, also as `User:name`."
)


@click.group()
def user() -> None:
    """Users of brokers with access control."""


@click.group()
def acl() -> None:
    """Acls: what users may do."""


async def _addresses(admin: Admin, broker: str | None, cluster: str | None) -> list[str]:
    """One broker, or all of a cluster, masters and slaves; of the only cluster if none is named."""
    if broker and cluster:
        raise click.UsageError("Use either --broker or --cluster.")
    if broker:
        return [await admin.broker_address(broker)]
    brokers = await admin.list_brokers(cluster)
    if len({each.cluster for each in brokers}) > 1:
        raise click.UsageError(
            "There are several clusters: name one with --cluster, or a broker with --broker."
        )
    return [each.address for each in brokers]


async def _first(admin: Admin, broker: str | None, cluster: str | None) -> str:
    """The broker to ask: the named one, else a master."""
    if broker:
        return await admin.broker_address(broker)
    return (await admin.masters(cluster))[0].address


async def _everywhere(
    addresses: Sequence[str],
    change: Callable[[str], Awaitable[None]],
    what: str,
    as_json: bool,
    also: Mapping[str, str] | None = None,
) -> None:
    """Makes a change on each broker; shows `also` with the result. MqlakeError when one of them refused or was away."""
    failed: dict[str, str] = {}
    for address in addresses:
        try:
            await change(address)
        except MqlakeError as error:
            failed[address] = str(error)
        else:
            if not as_json:
                click.echo(f"{what} to {address} success.")
    if as_json:
        print_json({"change": what, "brokers": list(addresses), "failed": failed, **(also or {})})
    elif also and len(failed) < len(addresses):
        print_fields(list(also.items()))
    if failed:
        raise MqlakeError(f"{what}: " + "; ".join(f"{address}: {why}" for address, why in failed.items()))


# --- users


@user.command("create")
@user_name_option
@password_option
@click.option(
    "-t", "--type", "kind", type=TYPES, default="Normal", show_default=True, help="Type of the user."
)
@broker_option
@cluster_option
@admin_command
async def user_create(
    admin: Admin,
    name: str,
    password: str | None,
    kind: str,
    broker: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Create a user. Without a password one is made up and shown once."""
    addresses = await _addresses(admin, broker, cluster)
    secret = password or secrets.token_urlsafe(24)
    await _everywhere(
        addresses,
        lambda at: admin.access.create_user(at, name, secret, UserType.of(kind)),
        "create user",
        as_json,
        None if password else {"username": name, "password": secret},
    )


@user.command("update")
@user_name_option
@password_option
@click.option("-t", "--type", "kind", type=TYPES, help="New type.")
@click.option("-s", "--status", type=STATUSES, help="New status; a disabled user may do nothing.")
@broker_option
@cluster_option
@admin_command
async def user_update(
    admin: Admin,
    name: str,
    password: str | None,
    kind: str | None,
    status: str | None,
    broker: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Change a user's password, type or status; what is not given stays."""
    await _everywhere(
        await _addresses(admin, broker, cluster),
        lambda at: admin.access.update_user(at, name, password, UserType.of(kind), UserStatus.of(status)),
        "update user",
        as_json,
    )


@user.command("delete")
@user_name_option
@broker_option
@cluster_option
@yes_option
@admin_command
async def user_delete(
    admin: Admin, name: str, broker: str | None, cluster: str | None, yes: bool, as_json: bool
) -> None:
    """Delete a user with its acl."""
    addresses = await _addresses(admin, broker, cluster)
    confirm(f"Delete the user {name}", yes=yes, as_json=as_json)
    await _everywhere(addresses, lambda at: admin.access.delete_user(at, name), "delete user", as_json)


@user.command("get")
@user_name_option
@broker_option
@cluster_option
@click.option("--show-password", is_flag=True, help="Show the password; brokers give it to super users.")
@admin_command
async def user_get(
    admin: Admin, name: str, broker: str | None, cluster: str | None, show_password: bool, as_json: bool
) -> None:
    """Show one user."""
    found = await admin.access.get_user(await _first(admin, broker, cluster), name)
    if found is None:
        raise MqlakeError(f"there is no user {name}")
    _print_users([found], show_password, as_json)


@user.command("list")
@click.option("-f", "--filter", "part", default="", help="Only users whose name contains this.")
@broker_option
@cluster_option
@click.option("--show-password", is_flag=True, help="Show passwords; brokers give them to super users.")
@listing_command
async def user_list(
    admin: Admin, part: str, broker: str | None, cluster: str | None, show_password: bool, as_json: bool
) -> None:
    """List users."""
    found = await admin.access.list_users(await _first(admin, broker, cluster), part)
    _print_users(found, show_password, as_json)


def _print_users(users: Iterable[User], show_password: bool, as_json: bool) -> None:
    infos = [user_to_info(each, with_password=True) for each in users]
    for info in infos:
        if info["password"] and not show_password:
            info["password"] = MASK
    if as_json:
        print_json(infos)
    else:
        rows = [[info[key] for key in ("username", "password", "userType", "userStatus")] for info in infos]
        print_table(["user", "password", "type", "status"], rows)


@user.command("copy")
@click.option("-f", "--from-broker", "source", required=True, help="Broker to copy from, host:port.")
@click.option("-t", "--to-broker", "target", required=True, help="Broker to copy to, host:port.")
@click.option("-u", "--username", "names", default="", help="Users to copy, `,` between; default: all.")
@admin_command
async def user_copy(admin: Admin, source: str, target: str, names: str, as_json: bool) -> None:
    """Copy users from one broker to another, mqlake's or RocketMQ's."""
    chosen = _names(names)
    users = [each for each in await admin.access.list_users(source) if not chosen or each.name in chosen]
    _need_passwords(users)
    await _put_users(admin, target, users)
    print_result([each.name for each in users], f"copied {len(users)} users to {target}", as_json=as_json)


def _names(text: str) -> set[str]:
    return {each.strip().removeprefix("User:") for each in text.split(",") if each.strip()}


def _need_passwords(users: Iterable[User]) -> None:
    if hidden := [each.name for each in users if not each.password]:
        raise MqlakeError(
            f"the broker did not give the passwords of {', '.join(hidden)}: ask as a super user"
        )


async def _put_users(admin: Admin, address: str, users: Iterable[User]) -> None:
    known = {each.name: each for each in await admin.access.list_users(address)}
    for each in users:
        if each.name not in known:
            await admin.access.create_user(address, each.name, each.password, each.type)
            if each.is_enabled:
                continue
        elif known[each.name] == each:
            continue
        await admin.access.update_user(address, each.name, each.password, each.type, each.status)


@user.command("export")
@click.argument("path", metavar="FILE", type=click.Path())
@broker_option
@cluster_option
@admin_command
async def user_export(
    admin: Admin, path: str, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """Write all users and acls of a broker to FILE, with passwords in clear, for its owner alone to read.

    The file is read by `user import`, and by a broker of mqlake as its accessControl.jsonl.
    """
    address = await _first(admin, broker, cluster)
    users = await admin.access.list_users(address)
    _need_passwords(users)
    acls = await admin.access.list_acls(address)
    state = State({each.name: each for each in users}, {each.username: each for each in acls})
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(encode(state, None))
    value = {"file": path, "users": len(users), "acls": len(acls)}
    print_result(value, f"{len(users)} users and {len(acls)} acls in {path}", as_json=as_json)


@user.command("import")
@click.argument("path", metavar="FILE", type=ExistingPath(dir_okay=False))
@broker_option
@cluster_option
@admin_command
async def user_import(
    admin: Admin, path: str, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """Make the users and acls in FILE on brokers, mqlake's or RocketMQ's. Others stay as they are."""
    storage = Storage(os.path.dirname(os.path.abspath(path)))
    storage.path = path
    state = storage.load()

    async def put(address: str) -> None:
        await _put_users(admin, address, state.users.values())
        for each in state.acls.values():
            await admin.access.update_acl(address, each.username, each.policies)

    await _everywhere(await _addresses(admin, broker, cluster), put, "import", as_json)


@user.command("check")
@cluster_option
@admin_command
async def user_check(admin: Admin, cluster: str | None, as_json: bool) -> None:
    """See that all brokers have the same users and acls. Exit status 1 if not."""
    found: dict[str, str] = {}
    for each in await admin.list_brokers(cluster):
        users = await admin.access.list_users(each.address)
        acls = await admin.access.list_acls(each.address)
        found[each.address] = json.dumps(
            [
                [user_to_info(one, with_password=True) for one in users],
                sorted(json.dumps(_sorted_info(one), sort_keys=True) for one in acls),
            ]
        )
    differ = len(set(found.values())) > 1
    if as_json:
        print_json({"brokers": list(found), "same": not differ})
    else:
        click.echo("\n".join(found))
        click.echo("users and acls differ" if differ else "the same users and acls")
    if differ:
        sys.exit(1)


def _sorted_info(of_user: Acl) -> dict[str, Any]:
    info = acl_to_info(of_user)
    for policy in info["policies"]:
        policy["entries"].sort(key=lambda entry: json.dumps(entry, sort_keys=True))
    return info


# --- acls


def _entry_options(command: Any) -> Any:
    for option in (
        click.option(
            "-r",
            "--resources",
            required=True,
            help="`Topic:name`, `Group:prefix*`, `Cluster:*`, `*`; `,` between.",
        ),
        click.option(
            "-a", "--actions", required=True, help="Pub, Sub, Create, Update, Delete, Get, List, All."
        ),
        click.option(
            "-d", "--decision", type=DECISIONS, default="Allow", show_default=True, help="Decision."
        ),
        click.option("-i", "--source-ip", "sources", default="", help="Addresses and networks; `,` between."),
        click.option(
            "--policy-type", "kind", type=POLICY_TYPES, default="Custom", show_default=True, help="Policy."
        ),
    ):
        command = option(command)
    return command


def _policy(kind: str, resources: str, actions: str, sources: str, decision: str) -> Policy:
    """ConfigError."""
    wanted = frozenset(_action(each) for each in actions.split(",") if each.strip())
    from_where = [_said_of(each, _source) for each in sources.split(",") if each.strip()]
    decided = Decision.of(decision) or Decision.ALLOW
    entries = [
        _said_of(each, lambda text: checked_entry(Resource.parse(text), wanted, from_where, decided))
        for each in resources.split(",")
        if each.strip()
    ]
    return Policy(PolicyType.of(kind) or PolicyType.CUSTOM, tuple(entries))


Made = TypeVar("Made")
_WANTED = {
    "The resource is null.": "is no resource; Topic:name, Topic:prefix*, Topic:*, so with Group: and Cluster:, or *",
    "The source ip is invalid.": "is no address or network; 10.0.0.7, 10.0.0.0/8, ::1",
}


def _source(text: str) -> str:
    try:
        ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise IllegalError("The source ip is invalid.") from None
    return text.strip()


def _said_of(text: str, make: Callable[[str], Made]) -> Made:
    """make(text); a ConfigError gets the text in front, which RocketMQ's message lacks."""
    try:
        return make(text)
    except IllegalError as error:
        wanted = _WANTED.get(str(error))
        raise ConfigError(f"{text}: {wanted}" if wanted else str(error)) from None


def _action(text: str) -> Action:
    action = Action.of(text)
    if action is None:
        names = ", ".join(each.text for each in Action if each is not Action.ANY)
        raise ConfigError(f"{text}: there is no such action; there are {names}")
    return action


def _subject(text: str) -> str:
    with contextlib.suppress(IllegalError):
        return username_of(text)
    return text


async def _acl_put(
    admin: Admin,
    subject: str,
    resources: str,
    actions: str,
    decision: str,
    sources: str,
    kind: str,
    broker: str | None,
    cluster: str | None,
    what: str,
    as_json: bool,
) -> None:
    policy = _policy(kind, resources, actions, sources, decision)
    await _everywhere(
        await _addresses(admin, broker, cluster),
        lambda at: admin.access.update_acl(at, _subject(subject), [policy]),
        what,
        as_json,
    )


@acl.command("create")
@subject_option
@_entry_options
@broker_option
@cluster_option
@admin_command
async def acl_create(admin: Admin, as_json: bool, **options: Any) -> None:
    """Allow or deny a user something. Entries for the same resource are replaced."""
    await _acl_put(admin, what="create acl", as_json=as_json, **options)


@acl.command("update")
@subject_option
@_entry_options
@broker_option
@cluster_option
@admin_command
async def acl_update(admin: Admin, as_json: bool, **options: Any) -> None:
    """The same as create."""
    await _acl_put(admin, what="update acl", as_json=as_json, **options)


@acl.command("delete")
@subject_option
@click.option(
    "-r", "--resources", "resource", help="Only the entry for this resource; default: the whole acl."
)
@click.option("--policy-type", "kind", type=POLICY_TYPES, help="Policy of the entry.  [Custom]")
@broker_option
@cluster_option
@yes_option
@admin_command
async def acl_delete(
    admin: Admin,
    subject: str,
    resource: str | None,
    kind: str | None,
    broker: str | None,
    cluster: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete an acl, or one entry of it."""
    which = _said_of(resource, Resource.parse) if resource else None
    addresses = await _addresses(admin, broker, cluster)
    confirm(
        f"Delete {f'the entry for {resource}' if resource else 'the acl'} of {subject}",
        yes=yes,
        as_json=as_json,
    )
    await _everywhere(
        addresses,
        lambda at: admin.access.delete_acl(at, _subject(subject), which, PolicyType.of(kind)),
        "delete acl",
        as_json,
    )


@acl.command("get")
@subject_option
@broker_option
@cluster_option
@admin_command
async def acl_get(admin: Admin, subject: str, broker: str | None, cluster: str | None, as_json: bool) -> None:
    """Show the acl of one user."""
    found = await admin.access.get_acl(await _first(admin, broker, cluster), _subject(subject))
    if found is None:
        raise MqlakeError(f"{subject} has no acl")
    _print_acls([found], as_json)


@acl.command("list")
@click.option("-s", "--subject", default="", help="Only acls of users whose name contains this.")
@click.option("-r", "--resource", default="", help="Only entries for resources that contain this.")
@broker_option
@cluster_option
@listing_command
async def acl_list(
    admin: Admin, subject: str, resource: str, broker: str | None, cluster: str | None, as_json: bool
) -> None:
    """List acls."""
    _print_acls(
        await admin.access.list_acls(await _first(admin, broker, cluster), subject, resource), as_json
    )


def _print_acls(acls: Iterable[Acl], as_json: bool) -> None:
    if as_json:
        print_json([acl_to_info(each) for each in acls])
        return
    rows = [
        [each.subject, policy.type.text, *_cells(entry)]
        for each in acls
        for policy in each.policies
        for entry in policy.entries
    ]
    print_table(["subject", "policy", "resource", "actions", "sources", "decision"], rows)


def _cells(entry: PolicyEntry) -> list[str]:
    actions = ",".join(action.text for action in sorted(entry.actions))
    return [entry.resource.text, actions, ",".join(entry.sources) or "anywhere", entry.decision.text]


@acl.command("copy")
@click.option("-f", "--from-broker", "source", required=True, help="Broker to copy from, host:port.")
@click.option("-t", "--to-broker", "target", required=True, help="Broker to copy to, host:port.")
@click.option(
    "-s", "--subject", "names", default="", help="Users whose acls to copy, `,` between; default: all."
)
@admin_command
async def acl_copy(admin: Admin, source: str, target: str, names: str, as_json: bool) -> None:
    """Copy acls from one broker to another, mqlake's or RocketMQ's; their users must be there."""
    chosen = _names(names)
    acls = [each for each in await admin.access.list_acls(source) if not chosen or each.username in chosen]
    for each in acls:
        await admin.access.update_acl(target, each.username, each.policies)
    print_result([each.username for each in acls], f"copied {len(acls)} acls to {target}", as_json=as_json)


@acl.command("test")
@click.option("--as", "name", metavar="USER", required=True, help="User who would ask.")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Topic; repeatable.")
@click.option("-g", "--group", "groups", multiple=True, metavar="GROUP", help="Consumer group; repeatable.")
@click.option("--of-cluster", "clusters", multiple=True, metavar="CLUSTER", help="Cluster; repeatable.")
@click.option("--action", "actions", required=True, help="Action, e.g. PUB; with `,` any one of them.")
@click.option(
    "--from", "ip", default="127.0.0.1", show_default=True, metavar="IP", help="Address of the user."
)
@broker_option
@cluster_option
@admin_command
async def acl_test(
    admin: Admin,
    name: str,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    clusters: tuple[str, ...],
    actions: str,
    ip: str,
    broker: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Say what would be decided for a user, and why. Exit status 1 if it would be refused."""
    wanted = [_action(each) for each in actions.split(",") if each.strip()]
    resources = [Resource.topic(each) for each in topics] + [Resource.group(each) for each in groups]
    resources += [Resource.cluster(each) for each in clusters]
    if not resources or not wanted:
        raise click.UsageError("Name a --topic, a --group or an --of-cluster, and an --action.")
    address = await _first(admin, broker, cluster)
    found = await admin.access.get_user(address, name)
    of_user = None if found is None else await admin.access.get_acl(address, name)
    decided = []
    for resource in resources:
        each = need(resource, *wanted)
        if found is None or not found.is_enabled:
            allowed, why = False, f"User:{name} is {'not found' if found is None else 'disabled'}."
            others: list[list[str]] = []
        else:
            verdict = evaluate(found, of_user, each, ip)
            allowed, why = verdict.allowed, verdict.why
            others = _considered(found, of_user, each, ip)
        decided.append({"need": str(each), "allowed": allowed, "why": why, "entries": others})
    if as_json:
        print_json(decided)
    else:
        for one in decided:
            click.echo(f"{one['need']}: {'allowed' if one['allowed'] else 'refused'}. {one['why']}")
            for row in one["entries"]:  # type: ignore[attr-defined]
                click.echo("  " + "  ".join(row))
    if not all(one["allowed"] for one in decided):
        sys.exit(1)


def _considered(asker: User, of_user: Acl | None, wanted: Any, ip: str) -> list[list[str]]:
    """The entries that are about the need, the deciding one first."""
    if asker.is_super or of_user is None:
        return []
    found: list[list[str]] = []
    for kind in PolicyType:
        entries = sorted((each for each in of_user.entries(kind) if fits(each, wanted, ip)), key=rank)
        for each in entries:
            found.append(["overruled" if found else "decides", kind.text, *_cells(each)])
    return found
