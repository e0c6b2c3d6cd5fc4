"""What was deleted here is read from the archive: by queue, tag, key, id and time, through a cache with a bound."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mqlake.store.archive.reader as reader_module
from mqlake.errors import ArchiveUnavailableError
from mqlake.message import MessageExt
from mqlake.store.archive.manifest import read_manifest
from mqlake.store.archive.reader import NotCachedError
from mqlake.store.archive.target import Target
from mqlake.store.filter import TagFilter
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.results import BoundaryType, GetMessageStatus
from tests.store.archive.places import FlakyPlace, Place
from tests.store.small_store import QUEUES, SETTINGS, TOPICS, message
from tests.waiting import until

COUNT = 1000


def forget_old_files(store: DefaultMessageStore) -> None:
    """As cleaning does when their time is over."""
    store.commit_log_files.delete_expired_file_by_time(0, clean_immediately=True, batch_max=1000)
    store._clean_service._consume_queue.run_once()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    """1,000 messages, of which only the newest file is still here."""
    settings = {**SETTINGS, "archive": f"file://{tmp_path}/archive", "archiveInterval": 1}
    with open_store(tmp_path / "store", settings) as store:
        for number in range(COUNT):
            assert store.put_message(message(number)).is_ok
        store.flush()
        store.wait_until_dispatched()
        assert store.archive is not None
        until(lambda: store.archive and store.archive.behind_bytes == 0, "all is archived")
        forget_old_files(store)
        assert store.min_phy_offset > 3 * 16384
        yield store


def numbers(topic: int, queue_id: int) -> list[int]:
    return [n for n in range(COUNT) if n % 2 == topic and n // 2 % QUEUES == queue_id]


def read(
    store: DefaultMessageStore, topic: str, queue_id: int, tags: TagFilter | None = None
) -> list[MessageExt]:
    """Everything from the queue's beginning on."""
    offset, found = store.min_offset_in_queue(topic, queue_id), []
    while offset < store.max_offset_in_queue(topic, queue_id):
        result = store.get_message("g", topic, queue_id, offset, 32, tags)
        assert result.next_begin_offset > offset
        found += list(result.messages())
        offset = result.next_begin_offset
    return found


def number_of(found: MessageExt) -> int:
    return int(found.body.split()[1])


def test_every_message_of_every_queue_once_and_in_order(store: DefaultMessageStore) -> None:
    for which, topic in enumerate(TOPICS):
        for queue_id in range(QUEUES):
            assert store.min_offset_in_queue(topic, queue_id) == 0
            assert [number_of(m) for m in read(store, topic, queue_id)] == numbers(which, queue_id)
            tagged = read(store, topic, queue_id, TagFilter("Tag1"))
            assert [number_of(m) for m in tagged] == [n for n in numbers(which, queue_id) if n % 3 == 1]


def test_it_begins_with_the_archive_after_a_restart_too(store: DefaultMessageStore) -> None:
    root, begin = store.config.store_path_root_dir, store.min_phy_offset
    store.shutdown()
    with open_store(root, {"archive": store.config.archive}) as again:
        assert again.min_phy_offset == begin and again.min_offset_in_queue(TOPICS[0], 0) == 0
        assert [number_of(m) for m in read(again, TOPICS[0], 0)] == numbers(0, 0)
    with open_store(root) as alone:  # without it, the log begins where it begins
        assert alone.min_offset_in_queue(TOPICS[0], 0) > 0


def test_a_store_that_remembers_nothing_and_a_slave_read_it(store: DefaultMessageStore) -> None:
    """Both learn of the archive after their start; a slave never writes to it."""
    root, url = store.config.store_path_root_dir, store.config.archive
    store.shutdown()
    shutil.rmtree(Path(root) / "archive")
    before = read_manifest(Target(url))
    for role in ("SLAVE", "ASYNC_MASTER"):
        with open_store(root, {"archive": url, "archiveInterval": 1, "brokerRole": role}) as again:
            until(lambda: again.min_offset_in_queue(TOPICS[0], 0) == 0, "it knows the archive")
            assert [number_of(m) for m in read(again, TOPICS[0], 0)] == numbers(0, 0)
        assert read_manifest(Target(url)) == before
        shutil.rmtree(Path(root) / "archive")


def test_by_key_id_and_time(store: DefaultMessageStore) -> None:
    assert [number_of(m) for m in store.query_message(TOPICS[1], "key-7", 5).messages()] == [7]
    first = read(store, TOPICS[0], 0)
    place = first[3]
    assert store.look_message_by_offset(place.physical_offset).body == place.body
    # against all times there are
    for boundary in BoundaryType:
        for timestamp in sorted({m.store_timestamp for m in first})[:20]:
            found = store.get_offset_in_queue_by_time(TOPICS[0], 0, timestamp, boundary)
            same = [m.queue_offset for m in first if m.store_timestamp == timestamp]
            assert found == (same[0] if boundary is BoundaryType.LOWER else same[-1])


def test_an_event_loop_never_waits_for_the_place(store: DefaultMessageStore) -> None:
    """There what has not come is an error that says what to fetch."""
    assert store.archived is not None

    async def pull() -> int:
        assert store.archived is not None
        fetched = 0
        while True:
            try:
                result = store.get_message("g", TOPICS[0], 0, 0, 32, may_wait=False)
                assert result.status is GetMessageStatus.FOUND
                return fetched
            except NotCachedError as missing:
                fetched += 1
                await asyncio.get_running_loop().run_in_executor(
                    store.archived.pool, store.archived.fetch, missing.start, missing.end
                )

    assert asyncio.run(pull()) == 1
    assert asyncio.run(pull()) == 0


def test_the_cache_keeps_to_its_bound(
    store: DefaultMessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And many readers in many places still get all of it."""
    monkeypatch.setattr(reader_module, "CHUNK_BYTES", 8192)
    monkeypatch.setattr(reader_module, "BLOCK_BYTES", 1024)
    store.config.__dict__["archive_cache_size"] = 1
    assert store.archived is not None
    bound = reader_module.CHUNKS_MIN * 8192
    sizes = []

    def consume(queue: tuple[int, int]) -> bool:
        found = [number_of(m) for m in read(store, TOPICS[queue[0]], queue[1])]
        sizes.append(store.archived.cached_bytes if store.archived else 0)
        return found == numbers(*queue)

    queues = [(topic, queue_id) for topic in range(2) for queue_id in range(QUEUES)] * 3
    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(consume, queues))
    cache = tmp_path / "store" / "archive" / "cache"
    assert max(sizes) <= bound + 7 * 8192  # those that are just read are not taken away
    assert len(list(cache.iterdir())) <= 11


def test_one_who_reads_before_what_has_come(
    store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of each chunk, then its beginning: the records in between have not come and are not checked."""
    monkeypatch.setattr(reader_module, "CHUNK_BYTES", 8192)
    monkeypatch.setattr(reader_module, "BLOCK_BYTES", 1024)
    store.config.__dict__["archive_cache_size"] = 1  # nothing is brought ahead
    reader = store.archived
    assert reader is not None
    everything = [m for topic in TOPICS for queue_id in range(QUEUES) for m in read(store, topic, queue_id)]
    numbered = {
        m.physical_offset: number_of(m) for m in everything if m.physical_offset < store.min_phy_offset
    }
    for start in list(reader._chunks):
        reader._forget(start)
    chunks: dict[int, list[int]] = {}
    for offset in sorted(numbered):
        chunks.setdefault(offset // 8192, []).append(offset)
    assert len(chunks) > 5
    for offsets in chunks.values():
        for offset in (offsets[-1], offsets[0], offsets[len(offsets) // 2]):
            assert number_of(store.look_message_by_offset(offset)) == numbered[offset]


def test_one_who_reads_on_asks_seldom(store: DefaultMessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request brings a block, the next ones four, sixteen, … and the next chunk comes ahead of need."""
    monkeypatch.setattr(reader_module, "BLOCK_BYTES", 256)
    assert store.archived is not None
    reader = store.archived
    before = reader.requests
    files = store.min_phy_offset // 16384
    for position in range(0, files * 16384, 256):
        assert reader.select(position, 256) is not None
    assert reader.requests - before <= files + 3


def test_a_place_that_is_away_moves_no_offset(store: DefaultMessageStore) -> None:
    assert store.archive is not None and store.archived is not None

    def away(_call: str, name: str) -> None:
        raise ArchiveUnavailableError(f"{name} cannot be reached: no route to host")

    store.archive._target = Place(store.config.archive, away)
    with pytest.raises(ArchiveUnavailableError, match="no route to host"):
        store.get_message("g", TOPICS[0], 0, 0, 32)
    assert store.min_offset_in_queue(TOPICS[0], 0) == 0
    newest = store.max_offset_in_queue(TOPICS[0], 0) - 1
    assert store.get_message("g", TOPICS[0], 0, newest, 1).status is GetMessageStatus.FOUND
    store.archive._target = FlakyPlace(store.config.archive)
    found: list[int] = []
    while len(found) < len(numbers(0, 0)):
        try:
            result = store.get_message("g", TOPICS[0], 0, len(found), 32)
        except ArchiveUnavailableError:
            continue
        found += [number_of(m) for m in result.messages()]
    assert found == numbers(0, 0)


def test_damage_in_the_archive_is_named_and_passed_over(store: DefaultMessageStore, tmp_path: Path) -> None:
    first = read(store, TOPICS[0], 0)[1]
    assert store.archived is not None
    for start in list(store.archived._chunks):
        store.archived._forget(start)
    path = tmp_path / "archive" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(first.body, first.physical_offset)] ^= 1
    path.write_bytes(data)
    result = store.get_message("g", TOPICS[0], 0, 0, 32)
    assert [number_of(m) for m in result.messages()][:2] == [numbers(0, 0)[0], numbers(0, 0)[2]]
    ((offset, error),) = result.damaged
    assert offset == 1 and f"archive/commitlog/{0:020d}" in str(error)


def test_only_what_is_archived_goes(tmp_path: Path) -> None:
    """Also on a full disk: the only copy of a message is not deleted to make room."""
    settings = {
        **SETTINGS,
        "archive": f"file://{tmp_path}/archive",
        "archiveInterval": 3600,
        "deleteOnlyArchived": True,
        "fileReservedTime": 0,
    }
    with open_store(tmp_path / "store", settings) as store:
        archive = store.archive
        assert archive is not None
        until(lambda: archive._uploader is not None and archive._uploader._is_checked, "the first round")
        archive._target = Place(
            settings["archive"], lambda call, name: (_ for _ in ()).throw(ArchiveUnavailableError("away"))
        )
        for number in range(COUNT):
            store.put_message(message(number))
        store.flush()
        cleaner = store._clean_commit_log_service
        cleaner._disk_used = lambda path: 0.99
        archived_to = archive.manifest.end
        for _ in range(3):
            cleaner.run_once()
        assert store.min_phy_offset <= archived_to
        assert store.running_flags.flag_bits  # messages are refused
