"""Tables in a bucket of a real S3 server, in a process of its own: deltalake waits for answers without letting other
threads of its process run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.lake.tables.config import Lake
from mqlake.lake.tables.files import delete_paths, file_system_of
from mqlake.lake.tables.topic import TopicTable
from tests.lake.s3 import BUCKET, KEYS
from tests.lake.tables.lakes import FORMATS, ORDERS, STORE, expected, put, rows_in, topic_of

SERVER = """
import sys
from tests.lake.s3 import s3_server

with s3_server() as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


@pytest.mark.parametrize("format", FORMATS)
def test_a_lake_in_a_bucket(
    endpoint: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    put(tmp_path / "store", 40)
    catalog = f"sqlite:///{tmp_path}/catalog.db" if format == "iceberg" else ""
    lake = Lake(f"s3://{BUCKET}/{format}", format, catalog)
    orders = TopicTable.open(lake, topic_of(tmp_path / "store"))
    assert orders.append_new().rows == 20
    put(tmp_path / "store", 20, 40)
    assert orders.append_new().rows == 10
    assert orders.table.compact(1 << 20) == (2, 1)
    assert rows_in(orders.table) == expected(tmp_path / "store")
    assert orders.verify(sample=3).findings == []

    data = orders.table.write_spec(1).root
    file_system, inside = file_system_of(f"{data}/stray.parquet")
    with file_system.open_output_stream(inside) as stray:
        stray.write(b"x" * 100)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert (f"{data}/stray.parquet", 100) in orders.table.orphans(later)
    options = ["--format", format, "--warehouse", lake.warehouse, "--topic", ORDERS]
    options += ["--catalog", catalog] if catalog else []
    command = ["lake", "orphans", f"{STORE}={tmp_path / 'store'}", *options, "--older-than", "0s", "--json"]
    done = CliRunner().invoke(cli, [*command, "--delete", "--yes"])
    assert done.exit_code == 0, done.output
    assert {"table": "mqlake.Orders", "path": f"{data}/stray.parquet", "bytes": 100} in json.loads(
        done.stdout
    )
    assert orders.table.orphans(later) == []
    assert rows_in(orders.table) == expected(tmp_path / "store")
    assert delete_paths([f"{data}/stray.parquet"]) == 0, "it is gone"


@pytest.mark.parametrize(
    ("format", "says"), [("iceberg", "NO_SUCH_BUCKET"), ("delta", "answers NoSuchBucket: The")]
)
def test_a_bucket_that_is_not_there(
    endpoint: str, format: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)
    put(tmp_path / "store", 4)
    given = [
        str(tmp_path / "store"),
        "--topic",
        ORDERS,
        "--format",
        format,
        "--warehouse",
        "s3://nobody/lake",
    ]
    if format == "iceberg":
        given += ["--catalog", f"sqlite:///{tmp_path}/catalog.db"]
    done = CliRunner().invoke(cli, ["lake", "run", *given])
    assert done.exit_code == 1 and says in done.stderr and "<" not in done.stderr, done.output
