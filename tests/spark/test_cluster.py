"""On a cluster of executor processes, which share nothing with the driver but the store's directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.stores import seen


@pytest.mark.spark
def test_on_two_executors(every_kind: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.cluster_job", str(every_kind), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = sorted([m.topic, m.queue_id, m.queue_offset] for m in seen(every_kind))
    assert found["rows"] == expected
    assert found["copied"] == expected
    assert found["tasks"] > 4
