"""`mqlake admin topic static` and `topic remap`: static topics, whose queues are mapped over several brokers.

Before anything is changed, the mapping as it is and as it will be are written to files, in mqadmin's form: with either,
--map-file carries that mapping out.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any

import click

from mqlake.base.durable import write_durably
from mqlake.cli.admin.shared import admin_command, topic_argument
from mqlake.cli.options import ExistingPath, Whole
from mqlake.cli.output import print_result
from mqlake.client.admin import Admin
from mqlake.client.static_topics import Configs, check, created, details, logical_queues, remapped
from mqlake.errors import FormatError, MqlakeError, NotFoundError
from mqlake.remoting.bodies.topic import QUEUES_MAX, TopicRemappingDetailWrapper

Plan = Callable[[Configs, set[str]], TopicRemappingDetailWrapper]


def _mapping_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of both commands."""
    for option in (
        click.option(
            "-b", "--brokers", metavar="NAMES", help="The brokers that lead the queues, separated by commas."
        ),
        click.option("-c", "--clusters", metavar="NAMES", help="All brokers of these clusters."),
        click.option(
            "-f",
            "--map-file",
            "-mf",
            type=ExistingPath(dir_okay=False),
            help="Carry out the mapping of a file that an earlier change has written.",
        ),
        click.option(
            "-F",
            "--force",
            "-fr",
            is_flag=True,
            help="Have brokers take the mapping even if it contradicts theirs. Messages may become unreachable.",
        ),
        click.option("--dry-run", is_flag=True, help="Write the files, and change nothing."),
    ):
        function = option(function)
    return function


@click.command()
@topic_argument
@click.option(
    "-q",
    "--queues",
    "-qn",
    type=Whole(1, QUEUES_MAX),
    help="Number of queues, of all brokers together.",
)
@_mapping_options
@admin_command
async def static(
    admin: Admin,
    topic: str,
    queues: int | None,
    brokers: str | None,
    clusters: str | None,
    map_file: str | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create a static topic, or give one more queues.

    It has a fixed number of queues, numbered from 0, however many brokers there are; `topic remap` moves them.
    """
    if queues is None and map_file is None:
        raise click.UsageError("Say how many queues with --queues, or give a --map-file.")

    def plan(configs: Configs, targets: set[str]) -> TopicRemappingDetailWrapper:
        # brokers that have queues keep them
        return created(topic, queues or 0, targets | configs.keys(), configs)

    await _change(
        admin, topic, plan, brokers, clusters, map_file, force=force, dry_run=dry_run, as_json=as_json
    )


@click.command()
@topic_argument
@_mapping_options
@admin_command
async def remap(
    admin: Admin,
    topic: str,
    brokers: str | None,
    clusters: str | None,
    map_file: str | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move the queues of a static topic to these brokers.

    Messages that are there stay where they are, and are read from there. New ones go to the new broker, at offsets
    beyond them.
    """
    plan = functools.partial(_remapped, topic)
    await _change(
        admin, topic, plan, brokers, clusters, map_file, force=force, dry_run=dry_run, as_json=as_json
    )


def _remapped(topic: str, configs: Configs, targets: set[str]) -> TopicRemappingDetailWrapper:
    return remapped(topic, targets, configs)


async def _change(
    admin: Admin,
    topic: str,
    plan: Plan,
    brokers: str | None,
    clusters: str | None,
    map_file: str | None,
    *,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    if map_file is not None:
        change, before = _read(map_file, topic), None
        after = map_file
    else:
        targets = await _targets(admin, brokers, clusters)
        configs = await admin.examine_topic_config_all(topic)
        old = TopicRemappingDetailWrapper(
            topic=topic,
            type="CREATE_OR_UPDATE",
            epoch=check(topic, configs)[0] if configs else 0,
            broker_config_map=configs,
        )
        directory = tempfile.mkdtemp(prefix="mqlake-mapping-")
        before = _write(directory, old, "before")
        change = plan(configs, targets)
        after = _write(directory, change, "after")
    leaders = {
        queue_id: queue.leader
        for queue_id, queue in sorted(logical_queues(details(change.broker_config_map)).items())
    }
    if not dry_run:
        try:
            await admin.apply_mapping(change, force=force)
        except MqlakeError as error:
            raise MqlakeError(
                f"{error}\nThe change may be half done. To carry it out once more: --map-file {after}"
            ) from error
    files = "" if before is None else f"\nmapping before: {before}\nmapping after:  {after}"
    text = f"{topic}: {len(leaders)} queues on {', '.join(sorted(set(leaders.values())))}{files}"
    print_result(
        {"topic": topic, "leaders": leaders, "before": before, "after": after, "changed": not dry_run},
        ("not changed; it would be " if dry_run else "") + text,
        as_json=as_json,
    )


async def _targets(admin: Admin, brokers: str | None, clusters: str | None) -> set[str]:
    if not brokers and not clusters:
        raise click.UsageError("Name brokers with --brokers, or clusters with --clusters.")
    known = {broker.name for broker in await admin.masters()}
    names = {name.strip() for name in (brokers or "").split(",") if name.strip()}
    for name in names - known:
        raise NotFoundError(name, known, what="broker")
    for cluster in (name.strip() for name in (clusters or "").split(",") if name.strip()):
        names |= {broker.name for broker in await admin.masters(cluster)}
    return names


def _write(directory: str, change: TopicRemappingDetailWrapper, suffix: str) -> str:
    path = os.path.join(directory, f"{change.topic}-{change.epoch}.{suffix}")
    write_durably(path, change.to_json())
    return path


def _read(path: str, topic: str) -> TopicRemappingDetailWrapper:
    with open(path, "rb") as file:
        try:
            change = TopicRemappingDetailWrapper.from_json(file.read())
        except FormatError as error:
            raise FormatError(error.offset, f"{path}: {error.reason}") from None
    if change.topic != topic:
        raise click.UsageError(f"{path} is a mapping of topic {change.topic!r}.")
    return change
