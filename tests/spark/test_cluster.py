"""On a cluster of executor processes, which share nothing with the driver but the store's directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mqlake.store.check.verify import verify_store
from tests.spark.kills import spark_home
from tests.spark.stores import SETTINGS, decoded, seen


@pytest.mark.spark
@pytest.mark.nightly
def test_on_two_executors(every_kind: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mqlake-cluster-") as scratch:
        command = [sys.executable, "-m", "tests.spark.cluster_job", str(every_kind), str(tmp_path), scratch]
        environment = {**os.environ, "TMPDIR": scratch, "SPARK_HOME": spark_home(scratch)}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, start_new_session=True
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    messages = seen(every_kind)
    expected = sorted([m.topic, m.queue_id, m.queue_offset] for m in messages)
    assert found["rows"] == expected
    assert found["copied"] == expected
    assert found["tasks"] > 4

    assert found["verify"]["ok"] and found["verify"]["stores"][0]["records"] == len(decoded(every_kind))
    assert (
        verify_store(tmp_path / "rebuilt", SETTINGS).findings == verify_store(every_kind, SETTINGS).findings
    )
    assert found["diff"]["same"]
    last_of_key = {(m.topic, m.keys): m for m in messages if m.keys}
    assert found["compact"]["messages"] == sum(bool(m.body) for m in last_of_key.values())
    assert len(decoded(tmp_path / "compacted")) == found["compact"]["messages"]
