"""After a crash: messages whose checkpoints are in the log are not handed out again before their time."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import ResponseCode
from tests.broker.live import Peer, running
from tests.broker.live_broker import run
from tests.broker.pop.popping import SMALL_TIMES, Popper
from tests.broker.pop.test_ack import comes, revived
from tests.broker.pop.test_pop_message import sent


def test_offsets_go_on_after_the_checkpoints_in_the_log(tmp_path):
    async def main() -> None:
        async with running(tmp_path, **SMALL_TIMES) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            await sent(peer, *(b"%d" % i for i in range(10)))
            popper = Popper(peer)
            assert len((await popper.pop(max_msg_nums=3)).messages) == 3
            path = controller.broker.consumer_offset_manager.path
            await controller.broker.consumer_offset_manager.persist_in_background()
            shutil.copy2(path, tmp_path / "old.json")
            assert len((await popper.pop(max_msg_nums=4)).messages) == 4
        os.replace(tmp_path / "old.json", path)  # what a killed broker would have left
        async with running(tmp_path, **SMALL_TIMES) as controller, RemotingClient() as client:
            popper = Popper(Peer(controller, client))
            assert (await popper.pop()).bodies == [b"7", b"8", b"9"]
        os.unlink(path)
        async with running(tmp_path, **SMALL_TIMES) as controller, RemotingClient() as client:
            popper = Popper(Peer(controller, client))
            assert (await popper.pop()).code == ResponseCode.POLLING_TIMEOUT

    run(main())


def test_what_was_acknowledged_in_order_does_not_come_again(tmp_path):
    """The entries of orderly pop were written, and the offsets not yet."""

    async def main() -> None:
        async with running(tmp_path, **SMALL_TIMES) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            await sent(peer, *(b"%d" % i for i in range(4)))
            popper = Popper(peer)
            found = (await popper.pop(queue_id=0, order=True, max_msg_nums=3)).messages
            path = controller.broker.consumer_offset_manager.path
            await controller.broker.consumer_offset_manager.persist_in_background()
            shutil.copy2(path, tmp_path / "old.json")
            for popped in found[:2]:
                assert (await popper.ack(popped)).code == ResponseCode.SUCCESS
            await popper.changed(found[2], 0)
        os.replace(tmp_path / "old.json", path)
        async with running(tmp_path, **SMALL_TIMES) as controller, RemotingClient() as client:
            popper = Popper(Peer(controller, client))
            assert (await popper.pop(queue_id=0, order=True)).bodies == [b"2", b"3"]

    run(main())


def test_a_new_group_begins_where_it_began(tmp_path):
    """#7118, #3503: the first offset of a group is on disk before its first answer."""

    async def main() -> None:
        settings = {**SMALL_TIMES, "initPopOffsetByCheckMsgInMem": "false"}
        async with running(tmp_path, **settings) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            await sent(peer, *(b"%d" % i for i in range(10)))
            answer = await Popper(peer).pop(init_mode=1)
            assert answer.bodies == [b"9"]
            written = controller.broker.consumer_offset_manager.path
            with open(written, "rb") as file:
                assert b'"T@G"' in file.read()

    run(main())


@pytest.mark.parametrize("later_s", [0, 60])
def test_what_was_revived_before_a_crash_is_not_revived_again(tmp_path, later_s):
    """`later_s`: offsets written so long after it may still be before it, as another checkpoint is not done."""

    async def main() -> None:
        async with running(tmp_path, **SMALL_TIMES) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            await sent(peer, b"a")
            popper = Popper(peer)
            await popper.pop(max_msg_nums=1, invisible_time=0)
            path = controller.broker.consumer_offset_manager.path
            await controller.broker.consumer_offset_manager.persist_in_background()
            shutil.copy2(path, tmp_path / "old.json")
            (again,) = await comes(popper)
            assert again.body == b"a"
            assert (await popper.ack(again)).code == ResponseCode.SUCCESS
            await revived(peer)
        os.replace(tmp_path / "old.json", path)
        os.utime(path, (time.time() + later_s,) * 2)
        os.unlink(path.replace("consumerOffset", "topics"))  # the retry topic was not in it yet
        async with running(tmp_path, **SMALL_TIMES) as controller, RemotingClient() as client:
            peer = Peer(controller, client)
            await revived(peer)
            assert controller.pop_service.revive_service.revived == 0
            if not later_s:  # else the file would know of the second pop
                assert (await Popper(peer).pop()).code == ResponseCode.POLLING_TIMEOUT

    run(main())
