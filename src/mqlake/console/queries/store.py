"""Store directories: files, offsets, records with every field explained, queues, index, checkpoint, verify, dropped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from mqlake.base.rendering import as_object, size_text
from mqlake.console.ask import Ask
from mqlake.console.excerpts import excerpt, has_text, row
from mqlake.console.payload import payload_views
from mqlake.console.record_bytes import (
    dump,
    explain_checkpoint,
    explain_index_header,
    explain_record,
    hex_of,
)
from mqlake.errors import ConfigError, FormatError, MessageError, UnknownKeyError
from mqlake.formats.checkpoint import CHECKPOINT_SIZE
from mqlake.formats.index import INDEX_HEADER_SIZE, decode_entry, entry_position
from mqlake.formats.names import offset_to_file_name
from mqlake.formats.record import decode_record
from mqlake.message import MessageExt
from mqlake.message.rendering import record_object
from mqlake.store.check.info import StoreInfo
from mqlake.store.check.search import Query, check_begins_record, find_by_id, records_of_log, search
from mqlake.store.check.verify import VerifyReport
from mqlake.store.log.log_reader import LogReader, open_log
from mqlake.store.read_only import ReadOnlyStore

SEARCH_S = 2.0
"""A search shows what it has found by then, and goes on from there if asked."""
RECORD_SHOWN = 16 * 1024
"""Bytes of a record in the dump."""
COPY_SHOWN = 4096


async def stores(ask: Ask) -> dict[str, Any]:
    """The directories."""
    rows = []
    for name, files in ask.context.stores.items():
        try:
            info = await files.info()
            rows.append({"name": name, **_head(info), "error": ""})
        except Exception as error:
            rows.append({"name": name, "path": files.path, "error": str(error)})
    return {"stores": rows}


def _head(info: StoreInfo) -> dict[str, Any]:
    return {
        "path": info.path,
        "cleanExit": info.clean_exit,
        "writer": info.writer,
        "minOffset": info.min_offset,
        "maxOffset": info.max_offset,
        "messages": info.messages,
        "topics": info.topics,
        "queues": len(info.queues),
        "size": info.size,
        "diskSize": info.disk_size,
        "keptCopies": info.kept_copies,
    }


async def store(ask: Ask) -> dict[str, Any]:
    """Shows the contents of a store directory: its log files, offsets, index files and state."""
    info = await ask.store.info()
    files, place = ask.paged(info.log_files)
    return {
        "store": ask.text("store"),
        **_head(info),
        "fileSize": info.file_size,
        "timers": as_object(info.timers),
        "checkpoint": as_object(info.checkpoint),
        "logFiles": [as_object(file) | {"name": os.path.basename(file.path)} for file in files],
        "indexFiles": [as_object(file) | {"name": os.path.basename(file.path)} for file in info.index_files],
        "place": place,
    }


# ---------------------------------------------------------------------- queues


async def queues(ask: Ask) -> dict[str, Any]:
    """The consume queues of a store, those whose topic contains `filter`."""
    info = await ask.store.info()
    part = ask.text("filter").lower()
    found = [queue for queue in info.queues if part in queue.topic.lower()]
    rows, place = ask.paged(found)
    return {
        "store": ask.text("store"),
        "filter": ask.text("filter"),
        "queues": [as_object(queue) | {"messages": queue.count} for queue in rows],
        "place": place,
    }


async def queue(ask: Ask) -> dict[str, Any]:
    """The units of one consume queue: each leads to a record."""
    topic, queue_id, rows = ask.need("topic"), ask.number("queue", 0), ask.rows()

    def look(opened: ReadOnlyStore) -> dict[str, Any]:
        found = opened.consume_queues.get(topic, queue_id)
        if found is None:
            raise UnknownKeyError(
                f"{topic}/{queue_id}",
                [f"{each.topic}/{each.queue_id}" for each in opened.consume_queues],
                what="queue",
            )
        low, high = found.min_offset_in_queue, found.max_offset_in_queue
        offset = ask.number("offset", max(low, high - rows))
        units = found.get_range(max(low, offset), rows)
        batch = "batch_size" in (units.dtype.names or ())
        shown = []
        for number, unit in enumerate(units):
            shown.append(
                {
                    "queueOffset": int(unit["msg_base_offset"]) if batch else max(low, offset) + number,
                    "physicalOffset": int(unit["offset"]),
                    "size": int(unit["size"]),
                    "tagsCode": int(unit["tags_code"]),
                    "storeTimestamp": opened.store_timestamp_at(int(unit["offset"]), int(unit["size"])),
                }
            )
        return {"minOffset": low, "maxOffset": high, "offset": max(low, offset), "units": shown}

    found = await ask.store.ask(look)
    return {"store": ask.text("store"), "topic": topic, "queueId": queue_id, "rows": rows, **found}


# ---------------------------------------------------------------------- records


async def log(ask: Ask) -> dict[str, Any]:
    """Records in the order of the log, from a physical offset or a time on, and what between them is no record."""
    rows = ask.rows()

    def look(opened: ReadOnlyStore) -> dict[str, Any]:
        files = open_log(opened.config)
        try:
            offset = ask.number("offset", opened.min_phy_offset)
            if ask.text("offset"):
                check_begins_record(files, offset)
            walk = LogReader(files, check_crc=False).walk(max(offset, opened.min_phy_offset))
            found: list[dict[str, Any]] = []
            following = None
            for record in records_of_log(walk):
                message = decode_record(record, check_crc=False)
                if len(found) == rows:
                    following = message.physical_offset
                    break
                found.append(row(message))
            holes = [as_object(hole) | {"size": hole.size} for hole in walk.holes]
        finally:
            files.close()
        return {"offset": offset, "records": found, "next": following, "holes": holes}

    found = await ask.store.ask(look)
    return {"store": ask.text("store"), "rows": rows, **found}


async def record(ask: Ask) -> dict[str, Any]:
    """One record: the message, and its bytes with every field explained."""
    offset = ask.number("offset", 0)

    def look(opened: ReadOnlyStore) -> dict[str, Any]:
        data = opened.select_one_message_by_offset(offset)
        if data is None:
            raise ConfigError(
                f"no record begins at offset {offset}: the log holds {opened.min_phy_offset} to {opened.max_phy_offset}"
            )
        try:
            message = decode_record(data, check_crc=False)
            fields = explain_record(data)
        except (FormatError, MessageError) as error:
            raise ConfigError(f"no record begins at offset {offset}: {error}") from None
        body = excerpt(message.body, message.sys_flag)
        file_size = opened.config.mapped_file_size_commit_log
        return {
            "record": record_object(message),
            "payload": payload_views(body, message.topic, ask.context.bodies),
            "fields": [as_object(each) | {"hex": hex_of(data, each)} for each in fields],
            "dump": dump(data, fields, RECORD_SHOWN),
            "cut": len(data) > RECORD_SHOWN,
            "file": offset_to_file_name(offset // file_size * file_size),
            "position": offset % file_size,
            "next": offset + message.store_size,
        }

    return {"store": ask.text("store"), "offset": offset, **await ask.store.ask(look)}


async def search_store(ask: Ask) -> dict[str, Any]:
    """Messages of a store by id, key, topic, tag, time, and text in the body."""
    query = Query(
        ask.text("topic") or None,
        ask.text("key") or None,
        ask.text("tag") or None,
        ask.time("from") or 0,
        2**63 - 1 if (end := ask.time("to")) is None else end,
    )
    message_id, text, rows = ask.text("id"), ask.raw_text("text").encode(), ask.rows()
    asked = message_id or text or any((query.topic, query.key, query.tag, ask.text("from"), ask.text("to")))
    asked_for = {name: ask.text(name) for name in ("id", "topic", "key", "tag", "from", "to", "text")}
    answer: dict[str, Any] = {
        "store": ask.text("store"),
        "query": asked_for,
        "asked": bool(asked),
        "records": [],
    }
    answer |= {"next": None, "complete": True, "lookedAt": 0}
    if not asked:
        return answer
    after = ask.number("after", -1, -1)

    def look(opened: ReadOnlyStore) -> dict[str, Any]:
        files = open_log(opened.config)
        try:
            return _search(_matching(opened, files, query, message_id, after), text, rows)
        finally:
            files.close()

    return answer | await ask.store.ask(look)


def _matching(
    opened: ReadOnlyStore, files: Any, query: Query, message_id: str, after: int
) -> Iterator[tuple[MessageExt, bool]]:
    """Messages in the order of the log, and whether each matches."""
    if message_id:
        yield from ((message, True) for _, message in find_by_id(opened, files, message_id, query.topic))
    elif query.key is not None:
        found = search(opened, files, query)
        yield from ((message, True) for _, message in found if message.physical_offset >= after)
    else:
        start = max(after, opened.min_phy_offset)
        for data in records_of_log(
            LogReader(files, check_crc=False).walk(start), topic=query.topic, begin=query.begin
        ):
            message = decode_record(data, check_crc=False)
            yield message, query.matches(message)


def _search(found: Iterator[tuple[MessageExt, bool]], text: bytes, rows: int) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    limit, looked = time.monotonic() + SEARCH_S, 0
    complete, following = True, None
    for message, matches in found:
        looked += 1
        if len(shown) == rows or (looked > 1 and time.monotonic() > limit):
            complete, following = False, message.physical_offset
            break
        if matches and (not text or has_text(message.body, message.sys_flag, text)):
            shown.append(row(message))
    return {"records": shown, "complete": complete, "next": following, "lookedAt": looked}


# ---------------------------------------------------------------------- index and checkpoint


async def index_file(ask: Ask) -> dict[str, Any]:
    """One index file: its header, byte by byte, and its entries."""
    name, rows = ask.need("file"), ask.rows()

    def look(opened: ReadOnlyStore) -> dict[str, Any]:
        files = {os.path.basename(file.path): file for file in (opened.index.files if opened.index else ())}
        if name not in files:
            raise UnknownKeyError(name, files, what="index file")
        file = files[name]
        view, header = file.mapped_file.view, file.header
        last = file.index_count - 1
        first = ask.number("entry", max(1, last - rows + 1), 1)
        entries = []
        for number in range(first, min(first + rows, last + 1)):
            entry = decode_entry(view, entry_position(number, file.hash_slot_num))
            entries.append(
                {"number": number}
                | entry._asdict()
                | {"storedAbout": header.begin_timestamp + entry.time_diff * 1000}
            )
        head = bytes(view[:INDEX_HEADER_SIZE])
        fields = explain_index_header(head)
        return {
            "entries": entries,
            "first": first,
            "last": last,
            "fields": [as_object(each) | {"hex": hex_of(head, each)} for each in fields],
            "dump": dump(head, fields),
            "slots": file.hash_slot_num,
            "capacity": file.index_num - 1,
        }

    return {"store": ask.text("store"), "file": name, "rows": rows, **await ask.store.ask(look)}


async def checkpoint(ask: Ask) -> dict[str, Any]:
    """The checkpoint, byte by byte: from where the next start checks."""

    def look(opened: ReadOnlyStore) -> dict[str, Any]:
        path = opened.config.checkpoint_path
        try:
            with open(path, "rb") as file:
                data = file.read(CHECKPOINT_SIZE)
        except FileNotFoundError:
            data = b""
        if len(data) < CHECKPOINT_SIZE:
            return {"path": path, "fields": [], "dump": []}
        fields = explain_checkpoint(data)
        shown = [as_object(each) | {"hex": hex_of(data, each)} for each in fields]
        return {"path": path, "fields": shown, "dump": dump(data, fields)}

    return {"store": ask.text("store"), **await ask.store.ask(look)}


# ---------------------------------------------------------------------- verify and dropped


async def verify(ask: Ask) -> dict[str, Any]:
    """The last verification that this console ran on a store: progress, and findings by file and offset."""
    assert ask.context.jobs is not None
    job = ask.context.jobs.get(f"verify {ask.store.path}")
    report: VerifyReport | None = job.result if job is not None else None
    rows, place = ask.paged(report.findings if report is not None else [])
    answer: dict[str, Any] = {"store": ask.text("store"), "path": ask.store.path, "place": place}
    answer["job"] = job.state() if job is not None else None
    answer["findings"] = [as_object(finding) for finding in rows]
    answer["report"] = None
    if report is not None:
        shown = {**as_object(report), "ok": report.ok}
        for name in ("findings", "holes", "lost", "wrongFields"):
            del shown[name]
        answer["report"] = shown
        answer["lost"] = [as_object(each) for each in report.lost[:100]]
    return answer


async def start_verify(ask: Ask) -> dict[str, Any]:
    """Starts a verification, which reads everything and changes nothing."""
    assert ask.context.jobs is not None
    ask.context.jobs.start(f"verify {ask.store.path}", ask.store.verify)
    return await verify(ask)


async def dropped(ask: Ask) -> dict[str, Any]:
    """Bytes that recovery or repair took out of the log and kept, and the messages in them."""
    copies = await ask.store.copies()
    rows, place = ask.paged(copies)
    shown = []
    for looked in rows:
        found = as_object(looked)
        del found["records"]
        shown.append({**found.pop("copy"), **found})
    return {"store": ask.text("store"), "copies": shown, "place": place}


async def dropped_copy(ask: Ask) -> dict[str, Any]:
    """The bytes of one kept copy, from `offset` on, and the records that are whole."""
    name, offset = ask.need("name"), ask.number("offset", 0)
    copies = {each.copy.name: each for each in await ask.store.copies()}
    if name not in copies:
        raise UnknownKeyError(name, copies, what="kept copy")
    looked = copies[name]

    def look(_opened: ReadOnlyStore) -> dict[str, Any]:
        with open(looked.copy.path, "rb") as file:
            file.seek(offset)
            data = file.read(COPY_SHOWN)
            records = []
            for position, size in looked.records[:200]:
                file.seek(position)
                message = decode_record(file.read(size), check_crc=False)
                records.append(row(message) | {"position": position})
        return {"dump": dump(data, []), "records": records}

    return {
        "store": ask.text("store"),
        **as_object(looked.copy),
        "offset": offset,
        "shown": COPY_SHOWN,
        "sizeText": size_text(looked.copy.size),
        **await ask.store.ask(look),
    }
