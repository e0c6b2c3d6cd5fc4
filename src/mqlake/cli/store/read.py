"""`mqlake store info | dump | search`: inspecting a store, also while a writer runs."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator

import click

from mqlake.base.findings import Findings
from mqlake.cli.options import Whole, directory_argument, json_option, set_option, time_ms
from mqlake.cli.output import (
    as_object,
    count_text,
    note,
    print_fields,
    print_json,
    print_json_line,
    print_table,
    progress,
    size_text,
    time_text,
)
from mqlake.cli.standard_streams import EXIT_NOT_FOUND
from mqlake.errors import StoreCorruptError, StoreError, did_you_mean, nearest
from mqlake.formats.columns import Scan
from mqlake.formats.record import decode_record
from mqlake.message import MessageExt
from mqlake.message.rendering import record_line, record_object
from mqlake.store.check.info import ArchiveInfo, StoreInfo, store_info
from mqlake.store.check.search import (
    Query,
    check_begins_record,
    file_at_time,
    find_by_id,
    records_of_log,
    records_of_queue,
)
from mqlake.store.check.search import search as search_store
from mqlake.store.check.verify import load_queues, store_config
from mqlake.store.config import MessageStoreConfig
from mqlake.store.log.log_reader import Hole, HoleKind, LogReader, open_log, refuse_foreign
from mqlake.store.queues.consume_queue_store import ConsumeQueueStore
from mqlake.store.queues.leads_to import is_known
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.results import BoundaryType
from mqlake.store.timer.timer_view import TimerState

# ---------------------------------------------------------------------- info


@click.command()
@directory_argument
@set_option
@json_option
def info(directory: str, settings: dict[str, str], as_json: bool) -> None:
    """Show files, offsets, topics, queues, checkpoint and state.

    Works while a writer runs, and modifies nothing.
    """
    found = store_info(directory, settings)
    if as_json:
        queues = [as_object(queue) | {"count": queue.count} for queue in found.queues]
        print_json(as_object(found) | {"queues": queues})
    else:
        _print_info(found)


def _state(clean_exit: bool, writer: int | None) -> str:
    if writer is not None:
        return f"being written by process {writer or '?'}"
    return "closed cleanly" if clean_exit else "not closed cleanly: the next start recovers"


def _timers_text(timers: TimerState) -> str:
    waiting = f"{count_text(timers.waiting, 'message')} {'waits' if timers.waiting == 1 else 'wait'}"
    if not timers.waiting:
        return waiting
    return f"{waiting}, due from {time_text(timers.first_due)} to {time_text(timers.last_due)}"


def _archive_text(archive: ArchiveInfo) -> str:
    return (
        f"{archive.begin} to {archive.end} ({size_text(archive.bytes)} in {count_text(archive.objects, 'object')}), "
        f"as of {time_text(archive.saved_timestamp)}"
    )


def _messages_text(found: StoreInfo) -> str:
    queues, topics = count_text(len(found.queues), "queue"), count_text(found.topics, "topic")
    return f"{found.messages:,} in {queues} of {topics}"


def _print_info(found: StoreInfo) -> None:
    print_fields(
        [
            ("store", found.path),
            ("state", _state(found.clean_exit, found.writer)),
            (
                "log",
                f"{found.min_offset} to {found.max_offset} ({size_text(found.max_offset - found.min_offset)})",
            ),
            *([("archive", _archive_text(found.archive))] if found.archive is not None else []),
            ("messages", _messages_text(found)),
            ("size", f"{size_text(found.size)}, {size_text(found.disk_size)} on disk"),
            *([("timers", _timers_text(found.timers))] if found.timers is not None else []),
            *([("kept", found.kept_copies)] if found.kept_copies else []),
        ]
    )
    if (checkpoint := found.checkpoint) is not None:
        click.echo("\ncheckpoint")
        print_fields(
            [
                ("physicMsgTimestamp", time_text(checkpoint.physic_msg_timestamp)),
                ("logicsMsgTimestamp", time_text(checkpoint.logics_msg_timestamp)),
                ("indexMsgTimestamp", time_text(checkpoint.index_msg_timestamp)),
                ("masterFlushedOffset", str(checkpoint.master_flushed_offset)),
                ("confirmPhyOffset", str(checkpoint.confirm_phy_offset)),
            ],
            indent=2,
        )
    _print_info_of_files(found)


def _print_info_of_files(found: StoreInfo) -> None:
    click.echo(f"\ncommit log: {count_text(len(found.log_files), 'file')} of {size_text(found.file_size)}")
    rows = [
        (
            os.path.basename(file.path),
            str(file.end_offset),
            time_text(file.first_store_timestamp),
            size_text(file.disk_size),
        )
        for file in found.log_files
    ]
    if rows:
        print_table(("file", "to", "first message", "on disk"), rows, indent=2)
    if found.queues:
        click.echo("\nqueues")
        print_table(
            ("topic", "queue", "type", "min", "max", "messages"),
            [(q.topic, str(q.queue_id), q.type, q.min_offset, q.max_offset, q.count) for q in found.queues],
            indent=2,
        )
    if found.index_files:
        click.echo("\nindex")
        print_table(
            ("file", "entries", "of", "first message"),
            [
                (os.path.basename(f.path), f.entries, f.capacity, time_text(f.begin_timestamp))
                for f in found.index_files
            ],
            indent=2,
        )


# ---------------------------------------------------------------------- dump


@click.command()
@directory_argument
@click.option("--offset", type=Whole(0), help="Physical offset of the first record.")
@click.option("--topic", help="Only records of this topic.")
@click.option("--queue", "queue_id", type=Whole(0), help="Only records of this queue of --topic.")
@click.option("--from-offset", type=Whole(0), help="Queue offset to start at; requires --queue.")
@click.option(
    "--time",
    "time_from",
    type=time_ms,
    metavar="TIME",
    help="Earliest store time: ms since 1970, or ISO 8601.",
)
@click.option("--max", "count_max", type=Whole(0), help="Maximum number of records.")
@click.option("--raw", is_flag=True, help="Print the bytes of the records as they are in the log.")
@set_option
@json_option
def dump(
    directory: str,
    offset: int | None,
    topic: str | None,
    queue_id: int | None,
    from_offset: int | None,
    time_from: int | None,
    count_max: int | None,
    raw: bool,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """Print records from an offset, a queue offset or a time to the end of the log.

    Without --queue they come in the order of the log. Damage in the log is skipped and reported on stderr, with exit
    status 1. --json prints one object per line, with the body in base64.
    """
    if queue_id is not None and topic is None:
        raise click.UsageError("--queue requires --topic")
    if from_offset is not None and queue_id is None:
        raise click.UsageError("--from-offset requires --topic and --queue")
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    if sum(value is not None for value in (offset, from_offset, time_from)) > 1:
        raise click.UsageError("use only one of --offset, --from-offset and --time")
    if offset is not None and queue_id is not None:
        raise click.UsageError("--offset is a physical offset; with --queue use --from-offset")
    if topic is not None and queue_id is not None:
        with ReadOnlyStore(directory, settings) as store:
            if store.consume_queues.get(topic, queue_id) is None:
                raise StoreError(_no_queue(store, topic, queue_id))
            start = from_offset or 0
            if time_from is not None:
                start = store.get_offset_in_queue_by_time(topic, queue_id, time_from, BoundaryType.LOWER)
            records = records_of_queue(store, topic, queue_id, start)
            _print_records(itertools.islice(records, count_max), raw=raw, as_json=as_json)
        return
    config = store_config(directory, settings)
    log = open_log(config)
    try:
        refuse_foreign(log)
        if offset is not None:
            check_begins_record(log, offset)
        if time_from is not None:
            offset = file_at_time(log, time_from)
        with contextlib.closing(_KnownRecords(config)) as known:
            reader = LogReader(log, force_prop_crc=config.writes_prop_crc)
            walk = reader.walk(offset, is_known=known.has)
            records = records_of_log(walk, topic=topic, begin=time_from or 0)
            printed = _print_records(itertools.islice(records, count_max), raw=raw, as_json=as_json)
        _end_with_holes(walk.holes)
        if topic is not None and not printed and count_max != 0:
            raise _no_record_of(topic, config)
    finally:
        log.close()


def _topics_of(config: MessageStoreConfig) -> list[str]:
    """The topics that have consume queues."""
    directory = config.consume_queue_dir
    return os.listdir(directory) if os.path.isdir(directory) else []


def _no_record_of(topic: str, config: MessageStoreConfig) -> StoreError:
    return StoreError(f"no record of topic {topic}{did_you_mean(nearest(topic, _topics_of(config)))}")


class _KnownRecords:
    """The records that consume queues point to; loaded only when needed, after damage or after a clock went back."""

    def __init__(self, config: MessageStoreConfig) -> None:
        self._config = config
        self._queues: ConsumeQueueStore | None = None

    def has(self, scan: Scan, record: int) -> bool:
        if self._queues is None:
            self._queues = load_queues(self._config, Findings())
        return is_known(self._queues, scan, record)

    def close(self) -> None:
        if self._queues is not None:
            self._queues.close()


def _no_queue(store: ReadOnlyStore, topic: str, queue_id: int) -> str:
    queues = sorted(store.consume_queues.queues(topic))
    if queues:
        return f"{topic} has no queue {queue_id}; it has {', '.join(map(str, queues))}"
    topics = sorted(store.consume_queues.topics())
    known = ", ".join(topics[:10]) + (", …" if len(topics) > 10 else "")
    return f"the store has no topic {topic}; it has {known or 'none'}"


def _print_records(records: Iterable[memoryview], *, raw: bool, as_json: bool) -> int:
    """How many there were."""
    count = 0
    for count, record in enumerate(records, 1):  # noqa: B007
        if raw:
            sys.stdout.buffer.write(record)
        else:
            _print_message(decode_record(record), as_json=as_json)
    sys.stdout.flush()
    return count


def _print_message(message: MessageExt, *, as_json: bool) -> None:
    if as_json:
        print_json_line(record_object(message))
    else:
        click.echo(record_line(message))


def _end_with_holes(holes: list[Hole]) -> None:
    damage = [hole for hole in holes if hole.kind is HoleKind.CORRUPT]
    for hole in damage[1:]:
        note(f"damage: {hole.path}: byte {hole.position}: {hole.size} bytes: {hole.reason}")
    if damage:
        hole = damage[0]
        raise StoreCorruptError(
            hole.path,
            hole.position,
            f"{hole.size} bytes skipped ({hole.reason})",
            hint="`mqlake store verify` shows what is lost",
        )


# ---------------------------------------------------------------------- search


@click.command()
@directory_argument
@click.option("--key", help="One of the KEYS of the message, or its UNIQ_KEY.")
@click.option("--id", "message_id", metavar="ID", help="Offset message id, or the id given by the producer.")
@click.option("--topic", help="Only messages of this topic.")
@click.option("--tag", help="Only messages with this tag.")
@click.option(
    "--from",
    "begin",
    type=time_ms,
    metavar="TIME",
    help="Stored at or after this time: ms since 1970, or ISO 8601.",
)
@click.option("--to", "end", type=time_ms, metavar="TIME", help="Stored at or before this time.")
@click.option("--max", "count_max", type=Whole(0), help="Maximum number of messages.")
@click.option("--scan", is_flag=True, help="Read the whole log; use neither index nor queues.")
@set_option
@json_option
def search(
    directory: str,
    key: str | None,
    message_id: str | None,
    topic: str | None,
    tag: str | None,
    begin: int | None,
    end: int | None,
    count_max: int | None,
    scan: bool,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """Find messages by key, id, time, tag or topic.

    All conditions must match. Keys are looked up in the index, tags in the queues of the topic; the rest of the log
    is read. Exit status 1 if there is no such message. --json prints one object per line.
    """
    wanted = (key, message_id, topic, tag, begin, end)
    if all(value is None for value in wanted):
        raise click.UsageError("nothing to search for: use --key, --id, --topic, --tag, --from or --to")
    if message_id is not None and any(value is not None for value in (key, tag, begin, end)):
        raise click.UsageError("--id can only be combined with --topic")
    with ReadOnlyStore(directory, settings) as store:
        log = open_log(store.config)
        try:
            refuse_foreign(log)
            with progress("searching", among_results=True) as report:
                found: Iterator[tuple[memoryview, MessageExt]]
                if message_id is not None:
                    found = find_by_id(store, log, message_id, topic, report)
                else:
                    query = Query(topic, key, tag, begin or 0, 2**63 - 1 if end is None else end)
                    found = search_store(store, log, query, scan=scan, progress=report)
                count = 0
                for _, message in itertools.islice(found, count_max):
                    _print_message(message, as_json=as_json)
                    count += 1
        finally:
            log.close()
        if topic is not None and not count and count_max != 0 and topic not in _topics_of(store.config):
            raise _no_record_of(topic, store.config)
    note(count_text(count, "message") + " found")
    if not count and count_max != 0:
        sys.exit(EXIT_NOT_FOUND)
