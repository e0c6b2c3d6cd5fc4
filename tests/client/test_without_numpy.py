"""Programs that only send and receive need none of the packages that read logs."""

from __future__ import annotations

import subprocess
import sys

from tests.interop.brokers import MqlakeBroker

PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("numba", "llvmlite", "numpy"), None))
import mqlake.client
from mqlake.client import Message
from mqlake.client.blocking import Producer, PullConsumer
with Producer("light", sys.argv[1]) as producer:
    sent = producer.send(Message("Light", b"without numpy", keys="k"))
with PullConsumer("light", sys.argv[1]) as consumer:
    queue = sent.message_queue
    consumer.assign([queue])
    consumer.seek(queue, sent.queue_offset)
    print(*(message.body.decode() for message in consumer.poll()))
"""


def test_the_client_needs_neither_numba_nor_numpy(mqlake_broker: MqlakeBroker) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mqlake_broker.namesrv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "without numpy\n"), done.stderr
