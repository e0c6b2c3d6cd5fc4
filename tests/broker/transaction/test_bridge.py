from __future__ import annotations

import pytest

from mqlake.broker.transaction import bridge
from tests.broker.transaction.room import Room, in_a_room

FIELDS = (
    *(
        "topic",
        "body",
        "flag",
        "properties",
        "queue_id",
        "sys_flag",
        "born_timestamp",
        "born_host",
        "store_host",
    ),
    *("store_timestamp", "queue_offset", "physical_offset", "reconsume_times"),
)


def test_what_is_remembered_of_half_messages_is_bounded_and_what_the_log_has(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bridge, "RECENT_MAX", 4)
    monkeypatch.setattr(bridge, "RECENT_BYTES_MAX", 1000)

    async def scene(room: Room) -> None:
        places, given_away = [], 0
        for number, size in enumerate((1, 10, 100, 900, 1, 1, 2000, 3, 1, 1, 1, 1)):
            places.append(await room.put_half("x" * size, KEYS=f"k{number}"))
            recent = room.bridge._recent
            assert len(recent) <= 4
            assert sum(len(each.body) for each in recent.values()) == room.bridge._recent_bytes <= 1000
        for place in places:
            given_away += place in recent
            first = room.bridge.look_half_message(place)
            stored = room.bridge.look_half_message(place)
            assert [getattr(first, name) for name in FIELDS] == [getattr(stored, name) for name in FIELDS]
        assert given_away == 4 and not recent and room.bridge._recent_bytes == 0

    in_a_room(tmp_path, scene)
