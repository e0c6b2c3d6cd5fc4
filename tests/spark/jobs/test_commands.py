"""`mqlake spark …`: what the commands print, their exit status, and their errors in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mqlake.cli.main import cli
from mqlake.cli.spark.shared import _check_master, spark_error
from mqlake.errors import MqlakeError
from mqlake.store.check.verify import verify_store
from tests.spark.jobs.test_verify import SETTINGS, flip_body
from tests.spark.stores import copy_store, decoded, flip_bit, log_files, seen

SETS = [f"--set={name}={value}" for name, value in SETTINGS.items()]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["spark", *map(str, arguments)])


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_verify(every_kind: Path, tmp_path: Path) -> None:
    damaged, page = copy_store(every_kind, tmp_path / "damaged"), tmp_path / "report.html"
    flip_body(damaged)
    result = run("verify", every_kind, damaged, *SETS, "--html", page)
    assert result.exit_code == 1
    expected = verify_store(damaged, SETTINGS)
    assert all(f"{f.severity.value}: {f}" in result.stdout for f in expected.findings)
    assert "of damage" in result.stderr
    text = page.read_text()
    assert (
        "Something is damaged" in text and "data:image/png" in text and expected.findings[0].text[:40] in text
    )
    sound = run("verify", every_kind, *SETS, "--json")
    assert sound.exit_code == 0
    report = json.loads(sound.stdout)
    assert report["ok"] and report["stores"][0]["records"] == len(decoded(every_kind))
    assert {each["topic"] for each in report["topics"]} >= {"Topic-1", "Batch"}


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_search_and_stats(every_kind: Path, tmp_path: Path) -> None:
    found = run("search", every_kind, "--key", "key-5", "--json")
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["msgId"] for line in lines] == [
        m.msg_id for m in seen(every_kind) if "key-5" in (m.keys or "").split()
    ]
    assert run("search", every_kind, "--key", "key-5").stderr == "1 message found\n"
    page = tmp_path / "stats.html"
    stats = run("stats", every_kind, "--topic", "Topic-1", "--interval", "1m", "--html", page, "--json")
    assert [row["topic"] for row in json.loads(stats.stdout)["topics"]] == ["Topic-1"]
    assert "Messages over time" in page.read_text()
    assert "skew" in run("stats", every_kind, "--topic", "Topic-1").stdout


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_from_files_to_a_store_and_back(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,name\n" + "".join(f"{n},n{n}\n" for n in range(50)))
    root, out = tmp_path / "store", tmp_path / "out"
    command = ["ingest", tmp_path / "rows.csv", "--to-store", root, "--topic", "Rows", "--keys-from", "name"]
    told = json.loads(run(*command, "--queues", 2, "--set=mappedFileSizeCommitLog=1m", "--json").stdout)
    assert told["messages"] == 50 and {row["queueId"] for row in told["queues"]} == {0, 1}
    exported = run("export", root, out, "--json-schema", "infer", "--json")
    assert json.loads(exported.stdout)["rows"] == 50
    assert "0 messages in 0 batches" in run("export", root, out, "--json-schema", "infer").stdout
    again = tmp_path / "again"
    command = ["ingest", out, "--to-store", again, "--topic", "Rows", "--body-from", "to_json(value)"]
    result = run(*command, "--keys-from", "keys", "--set=mappedFileSizeCommitLog=1m")
    assert result.exit_code == 0, result.output
    assert sorted(m.body for m in decoded(again)) == sorted(m.body for m in decoded(root))
    assert run("compact", root, tmp_path / "small", "--set=mappedFileSizeCommitLog=1m").exit_code == 0
    assert len(decoded(tmp_path / "small")) == 50
    assert run("rebuild", root).exit_code == 0
    same = run("diff", root, root, "--physical")
    assert (same.exit_code, same.stdout.splitlines()[-1]) == (0, "no differences")
    other = run("diff", root, again, "--json")
    assert other.exit_code == 1 and not json.loads(other.stdout)["same"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        (["verify", "/nowhere"], 1, "there is no such directory"),
        (["search", "STORE", "--sql", "quueId = 1"], 2, "quueId"),
        (["search", "STORE", "--since", "yesterday"], 2, "neither milliseconds"),
        (["search", "STORE", "--keys", "k"], 2, "--key"),
        (["stats", "STORE", "--interval", "5 parsecs"], 2, "a time is cut to"),
        (["export", "STORE", "OUT", "--json-schema", "id lang"], 2, "is no schema"),
        (["export", "STORE", "OUT", "--batch-size", "much"], 2, "maxBytesPerTrigger"),
        (["export", "127.0.0.1:1", "OUT", "--from-broker"], 2, "at least one topic"),
        (["ingest", "STORE/checkpoint", "--to-store", "OUT", "--topic", "T"], 2, "what format is it"),
        (["ingest", "/nowhere.json", "--to-store", "OUT", "--topic", "T"], 1, "/nowhere.json"),
        (["ingest", "x.json", "--topic", "T"], 2, "--to-broker or --to-store"),
        (["compact", "STORE"], 2, "the directory of the new one"),
        (["compact", "STORE", "STORE"], 1, "is there already"),
        (["rebuild", "/nowhere"], 1, "there is no such directory"),
        (["diff", "STORE", "/nowhere"], 1, "there is no such directory"),
        (["verfy", "STORE"], 2, "verify"),
    ],
)
def test_errors_are_a_line(
    every_kind: Path, tmp_path: Path, command: list[str], status: int, says: str
) -> None:
    given = [text.replace("STORE", str(every_kind)).replace("OUT", str(tmp_path / "out")) for text in command]
    result = run(*given)
    assert result.exit_code == status, result.output
    assert says in result.stderr and "Traceback" not in result.output


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_what_a_task_says_is_a_line(every_kind: Path, tmp_path: Path) -> None:
    root = copy_store(every_kind, tmp_path / "damaged")
    message = next(m for m in seen(root) if len(m.body) > 50 and m.topic == "Topic-1")
    flip_bit(
        log_files(root)[message.physical_offset // (16 << 10)], message.physical_offset % (16 << 10) + 100
    )
    result = run("search", root, "--topic", "Topic-1")
    assert result.exit_code == 1
    assert str(root) in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_files_that_are_not_what_is_said(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,name\n1,a\n")
    command = ["ingest", rows, "--to-store", tmp_path / "store", "--topic", "T"]
    for given, says in (
        (
            ["--format", "nonsense"],
            "--format 'nonsense': Spark has parquet, csv, json, orc, text, mqlake's own",
        ),
        (["--format", "rate"], "--format 'rate': Spark has parquet"),
        (["--format", "parquet"], f"{rows}, as parquet: "),
        (["--option", "sep="], f"{rows}, as csv: Delimiter cannot be empty"),
        (["--option", "inferSchema=maybe"], "inferSchema flag can be true or false"),
    ):
        result = run(*command, *given)
        assert result.exit_code == 2 and says in result.stderr and len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [rows]


def test_an_error_of_spark() -> None:
    own = spark_error("x\nmqlake.errors.UnknownKeyError: unknown option 'a'\n\tat java.lang.Thread")
    assert (str(own), own.exit_code) == ("unknown option 'a'", 2)
    assert str(spark_error("Job aborted.\n\tat a.b\nCaused by: java.io.IOException: no room")).endswith(
        "no room"
    )
    setting = spark_error("[INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'a' in the config \"b\" is invalid.")
    assert setting.exit_code == 2


def test_why_spark_did_not_start() -> None:
    note = (
        'WARNING: x\nException in thread "main" org.apache.spark.SparkException: no HADOOP_CONF_DIR\n\tat a.b'
    )
    assert str(spark_error(f"[JAVA_GATEWAY_EXITED] Java exited.\n{note}")) == (
        "org.apache.spark.SparkException: no HADOOP_CONF_DIR"
    )
    memory = (
        "WARNING: x\nInvalid maximum heap size: -Xmxabc\nError: Could not create the Java Virtual Machine."
    )
    assert str(spark_error(f"[JAVA_GATEWAY_EXITED] Java exited.\n{memory}")).startswith(
        "Invalid maximum heap"
    )
    said = "An error occurred while calling None.\n: org.apache.spark.SparkException: Could not parse"
    assert str(spark_error(said)) == "org.apache.spark.SparkException: Could not parse"


@pytest.mark.parametrize(
    ("master", "status", "says"),
    [
        ("nobody", 2, "--master 'nobody': use local[N], spark://HOST:PORT"),
        ("local[x]", 2, "--master 'local[x]': use local[N]"),
        ("spark://127.0.0.1:1", 1, "no Spark master answers there"),
        ("spark://127.0.0.1:1,127.0.0.1:99999", 2, "Port out of range"),
        ("sc://127.0.0.1:1", 1, "no Spark Connect server answers there"),
    ],
)
def test_a_master_of_nobody(master: str, status: int, says: str) -> None:
    with pytest.raises(MqlakeError) as failed:
        _check_master(master)
    assert says in str(failed.value) and failed.value.exit_code == status


def test_without_pyspark(monkeypatch: pytest.MonkeyPatch, every_kind: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = run("verify", every_kind)
    assert result.exit_code != 0 and "pip install 'mqlake[spark]'" in result.stderr
