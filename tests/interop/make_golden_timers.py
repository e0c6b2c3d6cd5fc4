"""Writes tests/golden/java-5.3.3/timers.json anew: what RocketMQ's broker makes of some timer messages on disk.

    .venv/bin/python -m tests.interop.make_golden_timers

Only ever run by hand: a golden is evidence of what Java wrote. The wheel is nearly all zeros, so of it only the slots
in use are kept, with their places.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from mqlake.formats.timer import SLOT_SIZE, TIMER_CHECKPOINT_SIZE
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.loop import run
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.timer.timer_recovery import timer_queue
from tests.golden import DIRECTORY
from tests.interop.brokers import JavaBroker
from tests.interop.test_timers_alike import TIMERS, now_ms, recall, send, units
from tests.waiting import until

TARGET = DIRECTORY / "timers.json"
WINDOW = 2000
DELAYS_MS = (600_000, 600_000, 3_000_000, 1_999_000, 2_000_000, 2_700_000, 5_000_000)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        JavaBroker(
            Path(directory), {**TIMERS, "brokerName": "broker-a", "timerRollWindowSlot": WINDOW}
        ) as java,
    ):
        root = Path(directory) / "store"

        async def play() -> None:
            async with RemotingClient() as client:
                begun = now_ms() // 1000 * 1000
                for number, delay in enumerate(DELAYS_MS):
                    handle = await send(client, java.address, f"K{number}", begun + delay + number * 333)
                    if number == 1:
                        await recall(client, java.address, handle)

        run(play())
        until(lambda: (root / "timerlog").exists() and len(units(root)) == len(DELAYS_MS) + 1)
        time.sleep(3)  # its flush interval is one second
        java.stop()
        golden = {
            "timerlog": {
                path.name: path.read_bytes().hex() for path in sorted((root / "timerlog").iterdir())
            },
            "timerwheel": _slots((root / "timerwheel").read_bytes()),
            "timercheck": (root / "config" / "timercheck").read_bytes()[:TIMER_CHECKPOINT_SIZE].hex(),
            "timermetrics": (root / "config" / "timermetrics").read_text(),
            "queue": _queue(root),
            "rollWindow": WINDOW,
        }
        TARGET.write_text(json.dumps(golden, indent=1) + "\n")


def _slots(wheel: bytes) -> dict[str, str]:
    """Place of a slot in the file → its bytes."""
    found, empty = {}, bytes(SLOT_SIZE)
    for at in range(0, len(wheel), SLOT_SIZE):
        if wheel[at : at + SLOT_SIZE] != empty:
            found[str(at)] = wheel[at : at + SLOT_SIZE].hex()
    return found


def _queue(root: Path) -> list[dict[str, object]]:
    """The messages of rmq_sys_wheel_timer: where they are, and what they say."""
    with ReadOnlyStore(root) as store:
        queue = timer_queue(store)
        assert queue is not None
        messages = store.get_message("G", "rmq_sys_wheel_timer", 0, 0, 32).messages()
        return [
            {
                "offset": message.physical_offset,
                "size": message.store_size,
                "properties": message.properties,
                "stored": message.store_timestamp,
            }
            for message in messages
        ]


if __name__ == "__main__":
    main()
