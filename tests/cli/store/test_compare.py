"""`mqlake store diff` and `mqlake store truncate`: exit statuses and output; the work is tested in tests/store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cli.store.test_read import mqlake
from tests.store.small_store import contents, fill, flip, log_file
from tests.store.test_truncate import starts


def test_equal_stores_and_different_ones(tmp_path: Path) -> None:
    a = fill(tmp_path / "a")
    b = Path(shutil.copytree(a, tmp_path / "b"))
    same = mqlake("diff", a, b)
    assert same.exit_code == 0 and "no difference" in same.stdout
    flip(log_file(b), 500)
    other = mqlake("diff", a, b)
    assert other.exit_code == 1
    assert "other bytes" in other.stdout and str(log_file(a)) in other.stdout
    (found,) = json.loads(mqlake("diff", a, b, "--json", "--no-queues").stdout)["differences"]
    assert (found["offset"], found["position"], found["size"], found["kind"]) == (500, 500, 1, "other bytes")


def test_truncate_asks_first_and_keeps_a_copy(tmp_path: Path) -> None:
    root = fill(tmp_path / "store")
    at, before = starts(root)[150], contents(root)
    assert mqlake("truncate", root, "--to", at).exit_code == 2
    planned = mqlake("truncate", root, "--to", at, "--dry-run")
    assert planned.exit_code == 0 and "would cut" in planned.stdout and "50 records" in planned.stdout
    assert contents(root) == before
    done = json.loads(mqlake("truncate", root, "--to", at, "--yes", "--json").stdout)
    assert (done["records"], done["offset"]) == (50, at)
    assert all(Path(copy).exists() for copy in done["copies"])
    assert mqlake("verify", root).exit_code == 0
    assert "ends at offset" in mqlake("truncate", root, "--to", at, "--yes").stdout
