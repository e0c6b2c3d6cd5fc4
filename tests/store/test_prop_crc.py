"""`__CRC32#` is checked wherever a record has one, without being asked, and nobody misses one that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.base.findings import Severity
from mqlake.errors import BadCrcError
from mqlake.store.check.verify import verify_store
from mqlake.store.message_store import open_store
from mqlake.store.read_only import ReadOnlyStore
from tests.store.small_store import COUNT, SETTINGS, fill, flip, message, pretend_crash, record_at

FLAG = 16  # which nothing but this checksum covers


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    yield fill(tmp_path / "store", enabledAppendPropCRC=True)


def test_verify_finds_what_only_it_covers(store: Path) -> None:
    path, position, _ = record_at(store, 30)
    flip(path, position + FLAG)
    report = verify_store(store)
    (hole,) = report.holes
    assert (hole.path, hole.position, hole.reason) == (str(path), position, "property CRC")


def test_the_last_record_when_the_store_is_known_to_write_them(store: Path) -> None:
    path, position, _ = record_at(store, COUNT - 1)
    flip(path, position + FLAG)
    report = verify_store(store, {"enabledAppendPropCRC": True})
    assert any(f.kind == "corruption" and f.offset == position for f in report.of(Severity.DAMAGE))


def test_a_read_by_offset_finds_it(store: Path) -> None:
    path, position, _ = record_at(store, 30)
    flip(path, position + FLAG)
    with ReadOnlyStore(store) as view, pytest.raises(BadCrcError, match="property CRC"):
        view.look_message_by_offset(int(path.name) + position)


@pytest.mark.parametrize("forced", [True, False])
def test_a_store_that_began_without_them(tmp_path: Path, forced: bool) -> None:
    root = fill(tmp_path / "store", count=50)
    settings = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": forced}
    fill(root, 50, 50, **settings)
    pretend_crash(root)
    assert verify_store(root, settings).ok
    with open_store(root, {**SETTINGS, **settings}) as opened:
        assert opened.max_offset_in_queue("Orders", 0) == 25


def test_what_a_client_calls_so_is_no_damage(tmp_path: Path) -> None:
    """A store that writes none keeps the property, as RocketMQ does; also of a message that was read elsewhere."""
    root = fill(tmp_path / "store", count=5)
    with open_store(root) as opened:
        for number in range(5, 10):
            sent = message(number)
            sent.properties["__CRC32#"] = "0123456789"
            assert opened.put_message(sent).is_ok
    pretend_crash(root)
    assert verify_store(root).ok
    with open_store(root) as opened:
        assert opened.max_offset_in_queue("Orders", 0) == 3
