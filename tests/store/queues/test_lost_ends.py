from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqlake.errors import StoreCorruptError
from mqlake.store.config import MessageStoreConfig
from mqlake.store.queues.lost_ends import LostEnds, QueueEnd


def lost_ends(root: Path) -> LostEnds:
    found = LostEnds(MessageStoreConfig(store_path_root_dir=str(root)))
    found.load()
    return found


def test_outlive_the_process_and_never_go_back(tmp_path: Path) -> None:
    ends = lost_ends(tmp_path)
    assert ends == {} and not (tmp_path / "config").exists()
    ends.add([QueueEnd("Orders", 0, 7), QueueEnd("Orders", 1, 9)])
    ends.add([QueueEnd("Orders", 0, 5), QueueEnd("%RETRY%g", 0, 1)])
    found = {("Orders", 0): 7, ("Orders", 1): 9, ("%RETRY%g", 0): 1}
    assert ends == lost_ends(tmp_path) == found
    assert json.loads((tmp_path / "config" / "lostQueueEnds.json").read_text()) == {
        "queues": {"Orders": {"0": 7, "1": 9}, "%RETRY%g": {"0": 1}}
    }


def test_of_a_deleted_topic_are_forgotten(tmp_path: Path) -> None:
    ends = lost_ends(tmp_path)
    ends.add([QueueEnd("A", 0, 7), QueueEnd("A", 1, 8), QueueEnd("B", 0, 9)])
    ends.forget("A")
    assert ends == lost_ends(tmp_path) == {("B", 0): 9}


def test_that_cannot_be_read_keep_the_store_from_giving_offsets_again(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "lostQueueEnds.json"
    for text in ("[1]", '{"queues": {"A": 3}}', '{"queues": {"A": {"0": "x"}}}', "{"):
        path.write_text(text)
        with pytest.raises(StoreCorruptError, match=r"lostQueueEnds\.json"):
            lost_ends(tmp_path)
