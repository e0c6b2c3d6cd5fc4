"""OrderJournal: a broker that is killed knows what it has handed out in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.broker.pop.order import ConsumerOrderInfoManager
from mqlake.broker.pop.order_journal import OrderJournal


class Managed:
    """A manager whose broker may be killed at any time."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "consumerOrderInfo.json"
        self.now = 1000
        self.manager = self.begin()

    def begin(self) -> ConsumerOrderInfoManager:
        manager = ConsumerOrderInfoManager(str(self.path), lambda: self.now)
        manager.load()
        return manager

    def kill(self) -> None:
        self.manager = self.begin()


steps = st.lists(
    st.tuples(
        st.sampled_from(["pop", "ack", "later", "clear", "persist", "kill", "copy", "write"]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(steps)
def test_nothing_is_forgotten(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]):
    managed = Managed(tmp_path_factory.mktemp("order"))
    copies = []
    for step, queue_id in steps:
        managed.now += 1
        manager = managed.manager
        info = manager.find("T", "G", queue_id)
        if step == "pop":
            manager.update("T", "G", queue_id, f"a{managed.now}", managed.now, 5000, [7, 8, 10])
        elif step == "ack" and info is not None:
            manager.commit_and_next("T", "G", queue_id, 8, info.pop_time)
        elif step == "later" and info is not None:
            manager.update_next_visible_time("T", "G", queue_id, 7, info.pop_time, managed.now + 9)
        elif step == "clear":
            manager.clear_block("T", "G", queue_id)
        elif step == "persist":
            manager.persist()
        elif step == "copy":
            copies.append((manager, manager._next_copy(), manager.snapshot()))
        elif step == "write" and copies:
            of, copy, content = copies.pop(0)
            if of is manager:
                of._write(copy, content)
        elif step == "kill":
            before = manager.encode()
            managed.kill()
            assert managed.manager.encode() == before
            copies.clear()


def test_a_half_written_line_and_one_that_is_damaged(tmp_path: Path):
    managed = Managed(tmp_path)
    managed.manager.update("T", "G", 0, "a", 1, 5000, [7])
    managed.manager.update("T", "G", 1, "a", 1, 5000, [8])
    path = tmp_path / "consumerOrderInfo.journal"
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    managed.kill()
    assert managed.manager.find("T", "G", 0) is not None
    assert managed.manager.find("T", "G", 1) is None
    managed.manager.update("T", "G", 2, "a", 1, 5000, [9])
    managed.kill()
    assert managed.manager.find("T", "G", 2) is not None
    path.write_bytes(b"garbage\n" + data)
    managed.kill()
    assert managed.manager.table == {}


def test_a_journal_of_before_another_broker_is_not_read(tmp_path: Path):
    managed = Managed(tmp_path)
    managed.manager.persist()
    managed.manager.update("T", "G", 0, "a", 1, 5000, [7])
    later = os.stat(managed.path).st_mtime + 10
    os.utime(managed.path, (later, later))
    managed.kill()
    assert managed.manager.table == {}


def test_a_journal_that_cannot_be_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    journal = OrderJournal(str(tmp_path / "missing" / "journal"))
    journal.append(("T@G", 0, None))
    assert "a kill now loses a change" in caplog.text
    journal.cut(journal.end)
