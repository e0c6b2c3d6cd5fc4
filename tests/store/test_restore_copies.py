from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.errors import StoreError, StoreLockedError
from mqlake.message import MessageExtBrokerInner
from mqlake.store.check.repair import repair_store
from mqlake.store.check.verify import verify_store
from mqlake.store.kept_copies import keep, kept_copies
from mqlake.store.message_store import open_store
from mqlake.store.restore_copies import Way, look_at_copies, put_back
from tests.store.small_store import contents, flip, log_file, pretend_crash
from tests.store.test_recovery import BODIES, FILE_SIZE, SMALL, bodies_of, filled, forget_flushes, overwrite


def cut_off(root: Path, number: int) -> list[int]:
    """A store of which recovery has cut off the messages from `number` on, as older versions did at damage in the
    middle: the copies are in `dropped/`, one for each file, and message `number` is damaged. The physical offsets."""
    *offsets, end = filled(root, BODIES)
    start = offsets[number]
    flip(log_file(root, start // FILE_SIZE), start % FILE_SIZE + 100)
    for path in sorted((root / "commitlog").iterdir()):
        base = int(path.name)
        position = max(0, start - base)
        if position < FILE_SIZE:
            data = path.read_bytes()
            keep(str(root), memoryview(data[position:].rstrip(b"\0") + bytes(2)), base + position, "cut off")
            overwrite(root, base + position, bytes(FILE_SIZE - position))
    for path in sorted((root / "commitlog").iterdir()):
        if int(path.name) > start:
            path.unlink()
    pretend_crash(root)
    forget_flushes(root)
    open_store(root, SMALL).shutdown()
    return [*offsets, end]


def bodies(root: Path) -> list[bytes]:
    with open_store(root, SMALL) as store:
        return bodies_of(store)


class TestInPlace:
    @pytest.mark.parametrize("number", [20, 3])
    def test_messages_get_their_offsets_again(self, tmp_path: Path, number: int) -> None:
        *offsets, end = cut_off(tmp_path, number)
        assert bodies(tmp_path) == BODIES[:number]
        looked = look_at_copies(tmp_path, SMALL)
        assert [each.way for each in looked] == [Way.IN_PLACE] * len(looked)
        assert sum(each.messages for each in looked) == len(BODIES) - number - 1
        done = put_back(tmp_path, SMALL)
        assert [each.way for each in done] == [Way.IN_PLACE] * len(looked)
        with open_store(tmp_path, SMALL) as store:
            assert bodies_of(store) == BODIES[:number] + BODIES[number + 1 :]
            assert store.max_phy_offset == end
            for queue_offset in range(number + 1, len(BODIES)):
                message = store.look_message_by_offset(offsets[queue_offset])
                assert (message.queue_offset, message.body) == (queue_offset, BODIES[queue_offset])
        assert verify_store(tmp_path, SMALL).damage_count == 0
        assert all(copy.put_back.startswith("in place") for copy in kept_copies(str(tmp_path)))

    def test_is_not_done_twice(self, tmp_path: Path) -> None:
        cut_off(tmp_path, 20)
        put_back(tmp_path, SMALL)
        after = bodies(tmp_path)
        assert put_back(tmp_path, SMALL) == []
        assert put_back(tmp_path, SMALL, again=True) == []
        assert [each.way for each in look_at_copies(tmp_path, SMALL)] == [Way.NOTHING]
        assert bodies(tmp_path) == after


class TestAsNew:
    def test_once_the_log_has_gone_on(self, tmp_path: Path) -> None:
        cut_off(tmp_path, 20)
        with open_store(tmp_path, SMALL) as store:
            store.put_message(MessageExtBrokerInner("T", b"later"))
        [looked] = look_at_copies(tmp_path, SMALL)
        assert (looked.way, looked.messages, looked.queues) == (Way.AS_NEW, 9, {"T/0": 9})
        put_back(tmp_path, SMALL)
        assert bodies(tmp_path) == [*BODIES[:20], b"later", *BODIES[21:]]
        with open_store(tmp_path, SMALL) as store:
            assert len(list(store.query_message("T", "k25", 8).messages())) == 1
        assert put_back(tmp_path, SMALL) == []

    def test_when_it_is_asked_for(self, tmp_path: Path) -> None:
        cut_off(tmp_path, 20)
        [done] = put_back(tmp_path, SMALL, as_new=True)
        assert done.way is Way.AS_NEW
        assert bodies(tmp_path) == BODIES[:20] + BODIES[21:]

    def test_what_a_repair_gave_up(self, tmp_path: Path) -> None:
        """Records that are whole, of a copy that repair made."""
        *offsets, end = filled(tmp_path, BODIES)
        stale = log_file(tmp_path, -1).read_bytes()[offsets[-1] % FILE_SIZE : end % FILE_SIZE]
        overwrite(tmp_path, offsets[-2], b"\xff" * 20)
        overwrite(tmp_path, offsets[-1], b"\xff" * 20)
        pretend_crash(tmp_path)
        forget_flushes(tmp_path)
        report = repair_store(tmp_path, SMALL)
        assert report.copies is not None
        [copy] = kept_copies(str(tmp_path))
        Path(copy.path).write_bytes(bytes(offsets[-1] - copy.physical_offset) + stale)
        [looked] = look_at_copies(tmp_path, SMALL)
        assert looked.messages == 1
        put_back(tmp_path, SMALL, as_new=True)
        assert bodies(tmp_path) == BODIES[:-2] + BODIES[-1:]


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    cut_off(tmp_path, 20)
    with open_store(tmp_path, SMALL):
        with pytest.raises(StoreLockedError):
            put_back(tmp_path, SMALL)
        assert len(look_at_copies(tmp_path, SMALL)) == 1


def test_a_name_that_is_none(tmp_path: Path) -> None:
    cut_off(tmp_path, 20)
    with pytest.raises(StoreError, match="no copy has this name"):
        look_at_copies(tmp_path, SMALL, ("dropped/1",))


def test_looking_changes_nothing(tmp_path: Path) -> None:
    cut_off(tmp_path, 3)
    before = contents(tmp_path)
    look_at_copies(tmp_path, SMALL)
    assert contents(tmp_path) == before
