"""How full a disk is: the broker, its refusal and the doctor agree, also where root keeps some of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqlake.base.disk import DiskSpace
from mqlake.broker.requests.send_message import disk_text
from mqlake.cli.doctor import disk
from mqlake.store.clean import disk_used_ratio
from tests.disks import statvfs_of


def test_a_real_disk(tmp_path: Path) -> None:
    space, df = DiskSpace.of(str(tmp_path)), os.statvfs(tmp_path)
    assert space.free == pytest.approx(df.f_bavail * df.f_frsize, abs=1 << 30)
    assert space.used_ratio is not None and 0 <= space.used_ratio <= 1


def test_what_root_keeps_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 blocks are used and 20 can be had: 75 %, whoever says it, though 100 less 20 would be 80."""
    monkeypatch.setattr(os, "statvfs", statvfs_of(blocks=100, free=40, available=20))
    assert DiskSpace.of(str(tmp_path)) == DiskSpace(60 << 20, 20 << 20)
    assert disk_used_ratio(str(tmp_path)) == 0.75
    assert disk_text(str(tmp_path)) == "disk: 75.0 % used, 20 MiB free"
    assert disk(str(tmp_path)).found == "75.0 % used, 20 MiB free"


def test_a_file_system_without_blocks() -> None:
    assert DiskSpace(0, 0).used_ratio is None and str(DiskSpace(0, 0)) == "0.0 % used, 0 MiB free"
