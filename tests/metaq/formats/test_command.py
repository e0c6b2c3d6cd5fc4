from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import ProtocolError
from mqlake.metaq.formats.command import (
    LINE_MAX,
    BooleanCommand,
    Command,
    DataCommand,
    GetCommand,
    OffsetCommand,
    PutCommand,
    QuitCommand,
    StatsCommand,
    SyncCommand,
    TransactionCommand,
    TransactionType,
    VersionCommand,
    decode_command,
)
from mqlake.metaq.formats.transaction_id import LocalTransactionId, XATransactionId

MAX = 1 << 20
TX = LocalTransactionId("s1", 1)
XID = XATransactionId(100, b"\x0a\x0b", b"\x0c\x0d", "uq1")

# what the Java client and the Java broker 1.4.6.2 sent
GOLDEN: list[tuple[bytes, Command]] = [
    (
        b"put test 0 3 0 891568578 -2147483648\r\nabc",
        PutCommand("test", 0, b"abc", 0, 891568578, None, -2147483648),
    ),
    (b"put test -1 3 0 -1 12\r\nabc", PutCommand("test", -1, b"abc", 0, -1, None, 12)),
    (b"put test 0 0 0 -1 16\r\n", PutCommand("test", 0, b"", 0, -1, None, 16)),
    (
        b"put test 0 17 1 1018681804 7\r\n\0\0\0\6attr-1hello-1",
        PutCommand("test", 0, b"\0\0\0\6attr-1hello-1", 1, 1018681804, None, 7),
    ),
    (b"put m-t 0 3 0 -1 TX:s1:1 101\r\nabc", PutCommand("m-t", 0, b"abc", 0, -1, TX, 101)),
    (b"get test g1 0 0 30 21\r\n", GetCommand("test", "g1", 0, 0, 30, 21)),
    (
        b"get test g1 0 9223372036854775807 100 24\r\n",
        GetCommand("test", "g1", 0, 9223372036854775807, 100, 24),
    ),
    (b"get test g1 0 -5 100 26\r\n", GetCommand("test", "g1", 0, -5, 100, 26)),
    (b"offset test g1 0 50 31\r\n", OffsetCommand("test", "g1", 0, 50, 31)),
    (b"stats  -2147483640\r\n", StatsCommand("", -2147483640)),
    (b"stats topics 5\r\n", StatsCommand("topics", 5)),
    (b"version 7\r\n", VersionCommand(7)),
    (b"quit\r\n", QuitCommand()),
    (
        b"transaction TX:s1:1 s1 BEGIN 3 100\r\n",
        TransactionCommand(TX, "s1", TransactionType.BEGIN, 3, None, 100),
    ),
    (
        b"transaction TX:s1:1 s1 COMMIT_ONE_PHASE 105\r\n",
        TransactionCommand(TX, "s1", TransactionType.COMMIT_ONE_PHASE, 0, None, 105),
    ),
    (
        b"transaction XID:100:0a0b:0c0d:uq1 s1 BEGIN 30 uq1 110\r\n",
        TransactionCommand(XID, "s1", TransactionType.BEGIN, 30, "uq1", 110),
    ),
    (
        b"transaction XID:100:0a0b:0c0d:uq1 s1 PREPARE uq1 113\r\n",
        TransactionCommand(XID, "s1", TransactionType.PREPARE, 0, "uq1", 113),
    ),
    (
        b"transaction null s1 RECOVER uq1 114\r\n",
        TransactionCommand(None, "s1", TransactionType.RECOVER, 0, "uq1", 114),
    ),
    (b"sync test 0 3 0 99 -1 40\r\nabc", SyncCommand("test", 0, b"abc", 0, 99, -1, 40)),
    (
        b"result 200 25 -2147483648\r\n-5468922608802070528 0 74",
        BooleanCommand(200, "-5468922608802070528 0 74", -2147483648),
    ),
    (b"result 200 0 100\r\n", BooleanCommand(200, "", 100)),
    (
        "result 503 92 40\r\n未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand".encode(),
        BooleanCommand(
            503, "未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand", 40
        ),
    ),
    (b"value 3 21\r\n\0\1\2", DataCommand(b"\0\1\2", 21)),
]
OLD_FORMS: list[tuple[bytes, Command]] = [
    (b"put test 0 3 0 11\r\nabc", PutCommand("test", 0, b"abc", 0, -1, None, 11)),
    (b"put test 0 3 0 TX:s1:1 11\r\nabc", PutCommand("test", 0, b"abc", 0, -1, TX, 11)),
    (b"put test 0 3 0 7 TX:s1:1 11\r\nabc", PutCommand("test", 0, b"abc", 0, 7, TX, 11)),
    (b"sync test 0 3 0 99 40\r\nabc", SyncCommand("test", 0, b"abc", 0, 99, -1, 40)),
    (b"version\r\n", VersionCommand(2147483647)),
    (b"stats\r\n", StatsCommand("", 2147483647)),
    (b"stats topics\r\n", StatsCommand("topics", 2147483647)),
    (b"quiet please\r\n", QuitCommand()),
    (b"version 7   \r\n", VersionCommand(7)),
    (
        b"transaction XID:100:0a0b:0c0d:uq1 s1 PREPARE 12 113\r\n",  # a numeric qualifier is taken for a timeout
        TransactionCommand(XID, "s1", TransactionType.PREPARE, 12, None, 113),
    ),
]
BAD = [
    b"\r\n",
    b" \r\n",
    b"nonsense\r\n",
    b"PUT test 0 3 0 11\r\nabc",
    b"putt test 0 3 0 11\r\nabc",
    b"put test 0\r\n",
    b"put test 0 3\r\nabc",
    b"put test 0 -1 0 11\r\n",
    b"put test 0 1048577 0 11\r\n",
    b"put test x 3 0 11\r\nabc",
    b"put test 0 3 0 0 11 12 13\r\nabc",
    b"put test 0 3 0 AB:1:2 11\r\nabc",
    b"put test 0 3 2147483648 11\r\nabc",
    b"put test 0 3 0 1_1\r\nabc",
    b"put test 0 3 0 \xd9\xa1\r\nabc",
    b"put test 0 3 0 " + b"1" * 5000 + b"\r\nabc",
    b"get test g1 0 0 30\r\n",
    b"get test g1 0 9223372036854775808 30 1\r\n",
    b"offset test g1 0 50\r\n",
    b"stats  x\r\n",
    b"statistics 5\r\n",
    b"version x\r\n",
    b"transaction TX:s1:1 s1 WAIT 1\r\n",
    b"transaction TX:s1:1 s1 BEGIN\r\n",
    b"transaction null s1 BEGIN 1\r\n",
    b"transaction TX:s1:1 s1 BEGIN 1 2 3 4\r\n",
    b"sync test 0 3 0 99\r\nabc",
    b"result 200\r\n",
    b"\xff\xfe\r\n",
    b"x" * (LINE_MAX + 1),
    b"x" * (LINE_MAX + 1) + b"\r\n",
]


@pytest.mark.parametrize(("raw", "command"), GOLDEN)
def test_bytes_of_the_java_client_and_broker(raw: bytes, command: Command) -> None:
    assert command.encode() == raw
    assert decode_command(raw, 0, body_max=MAX) == (command, len(raw))


@pytest.mark.parametrize(("raw", "command"), OLD_FORMS)
def test_old_and_loose_forms(raw: bytes, command: Command) -> None:
    assert decode_command(raw, 0, body_max=MAX) == (command, len(raw))


@pytest.mark.parametrize("raw", BAD)
def test_what_is_no_command(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(raw, 0, body_max=MAX)


def decode_all(raw: bytes) -> list[Command]:
    found, position = [], 0
    while position < len(raw):
        decoded = decode_command(raw, position, body_max=MAX)
        assert isinstance(decoded, tuple)
        found.append(decoded[0])
        position = decoded[1]
    return found


def test_many_behind_each_other() -> None:
    pairs = GOLDEN + OLD_FORMS
    assert decode_all(b"".join(raw for raw, _ in pairs)) == [command for _, command in pairs]


@pytest.mark.parametrize("raw", [raw for raw, _ in GOLDEN + OLD_FORMS])
def test_split_at_every_byte(raw: bytes) -> None:
    for end in range(len(raw)):
        needed = decode_command(raw[:end], 0, body_max=MAX)
        assert isinstance(needed, int) and end < needed <= len(raw)


WORD = st.text(st.characters(codec="utf-8", exclude_characters=" \r\n"), min_size=1, max_size=8)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
BODY = st.binary(max_size=50)
TRANSACTIONS = st.none() | st.just(TX) | st.just(XID)
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(PutCommand, WORD, INT32, BODY, INT32, INT32, TRANSACTIONS, INT32),
    st.builds(GetCommand, WORD, WORD, INT32, INT64, INT32, INT32),
    st.builds(OffsetCommand, WORD, WORD, INT32, INT64, INT32),
    st.builds(StatsCommand, st.just("") | WORD, INT32),
    st.builds(VersionCommand, INT32),
    st.builds(
        TransactionCommand,
        st.sampled_from([TX, XID]),
        WORD,
        st.sampled_from(TransactionType),
        st.integers(0, 1000),
        st.none() | WORD.filter(lambda word: not word.isdigit()),
        INT32,
    ).filter(lambda command: not (command.unique_qualifier or "x").isspace()),
    st.builds(SyncCommand, WORD, INT32, BODY, INT32, INT64, INT32, INT32),
    st.builds(BooleanCommand, INT32, st.text(max_size=30), INT32),
    st.builds(DataCommand, BODY, INT32),
)


@given(st.lists(COMMANDS, max_size=5))
def test_round_trip(commands: list[Command]) -> None:
    assert decode_all(b"".join(command.encode() for command in commands)) == commands


@given(COMMANDS, st.data())
def test_garbage_is_a_protocol_error_and_nothing_else(command: Command, data: st.DataObject) -> None:
    raw = bytearray(command.encode())
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    position = 0
    try:
        while position < len(raw):
            decoded = decode_command(raw, position, body_max=MAX)
            if isinstance(decoded, int):
                assert decoded > len(raw)
                break
            position = decoded[1]
    except ProtocolError:
        pass
