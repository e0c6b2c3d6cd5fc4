"""Searches beside a look at every message by itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

import mqlake.spark
from mqlake.cli.main import cli
from mqlake.errors import ConfigError
from mqlake.message import MessageExt, MessageExtBrokerInner
from mqlake.spark.jobs.search import Wanted, search
from mqlake.store import open_store
from tests.spark.jobs.oracle import dumped
from tests.spark.stores import BORN, decoded, log_files, overwrite, seen

Test = Callable[[MessageExt], bool]


def has_key(message: MessageExt, key: str) -> bool:
    return key in (message.keys or "").split(" ") or message.uniq_key == key


CASES: list[tuple[Wanted, Test]] = [
    (Wanted(keys=["key-5", "batch-0"]), lambda m: has_key(m, "key-5") or has_key(m, "batch-0")),
    (
        Wanted(topics=["Topic-1", "Batch"], tags=["TagA", "b"]),
        lambda m: m.topic in ("Topic-1", "Batch") and m.tags in ("TagA", "b"),
    ),
    (
        Wanted(text="\x03\x03\x03", sql="queueId = 0 and flag < 0"),
        lambda m: b"\3\3\3" in m.body and m.queue_id == 0 and m.flag < 0,
    ),
    (Wanted(sql="properties['a=b'] is not null"), lambda m: "a=b" in m.properties),
    (Wanted(until=1), lambda _: False),
]


@pytest.mark.spark
def test_what_is_found(spark: SparkSession, every_kind: Path) -> None:
    messages = seen(every_kind)
    everything = mqlake.spark.read_log(spark, str(every_kind)).cache()
    for wanted, test in CASES:
        expected = sorted(m.msg_id for m in messages if test(m))
        assert expected or wanted.until
        assert ids(search(spark, str(every_kind), wanted=wanted)) == expected, wanted
        assert ids(wanted.within(everything)) == expected, wanted
    everything.unpersist()
    with pytest.raises(ConfigError, match="--sql 'queue = 1'"):
        search(spark, str(every_kind), wanted=Wanted(sql="queue = 1"))


BODIES = [b"\xe6abc", b"\xffabc", b"ab", "é abc".encode(), b"", b"\x00abc\x00"]


@pytest.fixture
def bodies(tmp_path: Path) -> Path:
    with open_store(tmp_path / "bodies", {"mappedFileSizeCommitLog": 1 << 20}) as store:
        for n, body in enumerate(BODIES):
            message = MessageExtBrokerInner("T", body, tags=("a", "ab", None)[n % 3], queue_id=n % 2)
            assert store.put_message(message).is_ok
    for message in decoded(tmp_path / "bodies"):  # a ms between two
        data = (BORN + 2 * message.physical_offset // 100).to_bytes(8, "big")
        overwrite(log_files(tmp_path / "bodies")[0], message.physical_offset + 56, data)
    return tmp_path / "bodies"


@pytest.mark.spark
def test_borders(bodies: Path) -> None:
    """Text wherever it begins, also in a body that is none; from a time on, to before a time; whole tags."""
    rows = dumped(bodies)
    times = [row["storeTimestamp"] for row in rows]
    assert len(set(times)) == len(times)
    for options, expected in [
        (["--text", "abc"], [row for row in rows if b"abc" in base64.b64decode(row["body"])]),
        (["--text", "é"], rows[3:4]),
        (["--since", times[1], "--until", times[4]], rows[1:4]),
        (["--since", times[4] + 1], rows[5:]),
        (["--tag", "a", "--topic", "T"], [row for row in rows if row["tags"] == "a"]),
        (["--limit", 2, "--until", times[0] + 1], rows[:1]),
    ]:
        found = [json.loads(line) for line in searched(bodies, *options, "--json").stdout.splitlines()]
        assert found == [row | {"path": str(bodies)} for row in expected], options
    result = searched(bodies, "--limit", 6)
    assert len(result.stdout.splitlines()) == 6 and result.stderr == "6 messages found\n"
    assert result.stdout == CliRunner().invoke(cli, ["store", "dump", str(bodies)]).stdout
    assert searched(bodies, "--limit", 5).stderr == "5 messages; there are more: --limit\n"


def searched(root: Path, *options: object) -> Result:
    result = CliRunner().invoke(cli, ["spark", "search", str(root), *map(str, options)])
    assert result.exit_code == 0, result.output
    return result


def ids(found: DataFrame) -> list[str]:
    return sorted(row.msgId for row in found.select("msgId").collect())
