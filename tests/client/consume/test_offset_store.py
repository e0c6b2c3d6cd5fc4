"""Offsets in local files: RocketMQ's shape, kept when the newest file is broken."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.client.consume.offset_store import LocalFileOffsetStore, OffsetSerializeWrapper
from mqlake.errors import FormatError
from mqlake.remoting.bodies.topic import MessageQueue

QUEUES = st.builds(
    MessageQueue, topic=st.text(max_size=8), broker_name=st.text(max_size=8), queue_id=st.integers(0, 99)
)
ONE = MessageQueue(topic="T", broker_name="b", queue_id=1)


def store(directory: Path) -> LocalFileOffsetStore:
    return LocalFileOffsetStore("ip@x", "G", str(directory))


@given(st.dictionaries(QUEUES, st.integers(0, 2**63 - 1), max_size=5))
def test_the_table_goes_round(offsets: dict[MessageQueue, int]) -> None:
    wrapper = OffsetSerializeWrapper(offset_table=offsets)
    assert OffsetSerializeWrapper.from_json(wrapper.to_json()) == wrapper


def test_what_java_writes_is_read(tmp_path: Path) -> None:
    local = store(tmp_path)
    os.makedirs(os.path.dirname(local.path))
    Path(local.path).write_text(
        '{\n\t"offsetTable":{{\n\t\t"brokerName":"b",\n\t\t"queueId":1,\n\t\t"topic":"T"\n\t}:7}\n}'
    )
    assert asyncio.run(local.read_from_store(ONE)) == 7 and local.offset_table == {ONE: 7}
    assert local.path == str(tmp_path / "ip@x" / "G" / "offsets.json")


def test_persisted_is_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        two = MessageQueue(topic="T", broker_name="b", queue_id=2)
        local = store(tmp_path)
        assert await local.read_from_store(ONE) is None
        local.update_offset(ONE, 5)
        local.update_offset(ONE, 3, increase_only=True)
        local.update_offset(two, 1)
        await local.persist([ONE, two])
        local.update_offset(ONE, 2)
        await local.persist([ONE])
        assert await store(tmp_path).committed(ONE) == 2 and await store(tmp_path).committed(two) == 1
        assert Path(local.path).read_text().startswith('{"offsetTable":{{"brokerName":"b","queueId":')

    asyncio.run(main())


def test_a_broken_file_is_not_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        local = store(tmp_path)
        for offset in (1, 2):
            local.update_offset(ONE, offset)
            await local.persist([ONE])
        Path(local.path).write_text('{"offsetTable":{{')
        assert await store(tmp_path).committed(ONE) == 1
        Path(local.path + ".bak").write_text("x")
        with pytest.raises(FormatError, match=r"offsets\.json"):
            await store(tmp_path).committed(ONE)

    asyncio.run(main())
