"""Stores of all kinds of records, what is in them by the plain decoder, and damage done to them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mqlake.errors import FormatError
from mqlake.formats.batch import encode_messages, unwrap_inner_batch
from mqlake.formats.compression import COMPRESSION_NAMES, compress_body, decompress_body
from mqlake.formats.record import decode_record
from mqlake.message import (
    PROPERTY_INNER_NUM,
    Message,
    MessageExt,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageSysFlag,
)
from mqlake.store import PutMessageStatus, open_store
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.log_reader import LogReader
from mqlake.store.message_store import DefaultMessageStore

BORN = 1_700_000_000_000
V4, V6 = ("10.1.2.3", 5001), ("2001:db8::7", 5002)
SETTINGS: dict[str, object] = {
    "autoMessageVersionOnTopicLen": True,
    "mappedFileSizeCommitLog": 16 << 10,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
COMPRESSIONS = (*COMPRESSION_NAMES.values(), 0)
HIDDEN_TOPICS = {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def messages() -> Iterator[MessageExtBrokerInner]:
    """Topics, queues, tags, keys, hosts, flags, bodies and properties of many shapes."""
    for n in range(160):
        message = MessageExtBrokerInner(
            f"Topic-{n % 5}" if n % 31 else "%RETRY%" + "long" * 40,
            b"" if n % 17 == 0 else bytes([n % 256]) * (n * 7 % 300),
            tags=("TagA", "标签", None)[n % 3],
            keys=[f"key-{n}", "shared"][: n % 3] or None,
            flag=n - 80,
            queue_id=n % 3,
            born_timestamp=BORN + n,
            born_host=V6 if n % 4 == 1 else V4,
            store_host=V6 if n % 8 in (1, 3) else V4,
            reconsume_times=n % 2,
        )
        if n % 6 == 0:
            message.properties.update({"ключ": "значение 🚀", "empty": "", "a=b": "x\x01y"})
        if n % 7 == 0:
            message.uniq_key = f"7F00000100{n:022X}"
        if n % 19 == 0:
            message.properties["DELAY"] = str(n % 18 + 1)
        if n % 23 == 0:
            message.sys_flag |= MessageSysFlag.COMPRESSED_FLAG | COMPRESSIONS[n // 23 % 4]
            message.body = compress_body(message.body, message.sys_flag)
        if n % 29 == 0:
            message.sys_flag |= (n // 29 % 4) << 2
            message.prepared_transaction_offset = n
        yield message


def extremes(topic: str) -> Iterator[MessageExtBrokerInner]:
    """Messages with each field that a client sets at its limits, as far as a store takes them."""
    times = (-(2**63), -62_135_596_800_001, -62_135_596_800_000, -1, 253_402_300_799_999, 253_402_300_800_000)
    given: list[dict[str, Any]] = [{"born_timestamp": ms} for ms in (*times, BORN * 1000, 2**63 - 1, 0)]
    hosts = (("255.255.255.255", 65535), ("0.0.0.0", -1), ("::", 0), ("ffff:" * 7 + "ffff", 2**31 - 1))
    given += [{"born_host": host} for host in hosts]
    for name in ("flag", "reconsume_times"):
        given += [{name: -(2**31)}, {name: 2**31 - 1}]
    for text in (
        "",
        " ",
        "x" * 16_000,
        "\ud7ff" * 40,
        "\U0010ffff" * 40,
        "\x00\x1b[31m",
        "'\"\\",
        "\u2028🚀",
    ):
        given += [{"keys": text or None}, {"tags": text or None}]
        given += [{"properties": {"UNIQ_KEY": text}}, {"properties": {text or "a": text}}]
    given += [{"properties": {str(n): "" for n in range(1000)}}, {"properties": {"DELAY": "-1"}}]
    for each in given:
        yield MessageExtBrokerInner(topic, each.pop("body", b"{}"), **each)


def batch(first: int) -> MessageExtBatch:
    items = [Message("Batch", bytes(10 * i), tags="b", keys=f"batch-{first + i}") for i in range(4)]
    return MessageExtBatch(
        "Batch", encode_messages(items), queue_id=1, born_timestamp=BORN, born_host=V4, store_host=V4
    )


def write_store(root: Path, **settings: object) -> None:
    with open_store(root, {**SETTINGS, **settings}) as store:
        for n, message in enumerate(messages()):
            result = store.put_message(message)
            assert result.status is PutMessageStatus.PUT_OK, (n, result.reason)
            if n % 40 == 0:
                assert store.put_messages(batch(n)).status is PutMessageStatus.PUT_OK


def write_inner_batches(root: Path, count: int = 12) -> None:
    """Batches that are one record each, compressed and not."""
    config = dataclasses.replace(MessageStoreConfig.from_mapping(SETTINGS), store_path_root_dir=str(root))
    store = DefaultMessageStore(config, is_batch_topic=lambda topic: topic == "Batch")
    store.load()
    store.start()
    try:
        for n in range(count):
            message = batch(n)
            message.sys_flag |= MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG
            message.properties[PROPERTY_INNER_NUM] = "4"
            if n % 3 == 0:
                message.sys_flag |= MessageSysFlag.COMPRESSED_FLAG | COMPRESSIONS[n // 3 % 4]
                message.body = compress_body(message.body, message.sys_flag)
            assert store.put_message(message).is_ok
    finally:
        store.shutdown()


def copy_store(root: Path, to: Path) -> Path:
    """With holes kept as holes."""
    shutil.copytree(root, to, copy_function=shutil.copyfile)
    return to


def decoded(root: Path) -> list[MessageExt]:
    """Every message of a sound store, each decoded by itself."""
    queue = MappedFileQueue(str(root / "commitlog"), log_files(root)[0].stat().st_size, read_only=True)
    with contextlib.closing(queue):
        queue.load()
        return [
            decode_record(chunk.mapped_file.view, int(position))
            for chunk in LogReader(queue).scan(queue.min_offset)
            for position in chunk.scan.position
        ]


def seen(root: Path) -> list[MessageExt]:
    """What a consumer would see of a sound store: the messages of decoded(), unpacked one by one.

    Those that cannot be unpacked are left out.
    """
    found = []
    for record in decoded(root):
        if record.topic in HIDDEN_TOPICS or record.sys_flag & 0xC in (0x4, 0xC):
            continue
        size, crc, prepared = record.store_size, record.body_crc, record.prepared_transaction_offset
        try:
            record.body = decompress_body(record.body, record.sys_flag)
        except FormatError:  # some of Java's have the flag only
            continue
        for message in unwrap_inner_batch(record):
            message.store_size, message.body_crc = size, crc
            message.prepared_transaction_offset = prepared
            message.reconsume_times = record.reconsume_times
            found.append(message)
    return found


def row_of(message: MessageExt, path: Path | str) -> dict[str, Any]:
    """What the source is to give for a message."""
    properties = message.properties
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "msgId": message.msg_id,
        "uniqKey": properties.get("UNIQ_KEY"),
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "body": message.body,
        "bodyCrc": message.body_crc,
        "properties": properties,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": time_of(message.born_timestamp),
        "bornHost": host_text(message.born_host),
        "storeTimestamp": time_of(message.store_timestamp),
        "storeHost": host_text(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "size": message.store_size,
        "brokerName": None,
        "path": str(path),
    }


def time_of(ms: int) -> datetime | None:
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def host_text(host: tuple[str, int]) -> str:
    ip, port = host
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def flip_bit(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        byte = os.pread(file.fileno(), 1, position)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 0x10]), position)


def overwrite(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), data, position)


def body_position(message: MessageExt) -> int:
    """Where a message's body begins in its record."""
    return 88 + 12 * (message.sys_flag & 0x30).bit_count()
