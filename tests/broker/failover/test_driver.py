"""Real brokers in processes of their own, a real etcd, and clients: who is master, and what becomes of messages."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from mqlake.client import ConsumeFromWhere, ConsumerConfig, Message, Producer, PullConsumer
from mqlake.client.config import ClientConfig
from mqlake.errors import MqlakeError
from mqlake.store.kept_copies import kept_copies
from tests.broker.failover.etcd_cluster import EtcdCluster
from tests.broker.failover.group import TOPIC, Group
from tests.campaign.proxy import Link
from tests.waiting import trying, until_async


def test_a_slave_takes_over_when_the_master_dies_and_the_old_one_follows_it(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    """What the old master alone had is kept in dropped/, and everything that was acknowledged is in both logs."""

    async def scene() -> None:
        async with Group(tmp_path, etcd.url, replicas=2) as group:
            first = await group.master()
            await group.in_sync(2)
            sent = await group.send(50)
            old = group.node(first.master)
            await old.end(signal.SIGKILL)
            # as if it had taken them just before it died, and its replica had not got them
            group.append(old, [b"only here 1", b"only here 2"])
            sent += await group.send(50)
            second = await group.master(after=first.epoch)
            assert second.master != first.master
            old.start(group.namesrv)
            await group.in_sync(2)
            sent += await group.send(10)
            await group.stop()
            logs = [group.bodies(node) for node in group.nodes]
            assert set(logs[0]) >= set(sent)
            assert logs[0] == logs[1]
            assert b"only here 1" not in logs[0]
            [copy] = kept_copies(str(old.store))
            assert b"only here 1" in (data := Path(copy.path).read_bytes()) and b"only here 2" in data

    asyncio.run(scene())


def test_a_master_that_was_stopped_past_its_lease_acknowledges_nothing_when_it_wakes(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    """Nor is there a master while etcd has no majority; and one that ends hands over first."""

    async def scene() -> None:
        async with Group(tmp_path, etcd.url, replicas=2) as group:
            first = await group.master()
            await group.in_sync(2)
            sent = await group.send(20)
            old = group.node(first.master)
            old.send_signal(signal.SIGSTOP)
            second = await group.master(after=first.epoch)
            sent += await group.send(20)
            old.send_signal(signal.SIGCONT)
            # who still knows its address is refused, or finds that it has gone
            assert await group.send_to(old, b"to the old master") != 0
            await group.in_sync(2)
            sent += await group.send(5)

            for member in (0, 1):
                etcd.send_signal(member, signal.SIGSTOP)
            try:
                await group.until_refused()
            finally:
                for member in (0, 1):
                    etcd.send_signal(member, signal.SIGCONT)
            sent += await group.send(5)
            third = await group.in_sync(2)

            await group.node(third.master).end(signal.SIGTERM)
            # it had not to wait for a lease: nothing is written into the record between the two masters
            fourth = await group.master(after=third.epoch)
            assert fourth.master != third.master >= 0
            assert fourth.epoch == third.epoch + 1 > second.epoch
            sent += await group.send(5)
            await group.stop()
            logs = [group.bodies(node) for node in group.nodes]
            whole = max(logs, key=len)
            assert set(whole) >= set(sent)
            assert b"to the old master" not in whole

    asyncio.run(scene())


def test_a_full_disk_moves_the_master_to_a_replica_with_room_and_to_no_other(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    """Two replicas with full disks elected each other in turn, 32 epochs in a minute."""

    async def scene() -> None:
        async with Group(tmp_path, etcd.url, replicas=2, own_disks=True) as group:
            if group.node(0).disk is None:
                pytest.skip("this process may not mount a file system")
            first = await group.master()
            await group.in_sync(2)
            sent = await group.send(10)
            group.node(first.master).fill_disk()
            second = await group.master(after=first.epoch)
            assert second.master != first.master
            sent += await group.send(10)
            await group.in_sync(2)
            # none is left that could take messages: the master stays, and a killed one comes back
            group.node(second.master).fill_disk()
            await group.until_refused()
            await group.node(second.master).end(signal.SIGKILL)
            third = await group.master(after=second.epoch)
            group.node(second.master).start(group.namesrv)
            await group.in_sync(2)
            assert await group.send_to(group.node(third.master), b"to a full disk") != 0
            group.node(second.master).empty_disk()
            fourth = await group.master(after=third.epoch)
            assert (fourth.epoch, fourth.master) == (third.epoch + 1, second.master)
            sent += await group.send(10)
            group.node(first.master).empty_disk()
            await group.in_sync(2)
            await group.stop()
            logs = [group.bodies(node) for node in group.nodes]
            assert logs[0] == logs[1]
            assert set(sent) <= set(logs[0])

    asyncio.run(scene())


def test_offsets_and_delayed_messages_go_on_at_the_new_master(tmp_path: Path, etcd: EtcdCluster) -> None:
    """A consumer gets what its group has not committed, and what was to be delivered later, once."""

    async def scene() -> None:
        async with Group(tmp_path, etcd.url, replicas=2) as group:
            first = await group.master()
            await group.in_sync(2)
            sent = await group.send(10)
            where = ClientConfig(namesrv_addr=group.namesrv, poll_name_server_interval_s=0.2)
            assert (await consume(where, 10))[:10] == sent
            replica = group.node(1 - first.master)
            await until_async(lambda: group.committed("g", replica), "the replica has the group's offset")
            async with Producer("p", where) as producer:
                later = Message(TOPIC, b"later")
                later.delay_time_level = 2
                assert (await producer.send(later)).send_status.name == "SEND_OK"
            await group.node(first.master).end(signal.SIGKILL)
            more = await group.send(5)
            assert sorted(await consume(where, 6)) == sorted([*more, b"later"])

    asyncio.run(scene())


async def consume(where: ClientConfig, count: int) -> list[bytes]:
    """The next messages of a group, which commits them."""
    config = ConsumerConfig(auto_commit=False, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    found: list[bytes] = []
    async with PullConsumer("g", where, config) as consumer:
        consumer.subscribe(TOPIC)
        for _ in trying("messages come"):
            try:
                found += [message.body for message in await consumer.poll(1.0)]
            except MqlakeError:
                continue
            if len(found) >= count:
                break
        await consumer.commit()
    return found


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.skipif("MQLAKE_CAMPAIGN" not in os.environ, reason="MQLAKE_CAMPAIGN=<minutes> asks for it")
def test_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three replicas under kills, pauses, moves, cut and hung links to etcd and between them, full disks and paused
    members of etcd, while messages are sent: all logs are alike in the end, with every acknowledged message once.
    """
    seed = int(os.environ.get("MQLAKE_CAMPAIGN_SEED", "1"))
    faults, sent, epochs = asyncio.run(campaign(tmp_path, 60 * float(os.environ["MQLAKE_CAMPAIGN"]), seed))
    with capsys.disabled():
        print(
            f"\n{sum(faults.values())} faults ({faults}), {sent} messages acknowledged, {epochs} epochs, nothing lost"
        )


async def campaign(directory: Path, seconds: float, seed: int) -> tuple[dict[str, int], int, int]:
    dice, faults = random.Random(seed), collections.Counter[str]()
    async with contextlib.AsyncExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(directory / "etcd"))
        links = [[Link(("127.0.0.1", port)) for port in etcd.ports] for _ in range(3)]
        for link in (each for of_replica in links for each in of_replica):
            await link.start()
            stack.push_async_callback(link.close)
        through = ["etcd://" + ",".join(f"127.0.0.1:{each.port}" for each in row) for row in links]
        (directory / "group").mkdir()
        group = Group(
            directory / "group", etcd.url, replicas=3, through=through, own_disks=True, ha_links=True
        )
        await stack.enter_async_context(group)
        await group.in_sync(3)
        sent: list[bytes] = []
        over = asyncio.Event()

        async def send_on() -> None:
            while not over.is_set():
                sent.extend(await group.send(5))

        sending = asyncio.create_task(send_on())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            record = await group.master()
            number = dice.choice([record.master, record.master, *range(3)])
            node, pause_s = group.node(number), dice.uniform(0.2, 6.0)
            kinds = ["kill", "kill", "pause", "end", "cut off", "hung", "etcd", "ha", "ha", "full"]
            match fault := dice.choice(kinds):
                case "kill":
                    await node.end(signal.SIGKILL)
                case "pause":
                    node.send_signal(signal.SIGSTOP)
                case "end":
                    await node.end(signal.SIGTERM)
                case "cut off":
                    for link in links[number]:
                        link.set("cut")
                case "hung":
                    for link in links[number]:
                        link.set("hung")
                case "etcd":
                    for member in dice.sample(range(3), dice.choice([1, 2])):
                        etcd.send_signal(member, signal.SIGSTOP)
                case "ha":  # one pair, or all of those that follow this one
                    followers = list(group.ha_links[number].links.values())
                    for link in dice.choice([followers, dice.sample(followers, 1)]):
                        link.set(dice.choice(["cut", "hung"]))
                case "full" if node.disk is not None:
                    node.fill_disk()
            faults[fault] += 1
            await asyncio.sleep(pause_s)
            for link in (each for of_replica in links for each in of_replica):
                link.set("up")
            for member in range(3):
                etcd.send_signal(member, signal.SIGCONT)
            await group.heal()
            if dice.random() < 0.5:
                await group.in_sync(3)
        over.set()
        await sending
        last = await group.in_sync(3)
        sent += await group.send(5)
        await group.stop()
        logs = sorted((group.bodies(node) for node in group.nodes), key=len)
        assert all(log == logs[-1][: len(log)] for log in logs)
        assert set(sent) - set(logs[-1]) == set()
        return dict(faults), len(sent), last.epoch
