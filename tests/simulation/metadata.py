"""The metadata of a master and its slave: mqlake's tables and SlaveSynchronize, with calls that fail by the seed.

The master's tables change between the calls and during them; an answer may be lost, come late or be cut short.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

from mqlake.broker.admin.group import GroupAdmin
from mqlake.broker.admin.offset import OffsetAdmin
from mqlake.broker.admin.topic import TopicAdmin
from mqlake.broker.broker import Broker
from mqlake.broker.config import BrokerConfig
from mqlake.broker.metrics.execution_times import ExecutionTimes
from mqlake.broker.services.slave_synchronize import SlaveSynchronize
from mqlake.errors import RemotingTimeoutError
from mqlake.remoting.bodies.topic import TopicConfig
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import ProcessorTable
from mqlake.remoting.headers.consume import UpdateConsumerOffsetRequestHeader
from mqlake.remoting.processors import register
from mqlake.store.config import MessageStoreConfig

TOPICS = [f"T{number}" for number in range(6)]
GROUPS = [f"G{number}" for number in range(4)]


class Cursors:
    """What ScheduleMessageService has of delays."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.dirty = False

    def encode(self) -> dict[str, Any]:
        return {"offsetTable": dict(self.offsets)}

    def decode(self, value: Any) -> None:
        self.offsets = dict(value["offsetTable"])


def broker_in(directory: Path) -> Broker:
    return Broker(BrokerConfig(), MessageStoreConfig.from_mapping({"storePathRootDir": str(directory)}))


class MetadataLife:
    """It is the master's end of the connection, too."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.master, self.slave = broker_in(directory / "master"), broker_in(directory / "slave")
        self.slave.consumer_offset_manager.keeps_own_commits = True
        self.cursors, self.slave_cursors = Cursors(), Cursors()
        self.is_quiet = False
        self.versions: list[set[str]] = []
        """The topics that the master has had, at each moment."""
        self._table = ProcessorTable()
        times = ExecutionTimes()
        register(self._table, TopicAdmin(self.master, times), self.master.store)
        register(self._table, GroupAdmin(self.master, times), self.master.store)
        nobody = cast(Any, None)
        offsets = OffsetAdmin(self.master, nobody, nobody, cast(Any, self.cursors))
        register(self._table, offsets, self.master.store)
        self.sync = SlaveSynchronize(self.slave, cast(Any, self.slave_cursors), None, cast(Any, self))
        self.sync.master_addr = "master:1"
        self.note()

    def note(self) -> None:
        self.versions.append(self.topics(self.master))

    def topics(self, broker: Broker) -> set[str]:
        return {topic for topic in TOPICS if topic in broker.topic_config_manager.topic_config_table}

    # --- the connection

    async def call(self, address: str, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
        fate = (
            "fine"
            if self.is_quiet
            else self.dice.choice(("fine", "fine", "lost", "answer lost", "cut short"))
        )
        if fate == "lost":
            raise RemotingTimeoutError(address, timeout_s)
        answer = await self._answer(request)
        for _ in range(0 if self.is_quiet else self.dice.randrange(3)):
            self.change()
        if fate == "answer lost":
            raise RemotingTimeoutError(address, timeout_s)
        if fate == "cut short" and answer.body:
            answer.body = bytes(answer.body)[: self.dice.randrange(len(answer.body))]
        return answer

    async def _answer(self, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            header = request.decode_header(UpdateConsumerOffsetRequestHeader)
            assert header.queue_id is not None and header.commit_offset is not None
            self.master.consumer_offset_manager.commit_offset(
                "slave", header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
            return RemotingCommand.create_response()
        found = self._table.find(request.code)
        assert found is not None, request.code
        processor, is_async = found
        result: Any = processor(cast(Any, None), request)
        return cast(RemotingCommand, await result if is_async else result)

    # --- what happens

    def change(self) -> None:
        """Something of the master, or a commit at the slave."""
        dice, master = self.dice, self.master
        topic, group = dice.choice(TOPICS), dice.choice(GROUPS)
        what = dice.randrange(6)
        if what == 0:
            master.topic_config_manager.update_topic_config(
                TopicConfig(topic_name=topic, read_queue_nums=dice.randrange(1, 9))
            )
        elif what == 1 and topic in master.topic_config_manager.topic_config_table:
            master.topic_config_manager.delete_topic_config(topic)
        elif what == 2:
            self.commit(master, group, topic)
        elif what == 3:
            self.commit(self.slave, group, topic)
        elif what == 4:
            master.subscription_group_manager.find_subscription_group_config(group)
        else:
            self.cursors.offsets[str(dice.randrange(1, 19))] = dice.randrange(1000)
        self.note()

    def commit(self, broker: Broker, group: str, topic: str) -> None:
        manager, queue_id = broker.consumer_offset_manager, self.dice.randrange(2)
        offset = max(0, manager.query_offset(group, topic, queue_id)) + self.dice.randrange(1, 10)
        manager.commit_offset("client", group, topic, queue_id, offset)
