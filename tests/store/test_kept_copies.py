from __future__ import annotations

import json
from pathlib import Path

from mqlake.store.kept_copies import DROPPED_DIR, count_kept, describe_kept, forget, keep, kept_copies


class TestCopies:
    def test_are_never_overwritten(self, tmp_path: Path) -> None:
        first, _ = keep(str(tmp_path), memoryview(b"one"), 4096, "why")
        second, _ = keep(str(tmp_path), memoryview(b"two"), 4096, "why")
        assert first != second
        assert [Path(copy.path).read_bytes() for copy in kept_copies(str(tmp_path))] == [b"one", b"two"]
        assert {copy.physical_offset for copy in kept_copies(str(tmp_path))} == {4096}

    def test_of_an_older_version_have_no_note(self, tmp_path: Path) -> None:
        (tmp_path / DROPPED_DIR).mkdir()
        (tmp_path / DROPPED_DIR / f"{8192:020d}").write_bytes(b"bytes")
        [copy] = kept_copies(str(tmp_path))
        assert (copy.name, copy.physical_offset, copy.size) == (f"dropped/{8192:020d}", 8192, 5)
        assert (copy.why, copy.put_back) == ("cut off by recovery", "")

    def test_are_counted_and_described(self, tmp_path: Path) -> None:
        assert (count_kept(str(tmp_path)), describe_kept(str(tmp_path))) == ((0, 0), "")
        keep(str(tmp_path), memoryview(b"one"), 4096, "why")
        (tmp_path / "repair-20260101T000000").mkdir()
        assert count_kept(str(tmp_path)) == (1, 1)
        assert describe_kept(str(tmp_path)).startswith("1 copy of bytes that left the log in dropped/;")

    def test_damaged_notes_and_lists_do_no_harm(self, tmp_path: Path) -> None:
        path, _ = keep(str(tmp_path), memoryview(b"one"), 4096, "why")
        Path(f"{path}.json").write_text("{")
        repair = tmp_path / "repair-20260101T000000"
        repair.mkdir()
        (repair / "repair.json").write_text(json.dumps([{"copy": "commitlog/nothing", "file": "x"}]))
        assert [copy.path for copy in kept_copies(str(tmp_path))] == [path]

    def test_are_deleted_when_asked_for(self, tmp_path: Path) -> None:
        keep(str(tmp_path), memoryview(b"one"), 4096, "why")
        [copy] = kept_copies(str(tmp_path))
        forget(copy)
        assert kept_copies(str(tmp_path)) == []
        assert list((tmp_path / DROPPED_DIR).iterdir()) == []
