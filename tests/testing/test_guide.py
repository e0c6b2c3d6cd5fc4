"""The Python of docs/testing.md runs as a test suite; the line of JSON has the keys that it shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from mqlake.testing import RocketMQ
from tests.documents import snippets

GUIDE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


def test_the_suite_runs(tmp_path: Path) -> None:
    test, fixture = snippets("docs/testing.md", "python")
    uses_it = "\n\ndef test_own(own_rocketmq):\n    assert own_rocketmq.namesrv\n"
    (tmp_path / "test_guide.py").write_text(test + "\n\n" + fixture + uses_it)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_what_is_named_is_there() -> None:
    (shown,) = snippets("docs/testing.md", "json")
    assert json.loads(shown).keys() == {"namesrv", "brokers", "grpc", "store"}
    names = re.findall(r"`rocketmq\.(\w+)", GUIDE)
    assert len(names) == 6
    for name in names:
        assert hasattr(RocketMQ, name) or name in RocketMQ.__annotations__, name
