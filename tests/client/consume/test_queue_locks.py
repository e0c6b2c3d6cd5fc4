"""Locks of queues, at `mqlake serve`."""

from __future__ import annotations

from mqlake.client import Admin, ClientConfig, MessageQueue, MQClientInstance
from mqlake.client.consume.queue_locks import QueueLocks
from mqlake.remoting.loop import run
from tests.interop.brokers import MqlakeBroker


def test_a_lock_is_one_clients(mqlake_broker: MqlakeBroker) -> None:
    async def main() -> None:
        one, other = (
            MQClientInstance(ClientConfig(namesrv_addr=mqlake_broker.namesrv, instance_name=name))
            for name in ("one", "other")
        )
        async with one, other, Admin(mqlake_broker.namesrv) as admin:
            await admin.create_topic("Locked", queues=3)
            for client in (one, other):
                await client.update_topic_route("Locked")
            mine, theirs = QueueLocks(one, "GID_locks"), QueueLocks(other, "GID_locks")
            (broker,) = (await one.topic_route("Locked")).broker_datas
            queues = {
                MessageQueue(topic="Locked", broker_name=broker.broker_name, queue_id=n) for n in range(3)
            }
            nowhere = MessageQueue(topic="Locked", broker_name="nobody", queue_id=0)

            assert await mine.lock({*queues, nowhere}) == queues
            assert await theirs.lock(queues) == set()
            assert await renewed(mine, {*queues, nowhere}) == dict.fromkeys(queues, True)
            assert await renewed(theirs, queues) == dict.fromkeys(queues, False)
            given = min(queues)
            await mine.unlock([given, nowhere])
            assert await theirs.lock(queues) == {given}
            assert await renewed(mine, queues) == {queue: queue != given for queue in queues}

    async def renewed(locks: QueueLocks, queues: set[MessageQueue]) -> dict[MessageQueue, bool]:
        return {queue: is_locked async for queue, is_locked in locks.renew(queues)}

    run(main())
