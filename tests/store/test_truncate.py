"""A log that is cut at a record, keeps a copy, and opens as if it had ended there."""

from pathlib import Path

import pytest

from mqlake.errors import ConfigError, StoreLockedError
from mqlake.store.check.verify import verify_store
from mqlake.store.heads import heads_in
from mqlake.store.kept_copies import kept_copies
from mqlake.store.message_store import open_store
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.truncate import truncate
from tests.store.small_store import SETTINGS, contents, fill


def starts(root: Path) -> list[int]:
    with ReadOnlyStore(root) as store:
        return [
            int(position) + chunk.mapped_file.file_from_offset
            for chunk in store.scan()
            for position in chunk.scan.position
        ]


@pytest.mark.parametrize("keep_records", [0, 1, 73, 150, 199])
def test_the_store_is_as_if_it_had_never_got_the_rest(tmp_path: Path, keep_records: int) -> None:
    root = fill(tmp_path / "store")
    places = starts(root)
    before = contents(root)
    done = truncate(str(root), places[keep_records])
    assert done.records == 200 - keep_records
    assert starts(root) == places[:keep_records]
    expected = fill(tmp_path / "expected", 0, keep_records) if keep_records else None
    with open_store(root, SETTINGS) as store:
        assert store.max_phy_offset == places[keep_records]
        assert store.max_offset_in_queue("Orders", 0) == -(-keep_records // 4)
    if expected is not None:
        log = {name for name in before if name.startswith("commitlog")}
        assert starts(expected) == places[:keep_records] and log
    cut = b"".join(Path(copy.path).read_bytes() for copy in kept_copies(str(root)))
    whole = b"".join(before[name] for name in sorted(before) if name.startswith("commitlog")).rstrip(b"\0")
    assert whole.endswith(cut.rstrip(b"\0"))
    assert done.size == len(cut)
    assert verify_store(root).damage_count == 0


def test_heads_of_what_is_cut_go_with_it(tmp_path: Path) -> None:
    """Else every query would pass over them with a warning until they are made again."""
    root = fill(tmp_path / "store")
    (root / "heads").mkdir()
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    for name in names:
        (root / "heads" / f"{name}.parquet").write_bytes(b"")
    place = starts(root)[100]
    truncate(str(root), place)
    kept = [
        f"{name}.parquet" for name in names if int(name) + int(SETTINGS["mappedFileSizeCommitLog"]) <= place
    ]
    assert heads_in(str(root)) == kept and 0 < len(kept) < len(names) - 1


def test_a_log_may_end_before_the_blank_that_fills_a_file(tmp_path: Path) -> None:
    """As that of a slave does, which gets the blank with what follows it."""
    root = fill(tmp_path / "store")
    size = int(SETTINGS["mappedFileSizeCommitLog"])
    places = starts(root)
    number = next(number for number, place in enumerate(places) if place >= size)
    log = (root / "commitlog" / f"{0:020d}").read_bytes()
    blank = places[number - 1] + int.from_bytes(log[places[number - 1] : places[number - 1] + 4], "big")
    assert blank < size
    assert truncate(str(root), blank).records == 200 - number
    with open_store(root, SETTINGS) as store:
        assert store.max_phy_offset == blank
    assert starts(root) == places[:number]
    with pytest.raises(ConfigError, match="is inside a record"):
        truncate(str(root), blank - 1)


def test_an_offset_inside_a_record_is_refused_with_the_one_before(tmp_path: Path) -> None:
    root = fill(tmp_path / "store")
    places = starts(root)
    before = contents(root)
    with pytest.raises(ConfigError, match=f"the one that begins before it is at {places[10]}"):
        truncate(str(root), places[10] + 7)
    with pytest.raises(ConfigError, match="not in the log"):
        truncate(str(root), 10**9)
    assert contents(root) == before


def test_a_dry_run_changes_nothing_and_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    root = fill(tmp_path / "store")
    places, before = starts(root), contents(root)
    planned = truncate(str(root), places[100], dry_run=True)
    assert (planned.records, planned.copies) == (100, [])
    assert contents(root) == before
    with open_store(root), pytest.raises(StoreLockedError):
        truncate(str(root), places[100])


def test_the_end_itself_cuts_nothing(tmp_path: Path) -> None:
    root = fill(tmp_path / "store")
    with ReadOnlyStore(root) as store:
        end = store.max_phy_offset
    assert truncate(str(root), end).size == 0
