"""OffsetStore: the offsets of a group in its queues.

    RemoteBrokerOffsetStore   clustering: the broker keeps it, for all consumers of the group
    LocalFileOffsetStore      broadcasting: each consumer its own, in ~/.rocketmq_offsets/CLIENT/GROUP/offsets.json

The file is RocketMQ's: {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}, the one before it beside it
as offsets.json.bak.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from dataclasses import field
from typing import Protocol

from mqlake.client.mq_client import MQClientInstance
from mqlake.errors import FormatError, MqlakeError
from mqlake.remoting.bodies.codec import JsonBody
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)

LOCAL_OFFSET_STORE_DIR = os.path.join("~", ".rocketmq_offsets")


class OffsetStore(Protocol):
    offset_table: dict[MessageQueue, int]
    """Offsets that this consumer has reached; not all are persisted yet."""

    def update_offset(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None: ...
    async def read_from_store(self, queue: MessageQueue) -> int | None:
        """The persisted offset to start at; None if there is none. Raises RemotingError if it is unknown."""
        ...

    async def committed(self, queue: MessageQueue) -> int | None:
        """The persisted offset, None if there is none; `offset_table` does not change."""
        ...

    async def persist(self, queues: Iterable[MessageQueue], *, surely: bool = False) -> bool:
        """`surely`: waits for the broker's answer. Failures are logged: the next time may be better. False for one."""
        ...

    def remove_offset(self, queue: MessageQueue) -> None: ...


class _Table:
    def __init__(self) -> None:
        self.offset_table: dict[MessageQueue, int] = {}

    def update_offset(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        if not increase_only or offset > self.offset_table.get(queue, -1):
            self.offset_table[queue] = offset

    def remove_offset(self, queue: MessageQueue) -> None:
        self.offset_table.pop(queue, None)


class RemoteBrokerOffsetStore(_Table):
    def __init__(self, client: MQClientInstance, group: str) -> None:
        super().__init__()
        self._client = client
        self._group = group

    async def read_from_store(self, queue: MessageQueue) -> int | None:
        address = self._client.find_broker_address_in_subscribe(self._client.broker_name_of(queue))
        offset = await self._client.api.query_consumer_offset(address, self._group, queue)
        if offset is not None:
            self.update_offset(queue, offset)
        return offset

    async def committed(self, queue: MessageQueue) -> int | None:
        address = self._client.find_broker_address_in_subscribe(self._client.broker_name_of(queue))
        return await self._client.api.query_consumer_offset(
            address, self._group, queue, set_zero_if_not_found=False
        )

    async def persist(self, queues: Iterable[MessageQueue], *, surely: bool = False) -> bool:
        persisted = True
        for queue in queues:
            offset = self.offset_table.get(queue)
            if offset is None:
                continue
            try:
                address = self._client.find_broker_address_in_subscribe(self._client.broker_name_of(queue))
                await self._client.api.update_consumer_offset(
                    address, self._group, queue, offset, oneway=not surely
                )
            except MqlakeError as error:
                logger.warning("group %s: offset %d of %s: %s", self._group, offset, queue, error)
                persisted = False
        return persisted


class OffsetSerializeWrapper(JsonBody):
    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


class LocalFileOffsetStore(_Table):
    def __init__(self, client_id: str, group: str, directory: str = LOCAL_OFFSET_STORE_DIR) -> None:
        super().__init__()
        self.path = os.path.join(os.path.expanduser(directory), client_id, group, "offsets.json")

    def _read(self) -> dict[MessageQueue, int]:
        """The file's offsets, its predecessor's when it cannot be read. FormatError when neither can."""
        failure: FormatError | None = None
        for path in (self.path, self.path + ".bak"):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                if data := file.read():
                    try:
                        return OffsetSerializeWrapper.from_json(data).offset_table
                    except FormatError as error:
                        logger.warning("%s: %s", path, error)
                        failure = failure or FormatError(error.offset, f"{path}: {error.reason}")
        if failure is not None:
            raise failure
        return {}

    async def read_from_store(self, queue: MessageQueue) -> int | None:
        offset = self._read().get(queue)
        if offset is not None:
            self.update_offset(queue, offset)
        return offset

    async def committed(self, queue: MessageQueue) -> int | None:
        return self._read().get(queue)

    async def persist(self, queues: Iterable[MessageQueue], *, surely: bool = False) -> bool:
        changed = {queue: self.offset_table[queue] for queue in queues if queue in self.offset_table}
        if not changed:
            return True
        try:
            data = OffsetSerializeWrapper(offset_table=self._read() | changed).to_json()
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path + ".tmp", "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path, self.path + ".bak")
            os.replace(self.path + ".tmp", self.path)
        except (OSError, FormatError) as error:
            logger.warning("%s: %s", self.path, error)
            return False
        return True
