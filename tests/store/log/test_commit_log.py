"""CommitLog: what a message becomes, when it is refused, how files roll."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqlake.formats.batch import encode_messages
from mqlake.formats.record import (
    BLANK_MAGIC_CODE,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    decode_record,
    encode_message,
)
from mqlake.message import (
    SCHEDULE_TOPIC,
    Message,
    MessageExt,
    MessageExtBatch,
    MessageExtBrokerInner,
    MessageSysFlag,
    MessageTimeUp,
    decode_message_id,
)
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.appender import QueueId, Write, Written
from mqlake.store.log.commit_log import CommitLog
from mqlake.store.results import AppendMessageStatus, PutMessageResult, PutMessageStatus
from tests.clock import START_MS, Clock
from tests.waiting import trying

HOST = ("127.0.0.1", 10911)
FILE_SIZE = 64 * 1024


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return make(tmp_path)


def make(path: Path, **settings: object) -> CommitLog:
    config = MessageStoreConfig(
        store_path_root_dir=str(path), mapped_file_size_commit_log=FILE_SIZE, max_message_size=40_000
    )
    config = dataclasses.replace(config, **settings)
    queue = MappedFileQueue(
        config.commit_log_dir, config.mapped_file_size_commit_log, without_mmap=config.write_without_mmap
    )
    return CommitLog(
        config, queue, {}, clock_ms=Clock(START_MS), is_batch_topic=lambda topic: topic == "BatchCQ"
    )


def message(topic: str = "TopicTest", body: bytes = b"hello", **fields: object) -> MessageExtBrokerInner:
    msg = MessageExtBrokerInner(topic, body)
    msg.born_host = msg.store_host = HOST
    for name, value in fields.items():
        setattr(msg, name, value)
    return msg


def stored(log: CommitLog, offset: int) -> MessageExt:
    size = log.files.select(offset, 4)
    assert size is not None
    record = log.files.select(offset, int.from_bytes(size, "big"))
    assert record is not None
    return decode_record(record)


@pytest.mark.parametrize("rounds", [1, 3], ids=["first", "later"])
@pytest.mark.parametrize("without_mmap", [False, True])
class TestOneMessage:
    def test_becomes_a_record_with_all_its_fields(
        self, tmp_path: Path, rounds: int, without_mmap: bool
    ) -> None:
        log = make(tmp_path, write_without_mmap=without_mmap)
        for _ in range(rounds):
            msg = message(
                queue_id=3, flag=7, born_timestamp=5, reconsume_times=2, prepared_transaction_offset=9
            )
            msg.tags, msg.keys = "TagA", "k1 k2"
            result = log.put_message(msg)
        number = rounds - 1
        assert result.status is PutMessageStatus.PUT_OK
        appended = result.append_result
        assert appended is not None
        assert appended.status is AppendMessageStatus.PUT_OK
        assert (appended.logics_offset, appended.msg_num) == (number, 1)
        assert appended.store_timestamp == START_MS
        assert appended.msg_id is not None
        assert decode_message_id(appended.msg_id) == (HOST, appended.wrote_offset)
        found = stored(log, appended.wrote_offset)
        assert found.store_size == appended.wrote_bytes
        assert (found.topic, found.body, found.tags, found.keys) == ("TopicTest", b"hello", "TagA", "k1 k2")
        assert (found.queue_id, found.flag, found.queue_offset) == (3, 7, number)
        assert (found.born_timestamp, found.store_timestamp) == (5, START_MS)
        assert (found.born_host, found.store_host) == (HOST, HOST)
        assert (found.reconsume_times, found.prepared_transaction_offset) == (2, 9)
        assert found.physical_offset == appended.wrote_offset == msg.physical_offset

    def test_an_ipv6_host_sets_its_flag(self, tmp_path: Path, rounds: int, without_mmap: bool) -> None:
        log = make(tmp_path, write_without_mmap=without_mmap)
        for _ in range(rounds):
            result = log.put_message(message(born_host=("2001:db8::1", 5)))
        assert result.append_result is not None
        found = stored(log, result.append_result.wrote_offset)
        assert found.born_host == ("2001:db8::1", 5)
        assert found.sys_flag == MessageSysFlag.BORNHOST_V6_FLAG

    def test_a_flag_of_ipv6_that_is_not_true_is_taken_away(
        self, tmp_path: Path, rounds: int, without_mmap: bool
    ) -> None:
        """As a message has it that was read and is put again from another host."""
        log = make(tmp_path, write_without_mmap=without_mmap)
        flags = MessageSysFlag.BORNHOST_V6_FLAG | MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
        for _ in range(rounds):
            result = log.put_message(message(sys_flag=flags | 1))
        assert result.append_result is not None
        found = stored(log, result.append_result.wrote_offset)
        assert (found.born_host, found.store_host, found.sys_flag) == (HOST, HOST, 1)


class TestQueueOffsets:
    def test_count_up_for_each_queue(self, log: CommitLog) -> None:
        for queue_id in (0, 1, 0, 0, 1):
            log.put_message(message(queue_id=queue_id))
        assert log.queue_offsets == {("TopicTest", 0): 3, ("TopicTest", 1): 2}

    @pytest.mark.parametrize(
        "sys_flag", [MessageSysFlag.TRANSACTION_PREPARED_TYPE, MessageSysFlag.TRANSACTION_ROLLBACK_TYPE]
    )
    def test_prepared_and_rolled_back_messages_do_not_advance(self, log: CommitLog, sys_flag: int) -> None:
        log.put_message(message())
        result = log.put_message(message(sys_flag=sys_flag))
        assert result.append_result is not None and result.append_result.msg_num == 1
        assert stored(log, result.append_result.wrote_offset).queue_offset == 0
        assert log.queue_offsets == {("TopicTest", 0): 1}

    def test_an_inner_batch_advances_by_its_number(self, log: CommitLog) -> None:
        flags = MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG
        for _ in range(2):
            msg = message("BatchCQ", sys_flag=flags)
            msg.properties["INNER_NUM"] = "10"
            result = log.put_message(msg)
        assert log.queue_offsets == {("BatchCQ", 0): 20}
        assert result.append_result is not None
        assert stored(log, result.append_result.wrote_offset).properties["INNER_BASE"] == "10"

    @pytest.mark.parametrize(
        ("topic", "flag", "number"),
        [
            ("Other", 0xC0, "2"),
            ("BatchCQ", 0, "2"),
            *(("BatchCQ", 0xC0, number) for number in ("0", "32768", "-1", "x", "²", "٣", "")),
        ],
    )
    def test_a_wrong_inner_batch_is_illegal(self, log: CommitLog, topic: str, flag: int, number: str) -> None:
        msg = message(topic, sys_flag=flag)
        msg.properties["INNER_NUM"] = number
        assert log.put_message(msg).status is PutMessageStatus.MESSAGE_ILLEGAL

    @pytest.mark.parametrize("number", ["1", "32767"])
    def test_the_number_of_an_inner_batch_has_bounds(self, log: CommitLog, number: str) -> None:
        msg = message("BatchCQ", sys_flag=MessageSysFlag.INNER_BATCH_FLAG)
        msg.properties["INNER_NUM"] = number
        result = log.put_message(msg)
        assert result.append_result is not None and result.append_result.msg_num == int(number)
        assert log.queue_offsets == {("BatchCQ", 0): int(number)}


class TestTimer:
    """Which messages are given to the timer to be rewritten."""

    def given(self, path: Path, msg: MessageExtBrokerInner) -> list[MessageExtBrokerInner]:
        config = MessageStoreConfig(store_path_root_dir=str(path), mapped_file_size_commit_log=FILE_SIZE)
        given: list[MessageExtBrokerInner] = []
        log = CommitLog(config, MappedFileQueue(config.commit_log_dir, FILE_SIZE), {}, put_timer=given.append)
        assert log.put_message(msg).is_ok
        return given

    @pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
    def test_those_with_one_of_its_properties(self, tmp_path: Path, name: str) -> None:
        msg = message()
        msg.properties[name] = "5"
        assert self.given(tmp_path, msg) == [msg]

    def test_no_others(self, tmp_path: Path) -> None:
        delayed, prepared = message(), message(sys_flag=MessageSysFlag.TRANSACTION_PREPARED_TYPE)
        delayed.properties["DELAY"] = "3"
        prepared.properties["TIMER_DELAY_SEC"] = "5"
        time_up = MessageTimeUp("TopicTest", b"due")
        time_up.born_host = time_up.store_host = HOST
        time_up.properties["TIMER_DELAY_SEC"] = "5"
        for number, msg in enumerate((message(), delayed, prepared, time_up)):
            assert self.given(tmp_path / str(number), msg) == []

    def test_without_a_timer_the_message_is_stored_as_it_is(self, log: CommitLog) -> None:
        msg = message()
        msg.properties["TIMER_DELAY_SEC"] = "5"
        result = log.put_message(msg)
        assert result.append_result is not None
        assert stored(log, result.append_result.wrote_offset).properties == {"TIMER_DELAY_SEC": "5"}


class TestDelay:
    @pytest.mark.parametrize(("level", "queue_id", "kept"), [("3", 2, "3"), ("40", 17, "18")])
    def test_goes_to_the_schedule_topic(self, log: CommitLog, level: str, queue_id: int, kept: str) -> None:
        msg = message(queue_id=5)
        msg.properties["DELAY"] = level
        result = log.put_message(msg)
        assert result.append_result is not None
        found = stored(log, result.append_result.wrote_offset)
        assert (found.topic, found.queue_id) == (SCHEDULE_TOPIC, queue_id)
        assert found.properties == {"DELAY": kept, "REAL_TOPIC": "TopicTest", "REAL_QID": "5"}

    def test_a_level_of_zero_or_a_transaction_stays(self, log: CommitLog) -> None:
        for sys_flag, level in ((0, "0"), (MessageSysFlag.TRANSACTION_PREPARED_TYPE, "3")):
            msg = message(sys_flag=sys_flag)
            msg.properties["DELAY"] = level
            result = log.put_message(msg)
            assert result.append_result is not None
            assert stored(log, result.append_result.wrote_offset).topic == "TopicTest"

    def test_what_is_in_the_schedule_topic_stays_where_it_is(self, log: CommitLog) -> None:
        msg = message(SCHEDULE_TOPIC, queue_id=9)
        msg.properties["DELAY"] = "3"
        result = log.put_message(msg)
        assert result.append_result is not None
        found = stored(log, result.append_result.wrote_offset)
        assert (found.topic, found.queue_id, found.properties) == (SCHEDULE_TOPIC, 9, {"DELAY": "3"})

    def test_a_level_that_is_no_number_is_illegal(self, log: CommitLog) -> None:
        msg = message()
        msg.properties["DELAY"] = "soon"
        assert log.put_message(msg).status is PutMessageStatus.MESSAGE_ILLEGAL


class TestRefusal:
    @pytest.mark.parametrize(
        ("topic", "text"),
        [
            ("", "blank"),
            ("a/../b", "contains"),
            ("T" * 128, "127 are allowed"),
            ("%RETRY%" + "g" * 249, "255 are allowed"),
        ],
    )
    def test_a_topic_that_is_illegal(self, log: CommitLog, topic: str, text: str) -> None:
        result = log.put_message(message(topic))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert text in result.reason
        assert log.files.max_offset == 0

    @pytest.mark.parametrize("rounds", [0, 2])
    def test_a_body_too_large(self, log: CommitLog, rounds: int) -> None:
        for _ in range(rounds):
            log.put_message(message())
        assert log.put_message(message(body=b"x" * 40_000)).status is PutMessageStatus.PUT_OK
        before = log.files.max_offset
        result = log.put_message(message(body=b"x" * 40_001))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "40001 bytes, maxMessageSize allows 40000" in result.reason
        assert log.files.max_offset == before

    @pytest.mark.parametrize("rounds", [0, 2])
    def test_properties_too_large(self, log: CommitLog, rounds: int) -> None:
        for _ in range(rounds):
            log.put_message(message())
        msg = message(body=b"")
        msg.properties["p"] = "x" * (32767 - 3)
        assert log.put_message(msg).status is PutMessageStatus.PUT_OK
        msg.properties["p"] = "x" * (32767 - 2)
        assert log.put_message(msg).status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED

    def test_a_record_that_no_file_can_hold(self, tmp_path: Path) -> None:
        log = make(tmp_path, mapped_file_size_commit_log=4096)
        result = log.put_message(message(body=b"x" * 4000))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "a commit log file takes 4088" in result.reason

    def test_a_record_that_just_fits_a_file_is_refused_only_for_want_of_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = make(tmp_path, mapped_file_size_commit_log=4096)
        msg = message(body=b"x" * (4096 - 8 - 91 - len("TopicTest")))
        fail = lambda path: (_ for _ in ()).throw(OSError(28, "No space"))  # noqa: E731
        with monkeypatch.context() as patch:
            patch.setattr(log.files, "_map", fail)
            assert log.put_message(msg).status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        assert log.put_message(msg).is_ok
        assert (log.files.max_offset, log.put_message(msg).is_ok) == (4088, True)

    def test_a_number_that_does_not_fit(self, log: CommitLog) -> None:
        for _ in range(2):
            result = log.put_message(message(queue_id=2**40))
            assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
            log.put_message(message())

    def test_no_space_for_the_next_file(self, log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
        log.put_message(message(body=b"x" * 39_000))
        monkeypatch.setattr(log.files, "_map", lambda path: (_ for _ in ()).throw(OSError(28, "No space")))
        for _ in range(2):
            result = log.put_message(message(body=b"x" * 39_000))
            assert result.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
            assert "No space" in result.reason
        # the file that is there takes what still fits, and goes on when space has returned
        assert log.put_message(message()).status is PutMessageStatus.PUT_OK
        monkeypatch.undo()
        assert log.put_message(message(body=b"x" * 39_000)).status is PutMessageStatus.PUT_OK


def test_a_long_retry_topic_makes_a_version_2_record(log: CommitLog) -> None:
    topic = "%RETRY%" + "g" * 200
    for _ in range(2):
        result = log.put_message(message(topic))
        assert result.append_result is not None
        found = stored(log, result.append_result.wrote_offset)
        assert (found.topic, found.magic) == (topic, MESSAGE_MAGIC_CODE_V2)


def test_the_crc_tail_is_written_and_a_given_one_replaced(tmp_path: Path) -> None:
    log = make(tmp_path, enabled_append_prop_crc=True)
    for _ in range(2):
        msg = message()
        msg.properties["__CRC32#"] = "123"
        result = log.put_message(msg)
    assert result.append_result is not None
    record = log.files.select(result.append_result.wrote_offset, result.append_result.wrote_bytes)
    assert record is not None
    tail = bytes(record[-20:])
    assert tail[:9] == b"__CRC32#\x01"
    assert tail[-1:] == b"\x02"
    assert bytes(record).count(b"__CRC32#") == 1


class TestRoll:
    def fill(self, log: CommitLog, room: int) -> int:
        """Puts messages until exactly `room` bytes are left in the first file; the bytes of an empty message."""
        empty = 91 + len("TopicTest")
        for _ in trying("the file is full"):
            left = FILE_SIZE - log.files.max_offset - room
            size = left if left <= 40_000 + empty else 20_000
            log.put_message(message(body=b"x" * (size - empty)))
            if size == left:
                break
        return empty

    def test_eight_bytes_must_stay(self, log: CommitLog) -> None:
        empty = 91 + len("TopicTest")
        self.fill(log, empty + 8)
        result = log.put_message(message(body=b""))
        assert result.append_result is not None
        assert result.append_result.wrote_offset == FILE_SIZE - empty - 8

    def test_else_a_blank_ends_the_file_and_the_next_begins(self, log: CommitLog) -> None:
        empty = self.fill(log, 91 + len("TopicTest") + 7)
        result = log.put_message(message(body=b""))
        assert result.append_result is not None
        assert result.append_result.wrote_offset == FILE_SIZE
        blank = log.files.select(FILE_SIZE - empty - 7, 8)
        assert blank is not None
        assert int.from_bytes(blank[:4], "big") == empty + 7
        assert int.from_bytes(blank[4:], "big", signed=True) == BLANK_MAGIC_CODE

    def test_to_a_file_without_a_write_buffer_commits_what_waits(self, log: CommitLog) -> None:
        """The pool is empty: the new file's records are there at once, and a kill must not leave zeros before them."""
        buffer = memoryview(bytearray(FILE_SIZE))
        pool = [buffer]
        log.files._allocate = lambda path, _: MappedFile(
            path, FILE_SIZE, write_buffer=pool.pop() if pool else None
        )
        Path(log.config.commit_log_dir).mkdir(parents=True)
        while len(log.files.mapped_files) < 2:
            assert not log.files.mapped_files or not any(log.files.mapped_files[0].view), "it waits"
            assert log.put_message(message(body=bytes(20_000))).is_ok
        assert log.files.mapped_files[0].view == buffer
        assert log.files.committed_where == FILE_SIZE


def batch_of(items: list[Message], topic: str = "TopicTest", **fields: object) -> MessageExtBatch:
    batch = MessageExtBatch(topic, encode_messages(items))
    batch.born_host = batch.store_host = HOST
    for name, value in fields.items():
        setattr(batch, name, value)
    return batch


@pytest.mark.parametrize(
    "settings", [{}, {"write_without_mmap": True}, {"enabled_append_prop_crc": True}], ids=str
)
class TestBatch:
    def test_each_message_becomes_a_record(self, tmp_path: Path, settings: dict[str, bool]) -> None:
        log = make(tmp_path, **settings)
        log.put_message(message(queue_id=1))
        items = [Message("TopicTest", b"body%d" % n, tags=f"T{n}", flag=n) for n in range(5)]
        batch = batch_of(items, queue_id=1, reconsume_times=3)
        batch.properties["CLUSTER"] = "c"
        result = log.put_messages(batch)
        appended = result.append_result
        assert result.status is PutMessageStatus.PUT_OK
        assert appended is not None
        assert (appended.logics_offset, appended.msg_num) == (1, 5)
        assert log.queue_offsets == {("TopicTest", 1): 6}
        offsets = [decode_message_id(text)[1] for text in str(appended.msg_id).split(",")]
        assert offsets[0] == appended.wrote_offset
        for number, offset in enumerate(offsets):
            found = stored(log, offset)
            assert (found.body, found.flag, found.queue_offset) == (b"body%d" % number, number, 1 + number)
            assert found.properties["TAGS"] == f"T{number}"
            assert found.properties["CLUSTER"] == "c"
            assert (found.reconsume_times, found.prepared_transaction_offset) == (3, 0)
            assert (found.born_host, found.store_host) == (HOST, HOST)
            assert found.store_timestamp == START_MS
        assert (batch.queue_offset, batch.physical_offset) == (1, offsets[0])
        assert batch.store_timestamp == appended.store_timestamp == START_MS
        assert appended.wrote_bytes == log.files.max_offset - offsets[0]

    def test_what_does_not_fit_goes_to_the_next_file_as_a_whole(
        self, tmp_path: Path, settings: dict[str, bool]
    ) -> None:
        log = make(tmp_path, **settings)
        log.put_message(message(body=b"x" * 39_000))
        result = log.put_messages(batch_of([Message("TopicTest", b"y" * 10_000)] * 3))
        assert result.append_result is not None
        assert result.append_result.wrote_offset == FILE_SIZE
        assert log.put_messages(batch_of([Message("TopicTest", b"z" * 20_000)] * 4)).status is (
            PutMessageStatus.MESSAGE_ILLEGAL
        )

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"body": b""}, "empty"),
            ({"body": b"\0\0\0\x20garbage"}, ""),
            ({"sys_flag": MessageSysFlag.TRANSACTION_PREPARED_TYPE}, "neither delayed nor transactional"),
            ({"properties": {"DELAY": "1"}}, "neither delayed nor transactional"),
            ({"topic": "a b"}, "contains"),
        ],
    )
    def test_is_refused_as_a_whole(
        self, tmp_path: Path, settings: dict[str, bool], change: dict[str, object], text: str
    ) -> None:
        log = make(tmp_path, **settings)
        result = log.put_messages(batch_of([Message("TopicTest", b"x")] * 2, **change))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert text in result.reason
        assert log.files.max_offset == 0

    @pytest.mark.parametrize(
        ("items", "reason"),
        [
            ([Message("TopicTest", b"z" * 10_001)] * 4, "the batch has 40092 bytes"),
            ([Message("TopicTest", b"z")] * 700, "a commit log file takes"),
        ],
        ids=["over maxMessageSize", "its records over a file"],
    )
    def test_one_that_fits_nowhere_does_not_end_the_file(
        self, tmp_path: Path, settings: dict[str, bool], items: list[Message], reason: str
    ) -> None:
        log = make(tmp_path, **settings)
        log.put_message(message())
        end = log.files.max_offset
        result = log.put_messages(batch_of(items))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert reason in result.reason
        assert log.files.max_offset == end

    def test_merged_properties_too_large(self, tmp_path: Path, settings: dict[str, bool]) -> None:
        log = make(tmp_path, **settings)
        batch = batch_of([Message("TopicTest", b"", properties={"p": "x" * 20_000})])
        batch.properties["q"] = "y" * 20_000
        assert log.put_messages(batch).status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED


@pytest.mark.parametrize(
    ("length", "magic"), [(126, MESSAGE_MAGIC_CODE), (127, MESSAGE_MAGIC_CODE), (128, MESSAGE_MAGIC_CODE_V2)]
)
def test_a_topic_of_up_to_127_bytes_makes_a_version_1_record(log: CommitLog, length: int, magic: int) -> None:
    """RocketMQ's length field of a v1 topic is a signed byte."""
    topic = "%RETRY%".ljust(length, "g")
    result = log.put_message(message(topic))
    assert result.append_result is not None
    found = stored(log, result.append_result.wrote_offset)
    assert (found.topic, found.magic) == (topic, magic)
    assert log.is_known_topic(topic) == (magic == MESSAGE_MAGIC_CODE)


@pytest.mark.parametrize(
    "settings", [{}, {"write_without_mmap": True}, {"enabled_append_prop_crc": True}], ids=str
)
@pytest.mark.parametrize("shared", [b"", b"of\x01all\x02"])
def test_the_properties_of_batched_messages(
    tmp_path: Path, settings: dict[str, object], shared: bytes
) -> None:
    """Their own, with or without the separator that clients may leave out at the end, then those of the batch."""
    log = make(tmp_path, **settings)
    crc = "enabled_append_prop_crc" in settings
    own = [b"", b"a\x01b\x02", b"c\x01d"]
    blob = b"".join(
        struct.pack(">iiiii", 23 + len(properties), 0, 0, 0, 1)
        + b"x"
        + struct.pack(">h", len(properties))
        + properties
        for properties in own
    )
    batch = MessageExtBatch("TopicTest", blob)
    batch.properties = {"of": "all"} if shared else {}
    result = log.put_messages(batch)
    assert result.append_result is not None and result.append_result.record_offsets is not None
    begin = 91 + len("TopicTest") + 1
    for offset, properties in zip(result.append_result.record_offsets, own, strict=True):
        separator = b"\x02" if properties == b"c\x01d" and (shared or crc) else b""
        expected = properties + separator + shared
        assert stored(log, int(offset)).store_size == begin + len(expected) + 20 * crc
        assert bytes(log.files.select(int(offset) + begin, len(expected)) or b"") == expected


@pytest.mark.parametrize("append", ["single", "batch"])
def test_the_prefault_is_woken_when_a_put_passes_its_mark(tmp_path: Path, append: str) -> None:
    woken: list[int] = []
    log = make(tmp_path)
    log.appender._prefault = lambda file: woken.append(file.wrote_position)

    def put() -> int:
        """Bytes in the file."""
        if append == "single":
            result = log.put_message(message())
        else:
            result = log.put_messages(batch_of([Message("TopicTest", b"hello")]))
        assert result.status is PutMessageStatus.PUT_OK
        return log.files.mapped_files[0].wrote_position

    end = put()
    assert woken == [end]  # a new file has its mark at 0
    log.files.mapped_files[0].wake_position = 2 * end
    assert put() == 2 * end and woken == [end]
    assert put() == 3 * end and woken == [end, 3 * end]


@pytest.mark.parametrize("settings", [{}, {"write_without_mmap": True}], ids=["compiled", "item by item"])
class TestBatchFields:
    def test_ipv6_hosts_set_their_flags(self, tmp_path: Path, settings: dict[str, bool]) -> None:
        log = make(tmp_path, **settings)
        v6 = ("2001:db8::1", 5)
        for born_host, store_host, flags in (
            (v6, HOST, MessageSysFlag.BORNHOST_V6_FLAG),
            (HOST, v6, MessageSysFlag.STOREHOSTADDRESS_V6_FLAG),
        ):
            batch = batch_of([Message("TopicTest", b"hello")], born_host=born_host, store_host=store_host)
            appended = log.put_messages(batch).append_result
            assert appended is not None
            found = stored(log, appended.wrote_offset)
            assert (found.born_host, found.store_host, found.sys_flag) == (born_host, store_host, flags)

    def test_as_large_as_is_allowed(self, tmp_path: Path, settings: dict[str, bool]) -> None:
        batch = batch_of([Message("TopicTest", b"hello")])
        log = make(tmp_path, max_message_size=len(batch.body), **settings)
        assert log.put_messages(batch).status is PutMessageStatus.PUT_OK
        log = make(tmp_path / "smaller", max_message_size=len(batch.body) - 1, **settings)
        assert log.put_messages(batch).status is PutMessageStatus.MESSAGE_ILLEGAL


def test_only_long_topics_need_version_2(tmp_path: Path) -> None:
    log = make(tmp_path, auto_message_version_on_topic_len=False)
    assert log.put_message(message("T" * 127)).is_ok
    refused = log.put_message(message("%RETRY%" + "g" * 121))
    assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert "autoMessageVersionOnTopicLen" in refused.reason


@pytest.mark.parametrize(
    "settings", [{}, {"write_without_mmap": True}, {"enabled_append_prop_crc": True}], ids=str
)
def test_how_long_a_put_has_been_writing_is_known_while_it_writes_and_never_after(
    tmp_path: Path, settings: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From this the store concludes that the page cache is busy: a time that stayed would make it refuse puts."""
    log = make(tmp_path, **settings)
    during: list[int] = []
    for name in ("write_at", "publish"):
        whole = getattr(MappedFile, name)

        def noting(file: MappedFile, *given: object, whole: Any = whole) -> object:
            during.append(log.appender.begin_time_in_lock)
            return whole(file, *given)

        monkeypatch.setattr(MappedFile, name, noting)

    assert log.appender.begin_time_in_lock == 0
    batch = batch_of([Message("TopicTest", b"one"), Message("TopicTest", b"two")])
    puts: list[Callable[[], PutMessageResult]] = [
        lambda: log.put_message(message()),
        lambda: log.put_messages(batch),
        lambda: log.put_message(message(queue_id=2**40)),  # fails where it becomes a record
        lambda: log.put_message(message(body=b"x" * 40_001)),
    ]
    for put in puts:
        put()
        assert log.appender.begin_time_in_lock == 0
    assert set(during) == {START_MS} and len(during) >= 2


class TestMany:
    """put_many(): records that its caller encodes."""

    @staticmethod
    def writer(queues: Sequence[QueueId], bodies: Sequence[bytes]) -> Write:
        """Writes bodies to the queues in turn."""

        def write(mapped_file: MappedFile, queue_offsets: Sequence[int], store_timestamp: int) -> Written:
            position, base_offset = mapped_file.wrote_position, mapped_file.file_from_offset
            records: list[bytes] = []
            for number, body in enumerate(bodies):
                turn, queue = divmod(number, len(queues))
                at = base_offset + position + sum(map(len, records))
                msg = MessageExt(queues[queue][0], body, queue_id=queues[queue][1], physical_offset=at)
                msg.queue_offset, msg.store_timestamp = queue_offsets[queue] + turn, store_timestamp
                records.append(encode_message(msg))
            data = b"".join(records) + bytes(4)
            mapped_file.array[position + 4 : position + len(data)] = np.frombuffer(data, np.uint8)[4:]
            counts = [len(bodies[queue :: len(queues)]) for queue in range(len(queues))]
            sizes = [sum(map(len, records[queue :: len(queues)])) for queue in range(len(queues))]
            first = len(records[0]) if records else -1
            return Written(len(records), sum(map(len, records)), first, counts, sizes, counts)

        return write

    def test_all_become_visible_each_in_its_queue(self, log: CommitLog) -> None:
        queues = [("A", 0), ("B", 3)]
        for queue in queues:
            log.put_message(message(queue[0], queue_id=queue[1]))
        log.put_message(message("A"))
        before = log.files.max_offset
        bodies = [b"body%d" % n for n in range(5)]
        many = log.put_many(queues, self.writer(queues, bodies))
        assert many is not None
        assert (many.wrote_offset, many.end_offset) == (before, log.files.max_offset)
        assert (many.store_timestamp, list(many.queue_offsets)) == (START_MS, [2, 1])
        assert log.queue_offsets == {("A", 0): 5, ("B", 3): 3}
        at, found = before, []
        while at < many.end_offset:
            record = stored(log, at)
            assert record.physical_offset == at
            found.append((record.topic, record.queue_id, record.queue_offset, record.body))
            at += record.store_size
        topics = [("A", 0, 2), ("B", 3, 1), ("A", 0, 3), ("B", 3, 2), ("A", 0, 4)]
        assert found == [(*queue, body) for queue, body in zip(topics, bodies, strict=True)]
        assert log.files.mapped_files[-1].store_timestamp == START_MS

    def test_one_is_enough(self, log: CommitLog) -> None:
        log.put_message(message())
        many = log.put_many([("T", 0)], self.writer([("T", 0)], [b"one"]))
        assert many is not None and stored(log, many.wrote_offset).body == b"one"

    def test_nothing_written_changes_nothing(self, log: CommitLog) -> None:
        log.put_message(message())
        before = log.files.max_offset, dict(log.queue_offsets)
        assert log.put_many([("T", 0)], self.writer([("T", 0)], [])) is None
        assert (log.files.max_offset, log.queue_offsets, log.appender.begin_time_in_lock) == (*before, 0)

    @pytest.mark.parametrize(
        "settings", [{"write_without_mmap": True}, {"enabled_append_prop_crc": True}], ids=str
    )
    def test_where_only_single_messages_can_be_written(
        self, tmp_path: Path, settings: dict[str, bool]
    ) -> None:
        log = make(tmp_path, **settings)
        log.put_message(message())
        assert log.put_many([("T", 0)], self.writer([("T", 0)], [b"one"])) is None

    def test_without_a_file(self, log: CommitLog) -> None:
        assert log.put_many([("T", 0)], self.writer([("T", 0)], [b"one"])) is None
