"""docs/rocketmq-names.md says where RocketMQ's and MetaQ's parts are, and docs/design.md answers questions:
each file that they name is there, and defines what it is said to."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "mqlake"

NAMED = """
AllocateMappedFileService AllocateRequest AppendMessageCallback AppendMessageResult AppendMessageStatus BrokerRole
BrokerStatsManager CleanCommitLogService CleanConsumeQueueService CommitLog CommitLogDispatcher
CommitRealTimeService ConsumeConcurrentlyContext ConsumeConcurrentlyStatus ConsumeFromWhere ConsumeQueue
DefaultAppendMessageCallback DefaultMQProducer DefaultMQPushConsumer DefaultMessageStore FlushConsumeQueueService
FlushDiskType FlushRealTimeService GroupCommitRequest GroupCommitService HAService IndexFile IndexService MappedFile
MappedFileQueue MessageArrivingListener MessageConst MessageDecoder MessageExt MessageExtBatch MessageExtBrokerInner
MessageExtEncoder MessageListenerConcurrently MessageSysFlag PutMessageContext PutMessageResult PutMessageStatus
PutMessageThreadLocal RemotingCommand ReputMessageService RequestCode RunningFlags ScheduleMessageService
SendMessageContext SendMessageProcessor SendMessageRequestHeader SendMessageRequestHeaderV2
SendMessageResponseHeader ServiceLoader StoreCheckpoint StoreStatsService TopicConfig TransientStorePool
commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog executeSendMessageHookAfter
executeSendMessageHookBefore flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
firstCreateInQueue flushIntervalCommitLog handleDiskFlush isOSPageCacheBusy mlock mqtraceContext putMessageLock
pagecacheRT setConfigFileChecksum useReentrantLockWhenPutMessage warmMappedFile CheckSum FileMessageSet GetCommand
MessageSet MessageStore
MessageUtils MetaConfig MetaConfigMBean Partition TransferLog fast_boot highWaterMark tryToLogTransferInfo
validateMessage
"""
"""Classes and mechanisms that people who know RocketMQ or MetaQ look for."""


class Row(NamedTuple):
    there: str
    names: tuple[str, ...]
    file: str


def rows() -> list[Row]:
    section = (ROOT / "docs" / "rocketmq-names.md").read_text(encoding="utf-8")
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line
    ]
    return [
        Row(there, tuple(re.findall(r"`([^`]+)`", here)), file.strip("`"))
        for there, here, file in cells
        if there != "there" and not set(there) <= set("-")
    ]


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """What the body of a module or class defines; of a class also its methods, fields and what __init__ sets."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
            if node.name == "__init__":
                for each in ast.walk(node):
                    if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                        yield prefix + each.attr
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


def cython_definitions(text: str) -> Iterator[str]:
    """Functions, classes and methods of a .pyx or .pxd."""
    owner = ""
    pattern = r"^( {4})?(cdef class|cdef|def)\b[^\n=#]*?(\w+)(?=\(|:$)"
    for indent, kind, name in re.findall(pattern, text, re.MULTILINE):
        if kind == "cdef class":
            owner = name
        yield f"{owner}.{name}" if indent else name


@functools.cache
def defined() -> dict[str, set[str]]:
    """File → what it defines."""
    found = {
        str(path.relative_to(SOURCE)): set(definitions(ast.parse(path.read_text(encoding="utf-8"))))
        for path in SOURCE.rglob("*.py")
    }
    for path in (*SOURCE.rglob("*.pyx"), *SOURCE.rglob("*.pxd")):
        found[str(path.relative_to(SOURCE))] = set(cython_definitions(path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.there.strip("`").partition("`")[0])
def test_the_file_defines_what_the_table_says(row: Row) -> None:
    if not row.file:
        assert not row.names
        return
    assert row.names
    for name in row.names:
        elsewhere = sorted(file for file, names in defined().items() if name in names)
        assert name in defined().get(row.file, ()), f"{name} is not in {row.file}, but in: {elsewhere}"


def test_everything_that_is_looked_for_is_in_the_table() -> None:
    words = set(re.findall(r"\w+", " ".join(row.there for row in rows())))
    assert set(NAMED.split()) - words == set()


def test_what_is_not_there_is_said_to_be_missing() -> None:
    assert [row.there for row in rows() if not row.file] == []


def test_the_questions_name_files_that_are_there() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = text.split("## Where to look", 1)[1].split("\n## ", 1)[0]
    questions = [line for line in section.splitlines() if line.startswith("| W")]
    assert len(questions) > 5
    for line in questions:
        paths = re.findall(r"`([a-z_0-9/]+(?:\.py|\.pyx|\.pxd|/))`", line)
        assert paths, line
        for path in paths:
            assert (SOURCE / path).exists(), path
        known = set().union(*(defined().get(path, set()) for path in paths))
        names = set(re.findall(r"`([A-Za-z_.]+)`", line)) - set(paths) - {"__init__.py"}
        assert names <= known, (line, names - known)
