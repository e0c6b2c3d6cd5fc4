"""`mqlake store verify | rebuild | repair`: finding and mending damage."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import click

from mqlake.base.findings import Findings, Severity
from mqlake.base.progress import Progress
from mqlake.cli.options import (
    accept_loss_option,
    confirm,
    directory_argument,
    json_option,
    set_option,
    yes_option,
)
from mqlake.cli.output import (
    as_object,
    count_text,
    note_error,
    print_fields,
    print_json,
    progress,
    size_text,
)
from mqlake.cli.store.heads import compared, made_again
from mqlake.errors import MissingPartError
from mqlake.store.backup_check import verify_backup
from mqlake.store.backup_manifest import is_backup
from mqlake.store.check.rebuild import RebuildReport, rebuild_store
from mqlake.store.check.repair import ActionKind, RepairPlan, plan_repair, repair_store
from mqlake.store.check.verify import VerifyReport, verify_store
from mqlake.store.check.verify_queues import LostMessage
from mqlake.store.heads import HEADS

EXIT_DAMAGE = 1
SHOWN = 20
RATE_SHOWN_FROM = 1 << 26  # below this, most of the time is start-up
_OF_WHOLE_FILES = (ActionKind.RENAME, ActionKind.ACCEPT_LOSS, ActionKind.REBUILD)

# ---------------------------------------------------------------------- verify


@click.command()
@directory_argument
@set_option
@json_option
def verify(directory: str, settings: dict[str, str], as_json: bool) -> None:
    """Check the log, queues and index against each other; modify nothing.

    Checks records (sizes, magic, CRC, physical and queue offsets), consume queues and index against the records and
    the records against them, and the checkpoint. Distinguishes a torn tail, stale bytes and corruption. The exit
    status is 1 if anything is damaged; what the next start of the store repairs by itself is only a note.

    If the store has heads (`mqlake store heads`), each of their rows is compared with the log.

    DIR may be a backup, too: each of its files is compared with its checksum.
    """
    if is_backup(directory):
        _verify_backup(directory, as_json=as_json)
        return
    with progress("verifying") as report_progress:
        report = verify_store(directory, settings, progress=report_progress)
    _verify_heads(directory, report)
    if as_json:
        print_json(_verify_object(report))
    else:
        _print_verify(report)
    if not report.ok:
        sys.exit(EXIT_DAMAGE)


def _verify_heads(directory: str, report: VerifyReport) -> None:
    """Adds what is wrong with the heads to the report."""
    findings = Findings()
    try:
        with progress("comparing heads") as report_progress:
            found = compared(directory, report_progress)
    except MissingPartError as error:
        findings.note("heads", os.path.join(directory, HEADS), 0, f"they were not compared: {error}")
        found = None
    if found is not None:
        for each in found.differences:
            text = f"{each.text}; `mqlake store rebuild` makes them again"
            findings.damage("heads", each.path, 0, text)
        for path in found.left_over:
            findings.note("heads", path, 0, "their log file is gone")
    report.findings += findings.kept
    report.damage_count += findings.damage_count


def _verify_backup(directory: str, *, as_json: bool) -> None:
    with progress("verifying") as report_progress:
        check = verify_backup(directory, progress=report_progress)
    if as_json:
        print_json({"ok": check.ok, **as_object(check)})
    else:
        print_fields(
            [
                ("backup", check.path),
                ("log", f"{check.start} to {check.end}, {count_text(check.files, 'file')}"),
                ("read", size_text(check.bytes)),
            ]
        )
        click.echo("\ndamage" if check.damage else "\nall is well")
        for each in check.damage:
            click.echo(f"  {each}")
    if not check.ok:
        note_error(
            f"{count_text(len(check.damage), 'file')} damaged; the next `mqlake store backup --verify` "
            "copies again what the store still has"
        )
        sys.exit(EXIT_DAMAGE)


def _verify_object(report: VerifyReport) -> dict[str, Any]:
    return {"ok": report.ok, **as_object(report)}


def _print_verify(report: VerifyReport) -> None:
    state = "clean" if report.clean_exit else "not closed cleanly"
    if report.writer is not None:
        state = f"being written by process {report.writer or '?'}"
    rate = (
        f"{report.record_bytes / 1e9 / report.seconds:.2f} GB/s"
        if report.record_bytes >= RATE_SHOWN_FROM
        else ""
    )
    print_fields(
        [
            ("store", f"{report.path} ({state})"),
            ("log", f"{report.min_offset} to {report.end_offset}, {count_text(report.files, 'file')}"),
            ("records", f"{report.records:,} ({size_text(report.record_bytes)})"),
            ("queues", f"{report.queues:,}, {count_text(report.units, 'unit')}"),
            ("index", f"{count_text(report.index_files, 'file')}, {report.index_entries:,} entries"),
            ("time", f"{report.seconds:.2f} s{', ' + rate if rate else ''}"),
        ]
    )
    if report.lost_count:
        click.echo(f"\nlost: {count_text(report.lost_count, 'message')}, according to the consume queues")
        _print_lost(report.lost, report.lost_count)
    for severity, title in ((Severity.DAMAGE, "damage"), (Severity.NOTE, "notes")):
        found = report.of(severity)
        if found:
            click.echo(f"\n{title}")
            for finding in found:
                click.echo(f"  {finding}")
    hidden = report.damage_count - len(report.of(Severity.DAMAGE))
    if hidden > 0:
        click.echo(f"  … and {hidden:,} more")
    if report.ok:
        click.echo("\nall is well")
    else:
        command = "repair --dry-run` shows what can be done"
        if all(finding.kind == "heads" for finding in report.of(Severity.DAMAGE)):
            command = "rebuild` makes heads again"
        note_error(f"{count_text(report.damage_count, 'finding')} of damage; `mqlake store {command}")


def _print_lost(messages: list[LostMessage], count: int) -> None:
    for lost in messages[:SHOWN]:
        click.echo(
            f"  {lost.topic}/{lost.queue_id}@{lost.queue_offset}  physical offset {lost.physical_offset}, "
            f"{lost.size} bytes"
        )
    if count > SHOWN:
        click.echo(f"  … and {count - SHOWN:,} more (--json lists a thousand)")


# ---------------------------------------------------------------------- rebuild


@click.command()
@directory_argument
@click.option("--trust-log", is_flag=True, help="Trust the log even where the queues contradict it.")
@set_option
@json_option
def rebuild(directory: str, trust_log: bool, settings: dict[str, str], as_json: bool) -> None:
    """Rebuild consume queues and index from the log.

    The new files are built next to the old ones and replace them when complete. No writer may run. A damaged log is
    refused: repair it first. So is a log that its consume queues prove wrong, unless --trust-log is given. Heads
    (`mqlake store heads`) are made again if the store has any.
    """
    with progress("rebuilding") as report_progress:
        report = rebuild_store(directory, settings, trust_log=trust_log, progress=report_progress)
    with progress("making heads again") as report_progress:
        heads = made_again(directory, report_progress)
    if as_json:
        print_json({**as_object(report), "heads": None if heads is None else as_object(heads)})
    else:
        click.echo(_rebuilt(report))
        if heads is not None:
            click.echo(f"heads of {count_text(heads.again + heads.written, 'log file')} made again")


def _rebuilt(report: RebuildReport) -> str:
    return (
        f"rebuilt from {count_text(report.records, 'record')} (offset {report.start_offset} to "
        f"{report.end_offset}): {count_text(report.queues, 'queue')} of {count_text(report.topics, 'topic')}, "
        f"{report.index_entries:,} index entries in {count_text(report.index_files, 'file')}; "
        f"{report.seconds:.2f} s"
    ) + (
        f"\ndeleted topics, not rebuilt: {', '.join(report.deleted_topics)}" if report.deleted_topics else ""
    )


# ---------------------------------------------------------------------- repair


@click.command()
@directory_argument
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@accept_loss_option
@yes_option
@set_option
@json_option
def repair(
    directory: str, dry_run: bool, accept_loss: bool, yes: bool, settings: dict[str, str], as_json: bool
) -> None:
    """Repair a damaged store, keeping every intact message.

    Fills damage between records so that mqlake and RocketMQ read past it, truncates a torn tail, and rebuilds
    consume queues and index. Every changed byte is first copied to DIR/repair-<time>/. The exit status is 1 if the
    store is still damaged afterwards.
    """
    with contextlib.ExitStack() as bars:

        def stage(what: str) -> Progress:
            bars.close()
            return bars.enter_context(progress(what))

        if dry_run or not yes:
            plan = plan_repair(directory, settings, accept_loss=accept_loss, stage=stage)
            bars.close()
            if dry_run and as_json:
                print_json({"dryRun": True, "plan": plan})
            elif dry_run or (plan.actions and not as_json):
                _print_plan(plan, "would be done")
            if plan.lost_end is not None:
                raise plan.lost_end.error
            if dry_run:
                return
            if plan.actions:
                confirm(f"Repair {directory}", yes=yes, as_json=as_json)
        report = repair_store(directory, settings, accept_loss=accept_loss, stage=stage)
    after = report.after
    if as_json:
        print_json(
            {
                "dryRun": False,
                "plan": report.plan,
                "copies": report.copies,
                "rebuild": report.rebuild,
                "after": _verify_object(after) if after is not None else None,
                "seconds": report.seconds,
            }
        )
    else:
        _print_plan(report.plan, "done")
        if report.rebuild is not None:
            click.echo(_rebuilt(report.rebuild))
        if report.copies is not None:
            click.echo(f"the replaced bytes are in {report.copies}")
        if after is not None and after.ok:
            click.echo(f"verified: {count_text(after.records, 'record')}, all is well now")
        elif after is not None:
            for finding in after.of(Severity.DAMAGE):
                click.echo(f"  {finding}")
            note_error(f"{count_text(after.damage_count, 'finding')} of damage left")
    if after is not None and not after.ok:
        sys.exit(EXIT_DAMAGE)


def _print_plan(plan: RepairPlan, done: str) -> None:
    if plan.actions:
        click.echo(f"{done}:")
    elif plan.lost_end is None:
        click.echo("nothing to repair")
    for action in plan.actions:
        place = action.path if action.kind in _OF_WHOLE_FILES else f"{action.path}: byte {action.offset}"
        click.echo(f"  {action.kind.value}: {place}: {action.text}")
    if plan.unfinished:
        click.echo("  then the log is read again, and further damage is repaired in the same way")
    if plan.lost_count:
        click.echo(f"already lost, according to the consume queues: {count_text(plan.lost_count, 'message')}")
        _print_lost(plan.lost, plan.lost_count)
    if plan.given_up:
        click.echo("given up, because the filler needs their space:")
        _print_lost(plan.given_up, len(plan.given_up))
