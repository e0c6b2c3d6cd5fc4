"""What commits of a Delta table say, by their versions, beside what deltalake reads of each version."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa

from mqlake.lake.tables.delta_log import DeltaLog


def table_with(directory: Path, commits: int) -> None:
    for number in range(commits):
        properties = deltalake.CommitProperties(custom_metadata={"number": str(number)})
        deltalake.write_deltalake(
            directory,
            pa.table({"text": ['{"commitInfo":{"number":"-1"}}']}),  # in the statistics of the file
            mode="append",
            commit_properties=properties,
        )


def test_each_version_has_its_own_commit(tmp_path: Path) -> None:
    table_with(tmp_path, 3)
    loaded = deltalake.DeltaTable(tmp_path)
    table_with(tmp_path, 2)  # history() of `loaded` would call these 2 and 1
    log = DeltaLog(str(tmp_path))
    assert [log.commit(number)["number"] for number in range(3)] == ["0", "1", "2"]  # type: ignore[index]
    assert log.commit(loaded.version())["number"] == "2"  # type: ignore[index]
    assert log.versions() == [4, 3, 2, 1, 0]
    assert [(version, each["number"]) for version, each in log.commits()] == [
        (4, "1"),
        (3, "0"),
        (2, "2"),
        (1, "1"),
        (0, "0"),
    ]


def test_commits_that_are_gone_or_say_nothing(tmp_path: Path) -> None:
    table_with(tmp_path, 3)
    folder = tmp_path / "_delta_log"
    (folder / f"{0:020d}.json").unlink()
    (folder / f"{1:020d}.json").write_bytes(b'{"txn":{"appId":"commitInfo","version":1}}\n')
    log = DeltaLog(f"file://{tmp_path}/")
    assert log.commit(0) is None and log.commit(3) is None
    assert log.commit(1) == {}
    assert [version for version, _ in log.commits()] == [2, 1]
    assert DeltaLog(str(tmp_path / "nothing")).commits() == []
