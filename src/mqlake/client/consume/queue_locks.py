"""QueueLocks: an orderly consumer of a cluster consumes a queue only while the broker's lock on it is its own."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable

from mqlake.client.mq_client import MQClientInstance
from mqlake.errors import MqlakeError
from mqlake.remoting.bodies.topic import MessageQueue

logger = logging.getLogger(__name__)


class QueueLocks:
    def __init__(self, client: MQClientInstance, group: str) -> None:
        self._client = client
        self._group = group

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Returns the queues that are this consumer's now. A broker that does not answer gives none."""
        locked: set[MessageQueue] = set()
        for broker_name, own in self._by_broker(queues).items():
            try:
                locked |= await self._lock_batch_mq(broker_name, own)
            except MqlakeError as error:
                logger.info("group %s: locks: %s", self._group, error)
        return locked

    async def renew(self, queues: Iterable[MessageQueue]) -> AsyncIterator[tuple[MessageQueue, bool]]:
        """True if each is still this consumer's, as its broker answers; not of those whose broker does not."""
        for broker_name, own in self._by_broker(queues).items():
            try:
                locked = await self._lock_batch_mq(broker_name, own)
            except MqlakeError as error:
                logger.warning("group %s: locks are not renewed: %s", self._group, error)
                continue
            for queue in own:
                yield queue, queue in locked

    async def _lock_batch_mq(self, broker_name: str, queues: set[MessageQueue]) -> set[MessageQueue]:
        client = self._client
        address = client.find_broker_address_in_publish(broker_name)
        return await client.api.lock_batch_mq(address, self._group, client.client_id, queues)

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        client = self._client
        for broker_name, own in self._by_broker(queues).items():
            try:
                address = client.find_broker_address_in_publish(broker_name)
                await client.api.unlock_batch_mq(address, self._group, client.client_id, own)
            except MqlakeError as error:
                logger.info("group %s: locks: %s", self._group, error)

    def _by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, set[MessageQueue]]:
        grouped: dict[str, set[MessageQueue]] = defaultdict(set)
        for queue in queues:
            grouped[self._client.broker_name_of(queue)].add(queue)
        return grouped
