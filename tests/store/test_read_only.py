"""ReadOnlyStore beside a writer in the same process: each look is of one moment, and nothing is missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.errors import WrongFileSizeError
from mqlake.formats.record import decode_record
from mqlake.message import MessageExtBrokerInner
from mqlake.store import read_only
from mqlake.store.file_sizes import detect_settings
from mqlake.store.message_store import DefaultMessageStore, open_store
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.results import GetMessageStatus
from tests.waiting import PATIENCE_S

SMALL = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 200,
    "maxHashSlotNum": 10,
    "maxIndexNum": 40,
}


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    with open_store(tmp_path, SMALL) as store:
        yield store


def put(writer: DefaultMessageStore, first: int, last: int) -> None:
    for n in range(first, last):
        assert writer.put_message(MessageExtBrokerInner("T", b"%d" % n, keys=f"k{n}")).is_ok
    assert writer.wait_until_dispatched(PATIENCE_S)


def bodies(view: ReadOnlyStore) -> list[int]:
    return [
        int(decode_record(chunk.mapped_file.view, at).body)
        for chunk in view.scan()
        for at in chunk.scan.position.tolist()
    ]


def test_what_a_writer_adds_is_seen_over_the_borders_of_files(
    writer: DefaultMessageStore, tmp_path: Path
) -> None:
    put(writer, 0, 10)
    with ReadOnlyStore(tmp_path) as view:
        assert bodies(view) == list(range(10))
        for last in range(20, 200, 10):
            put(writer, last - 10, last)
            view.refresh()
            assert bodies(view) == list(range(last))
        assert len(view.commit_log_files.mapped_files) > 4


def test_a_store_of_which_little_was_there(writer: DefaultMessageStore, tmp_path: Path) -> None:
    """The sizes of queue and index files, which are none of the usual, show only when there are some."""
    (tmp_path / "commitlog").mkdir(exist_ok=True)
    with ReadOnlyStore(tmp_path) as view:
        assert (view.max_phy_offset, view.index) == (0, None)
        put(writer, 0, 3)
        view.refresh()
        assert bodies(view) == [0, 1, 2]
        assert view.max_offset_in_queue("T", 0) == 3
        assert len(view.query_message("T", "k2", 10).buffers) == 1


def test_queues_are_never_ahead_of_the_log(
    writer: DefaultMessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(writer, 0, 3)
    with ReadOnlyStore(tmp_path) as view:
        refresh_queues, refresh_log = view.consume_queues.refresh, view.commit_log_files.refresh

        def then_more_comes() -> None:
            refresh_queues()
            put(writer, 3, 6)

        monkeypatch.setattr(view.consume_queues, "refresh", then_more_comes)
        monkeypatch.setattr(view.commit_log_files, "refresh", lambda: (put(writer, 6, 9), refresh_log()))
        view.refresh()
        assert (view.max_offset_in_queue("T", 0), bodies(view)) == (3, list(range(9)))
        got = view.get_message("group", "T", 0, 0, 10)
        assert (got.status, got.message_count, got.next_begin_offset) == (GetMessageStatus.FOUND, 3, 3)


@pytest.mark.parametrize("properties", [{}, {"KEYS": "k"}], ids=["bare", "with properties"])
@pytest.mark.parametrize("host", [("127.0.0.1", 1), ("::1", 256)], ids=["IPv4", "IPv6"])
def test_a_record_that_is_being_written_does_not_show(
    tmp_path: Path, properties: dict[str, str], host: tuple[str, int]
) -> None:
    """RocketMQ writes from front to back, the size first."""
    with open_store(tmp_path, SMALL) as store:
        for body in (b"whole", b"coming"):
            msg = MessageExtBrokerInner("T", body, properties=dict(properties), store_host=host)
            appended = store.put_message(msg).append_result
    assert appended is not None
    start, size = appended.wrote_offset, appended.wrote_bytes
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    for written in range(size + 1):
        path.write_bytes(data[: start + written].ljust(len(data), b"\0"))
        with ReadOnlyStore(tmp_path) as view:
            # What is still to come are zeros that the record ends with, or it is not there yet.
            is_whole = not any(data[start + written : start + size])
            assert view.max_phy_offset == (start + size if is_whole else start)


@pytest.mark.parametrize("when", ["while it is opened", "while it looks again"])
def test_a_writer_makes_its_first_files_between_two_looks(
    writer: DefaultMessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The sizes are asked for before the queue files are there, and the files opened when they are."""
    (tmp_path / "commitlog").mkdir(exist_ok=True)
    looks = []

    def put_after_the_look(root: str) -> dict[str, object]:
        looks.append(detect_settings(root))
        if len(looks) == 1:
            put(writer, 0, 30)
        return looks[-1]

    if when == "while it looks again":
        with ReadOnlyStore(tmp_path) as view:
            monkeypatch.setattr(read_only, "detect_settings", put_after_the_look)
            view.refresh()
            assert bodies(view) == list(range(30))
    else:
        monkeypatch.setattr(read_only, "detect_settings", put_after_the_look)
        with ReadOnlyStore(tmp_path) as view:
            assert bodies(view) == list(range(30))
    assert looks[0] != looks[-1]


def test_a_size_that_was_asked_for_and_is_wrong_stays_an_error(
    writer: DefaultMessageStore, tmp_path: Path
) -> None:
    put(writer, 0, 30)
    with pytest.raises(WrongFileSizeError, match="mappedFileSizeConsumeQueue"):
        ReadOnlyStore(tmp_path, {"mappedFileSizeConsumeQueue": 400})
