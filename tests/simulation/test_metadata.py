"""A slave's tables are its master's whole tables, whatever happens to the calls; commits made at the slave stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.simulation.metadata import GROUPS, TOPICS, MetadataLife

LIVES = 12


def offsets(life: MetadataLife, of_master: bool) -> dict[tuple[str, str, int], int]:
    manager = (life.master if of_master else life.slave).consumer_offset_manager
    return {
        (group, topic, queue): manager.query_offset(group, topic, queue)
        for group in GROUPS
        for topic in TOPICS
        for queue in range(2)
    }


@pytest.mark.parametrize("seed", range(LIVES))
def test_a_life(tmp_path: Path, seed: int) -> None:
    async def scene() -> None:
        life = MetadataLife(tmp_path, seed)
        for _ in range(40):
            for _ in range(life.dice.randrange(4)):
                life.change()
            before = life.topics(life.slave)
            await life.sync.sync_all()
            assert life.topics(life.slave) in [before, *life.versions], "a table that the master never had"
        life.is_quiet = True
        owed = {key: max(offset, offsets(life, True)[key]) for key, offset in offsets(life, False).items()}
        # the second brings back what the first has sent to the master
        assert await life.sync.sync_all()
        assert await life.sync.sync_all()
        assert life.topics(life.slave) == life.topics(life.master) == life.versions[-1]
        assert offsets(life, False) == offsets(life, True)
        assert all(
            offsets(life, True)[key] >= offset for key, offset in owed.items() if key[1] in life.versions[-1]
        )
        assert life.slave_cursors.offsets == life.cursors.offsets
        groups = [
            each.subscription_group_manager.subscription_group_table for each in (life.slave, life.master)
        ]
        assert groups[0] == groups[1]
        version = life.slave.topic_config_manager.data_version
        assert await life.sync.sync_all()
        assert life.slave.topic_config_manager.data_version == version

    asyncio.run(scene())
