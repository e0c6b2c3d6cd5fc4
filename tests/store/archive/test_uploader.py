"""The uploader, killed and cheated: what the manifest names is there, each byte of it, whatever happened before."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mqlake.errors import ArchiveUnavailableError, StoreError
from mqlake.store.archive.check import repair, verify
from mqlake.store.archive.manifest import MANIFEST, Manifest, encode, read_manifest
from mqlake.store.archive.retention import expire
from mqlake.store.archive.target import Target
from mqlake.store.archive.uploader import Uploader
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.log.log_reader import LogReader, open_log
from tests.ports import free_port
from tests.store.archive.places import DyingPlace, FlakyPlace, Killed, Place, tries
from tests.store.small_store import fill


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = fill(tmp_path / "store")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text('{"topicConfigTable": {}}')
    return root


def config_of(root: Path) -> MessageStoreConfig:
    return dataclasses.replace(
        MessageStoreConfig.from_mapping(detect_settings(str(root))), store_path_root_dir=str(root)
    )


def log_of(root: Path) -> MappedFileQueue:
    files = open_log(config_of(root))
    LogReader(files).find_end()
    return files


def upload(root: Path, place: Target, until: Callable[[MappedFileQueue], int] | None = None) -> Uploader:
    """One round of a new process."""
    files = log_of(root)
    try:
        uploader = Uploader(config_of(root), place)
        uploader.refresh(files)
        uploader.upload(files, lambda: files.max_wrote_position if until is None else until(files))
        return uploader
    finally:
        files.close()


def log_bytes(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


def check(root: Path, place: Target, *, complete: bool = False) -> None:
    """Everything that the manifest names is whole, and is the log's."""
    manifest = read_manifest(Target(place.url))
    if manifest is None:
        assert not complete
        return
    log = log_bytes(root)
    for each in manifest.objects:
        data = Target(place.url).read(each.name)
        assert data == log[each.start : each.end], each.name
        assert hashlib.sha256(data).hexdigest() == each.sha256
    assert not verify(Target(place.url), read=True).troubles
    if complete:
        files = log_of(root)
        assert (manifest.begin, manifest.end) == (0, files.max_wrote_position)
        files.close()


def test_all_of_the_log_and_again_nothing(store: Path, tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/archive")
    manifest = upload(store, place).manifest
    check(store, place, complete=True)
    assert [each.is_whole for each in manifest.objects] == [True] * (len(manifest.objects) - 1) + [False]
    assert {topic for each in manifest.objects for topic in each.topics} == {"Orders", "Payments"}
    assert sum(each.records for each in manifest.objects) == 200
    again = Place(place.url)
    assert upload(store, again).manifest == manifest
    assert not again.written and not again.calls["replace"]
    assert not verify(again).orphans


def test_parts_of_the_open_file_are_few_and_give_way_to_the_whole(store: Path, tmp_path: Path) -> None:
    """However often it is archived: a part that is no larger than what follows goes up again with it."""
    place = Place(f"file://{tmp_path}/archive")
    files = log_of(store)
    ends = [
        end for chunk in LogReader(files).scan(0, 16384) for end in chunk.scan.physical_offset.tolist()[1:]
    ]
    files.close()
    for end in ends:
        parts = upload(store, place, lambda files, end=end: end).manifest.objects
        assert parts[-1].end == end and len(parts) <= 8
        check(store, place)
    assert sum(place.written.values()) <= len(ends) + 1
    upload(store, place)
    check(store, place, complete=True)
    assert not verify(place).orphans


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_step_leaves_an_archive_that_goes_on(store: Path, tmp_path: Path, after: bool) -> None:
    """Of upload, units, manifest and deletion; nothing that came whole is sent twice."""
    files = log_of(store)
    scan = next(iter(LogReader(files).scan(files.mapped_files[1].file_from_offset)))
    middle = int(scan.scan.physical_offset[30])
    files.close()
    steps = 0
    while True:
        url = f"file://{tmp_path}/archive-{after}-{steps}"
        died, sent = 0, Counter[str]()
        for until in (lambda files: middle, None):
            place = DyingPlace(url, steps, after=after)
            try:
                upload(store, place, until)
            except Killed:
                died += 1
            sent += place.written
            check(store, place)
            # what a process remembers is not needed to go on
            (store / "archive" / MANIFEST).unlink(missing_ok=True)
        last = Place(url)
        upload(store, last)
        check(store, last, complete=True)
        sent += last.written
        assert {count for name, count in sent.items() if not name.startswith("units")} == {1}
        assert not repair(Target(url)).troubles and not verify(Target(url)).orphans
        check(store, last, complete=True)
        if not died:
            break
        steps += 1
    assert steps > 10


def test_half_of_all_requests_fail(store: Path, tmp_path: Path) -> None:
    """Each round goes on where the last one ended; what reached the place is not sent again."""
    place = FlakyPlace(f"file://{tmp_path}/archive")
    files = log_of(store)
    uploader = Uploader(config_of(store), place)

    def round_of() -> None:
        uploader.refresh(files)
        uploader.upload(files, lambda: files.max_wrote_position)

    assert tries(round_of) > 3
    files.close()
    check(store, place, complete=True)


def test_an_old_manifest_is_not_taken_for_the_newest(store: Path, tmp_path: Path) -> None:
    """An object store may give what was there before for a while."""
    place = Place(f"file://{tmp_path}/archive")
    files = log_of(store)
    first = files.mapped_files[0].file_size
    files.close()
    upload(store, place, lambda files: first)
    old = Target(place.url).read(MANIFEST)
    newest = upload(store, place).manifest
    Target(place.url).replace(MANIFEST, old)
    again = Place(place.url)
    assert upload(store, again).manifest.objects == newest.objects
    assert not again.written


def test_a_cut_manifest_is_no_manifest(store: Path, tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/archive")
    upload(store, place)
    Target(place.url).replace(MANIFEST, Target(place.url).read(MANIFEST)[:-40])
    with pytest.raises(ArchiveUnavailableError, match="damaged or cut short"):
        upload(store, place)
    assert repair(Target(place.url)).repaired
    assert not verify(Target(place.url), read=True).troubles


def test_another_log_is_refused(store: Path, tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/archive")
    upload(store, place)
    other = fill(tmp_path / "other", first=1000, count=230)
    with pytest.raises(StoreError, match="of another log"):
        upload(other, place)
    shorter = fill(tmp_path / "shorter", count=20)
    with pytest.raises(StoreError, match="or this one has lost its end"):
        upload(shorter, place)
    check(store, place, complete=True)


def test_retention_takes_the_oldest_whole_files(store: Path, tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/archive")
    uploader = upload(store, place)
    size, count = uploader.manifest.file_size, len(uploader.manifest.objects)
    bound = uploader.manifest.size - size  # one has to go
    assert len(expire(uploader, 0, bound, 0)) == 1
    assert uploader.manifest.begin == size and len(uploader.manifest.objects) == count - 1
    newest = uploader.manifest.last_time_ms
    assert not expire(uploader, 1, 0, newest)
    assert len(expire(uploader, 1, 0, newest + 2 * 3_600_000)) == count - 2  # the newest stays
    assert not verify(place, read=True).troubles and not verify(place).orphans


def test_units_are_made_again_from_the_log(store: Path, tmp_path: Path) -> None:
    place = Target(f"file://{tmp_path}/archive")
    manifest = upload(store, place).manifest
    first = manifest.objects[0]
    assert first.units is not None
    good = place.read(first.units.name)
    place.replace(first.units.name, good[:-5])
    place.delete(manifest.objects[1].name)
    troubles = verify(place).troubles
    assert len(troubles) == 2 and "is gone" in troubles[1]
    repair(place)
    assert place.read(first.units.name) == good
    after = read_manifest(place)
    assert after is not None and after.objects == (first, *manifest.objects[2:])
    place.delete(MANIFEST)
    for name in place.sizes("parts"):
        place.delete(name)
    repair(place)
    made = read_manifest(place)
    assert made is not None and made.sequence > manifest.sequence
    assert [dataclasses.replace(each, units=None) for each in made.objects] == [
        dataclasses.replace(each, units=None) for each in after.objects if each.is_whole
    ]


def test_a_manifest_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    place = Target(f"file://{tmp_path}/archive")
    place.replace(MANIFEST, encode(Manifest(1024)).replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(StoreError, match="newer mqlake"):
        read_manifest(place)


def test_heads_of_archived_files_come_along_and_go_with_them(store: Path, tmp_path: Path) -> None:
    """Else what a broker archives could not be asked narrow questions, and what is deleted would leave heads."""
    place = Place(f"file://{tmp_path}/archive")
    files = sorted(path.name for path in (store / "commitlog").iterdir())
    (store / "heads").mkdir()
    for name in (files[0], files[-1]):  # the last file is not finished
        (store / "heads" / f"{name}.parquet").write_bytes(b"heads of " + name.encode())
    uploader = upload(store, place)
    name = f"heads/{files[0]}.parquet"
    assert place.sizes("heads") == {name: len(b"heads of ") + 20}
    assert place.read(name) == b"heads of " + files[0].encode()
    assert not verify(place).orphans
    upload(store, place)
    assert place.written[name] == 1
    (store / "heads" / f"{files[0]}.parquet").write_bytes(b"made again, and longer than they were")
    upload(store, place)
    assert place.written[name] == 2
    place.write(f"heads/{10**12:020}.parquet", [b"of no file"])
    assert verify(place).orphans == [f"heads/{10**12:020}.parquet"]
    repair(place)
    assert list(place.sizes("heads")) == [name]
    uploader.refresh(log_of(store))
    assert expire(uploader, 0, 1, 0)
    assert not place.sizes("heads")


def test_a_place_that_is_not_reached_is_named() -> None:
    url = f"ftp://127.0.0.1:{free_port()}/store"
    with pytest.raises(ArchiveUnavailableError, match=f"^{url} cannot be reached: Connection refused$"):
        Target(url)
