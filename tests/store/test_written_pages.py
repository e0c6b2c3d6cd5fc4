"""Mapped pages that were written leave the process's memory."""

from __future__ import annotations

from pathlib import Path

from mqlake.message import MessageExtBrokerInner
from mqlake.store import open_store
from mqlake.store.written_pages import give_up_pages
from tests.memory import resident


def test_what_was_written_is_taken_out_of_memory(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 8 << 20, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
    with open_store(tmp_path, settings) as store:
        for number in range(10):
            message = MessageExtBrokerInner("T", bytes([number]) * (400 << 10), properties={"KEYS": "k"})
            message.queue_id = 0
            assert store.put_message(message).is_ok
        store.wait_until_dispatched()
        assert resident(tmp_path) > 4 << 20
        give_up_pages(store.commit_log_files, store.index)
        assert resident(tmp_path) < 1 << 20
        last = next(iter(store.get_message("g", "T", 0, 9, 1).messages()))
        assert last.body == bytes([9]) * (400 << 10)
