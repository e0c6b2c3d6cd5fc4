from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mqlake.errors import StoreLockedError
from mqlake.metaq.store.lock import DirectoryLock, is_locked


def test_one_at_a_time_and_no_trace(tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(StoreLockedError, match=str(tmp_path)):
        DirectoryLock(str(tmp_path))
    assert is_locked(str(tmp_path))
    lock.release()
    lock.release()
    assert not is_locked(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_another_process_is_kept_out_and_its_death_frees(tmp_path: Path) -> None:
    code = (
        "from mqlake.metaq.store.lock import DirectoryLock; "
        f"lock = DirectoryLock({str(tmp_path)!r}); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"1\n"
        assert is_locked(str(tmp_path))
        holder.kill()
        holder.wait()
    assert not is_locked(str(tmp_path))
