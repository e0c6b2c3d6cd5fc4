"""Programs that only send and receive need no package that reads logs, nothing that is there on Unix alone, and no loop
that watches descriptors: Windows' has none.

What asyncio itself takes from Unix stays; what mqlake's own modules ask for is hidden from them.
"""

from __future__ import annotations

import subprocess
import sys

from tests.interop.brokers import MqlakeBroker

PROGRAM = """
import asyncio, builtins, os, select, sys, threading

HIDDEN = {"backports", "click", "compression", "cryptography", "fcntl", "grpc", "isal", "lz4", "numba", "numpy",
    "prometheus_client", "pwd", "resource", "rich", "termios", "uvloop"}
usual = builtins.__import__
def limited(name, globals=None, *rest, **named):
    if name.partition(".")[0] in HIDDEN and (globals or {}).get("__name__", "").startswith("mqlake"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return usual(name, globals, *rest, **named)
builtins.__import__ = limited

class Loop(asyncio.SelectorEventLoop):
    def no(self, *_): raise NotImplementedError
    add_reader = remove_reader = add_writer = remove_writer = add_signal_handler = no
class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Loop
asyncio.set_event_loop_policy(Policy())
for name in ("O_DIRECTORY", "fchmod", "getuid", "posix_fallocate", "uname"):
    delattr(os, name)

import mqlake.client
from mqlake.client import ConsumeFromWhere, ConsumerConfig, Message, MessageModel
from mqlake.client.blocking import Producer, PullConsumer, PushConsumer
with Producer("light", sys.argv[1]) as producer:
    sent = producer.send(Message("Light", b"everywhere", keys="k"))
with PullConsumer("light", sys.argv[1]) as consumer:
    queue = sent.message_queue
    consumer.assign([queue])
    consumer.seek(queue, sent.queue_offset)
    print(*(message.body.decode() for message in consumer.poll()))
got = threading.Event()
config = ConsumerConfig(
    message_model=MessageModel.BROADCASTING, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
consumer = PushConsumer("light-everyone", sys.argv[1], lambda messages, context: got.set(), config)
consumer.subscribe("Light")
with consumer:
    print(got.wait(60))
"""


def test_the_client_needs_neither_unix_nor_numpy(mqlake_broker: MqlakeBroker, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, mqlake_broker.namesrv],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={"HOME": str(tmp_path), "PATH": ""},
    )
    assert (done.returncode, done.stdout) == (0, "everywhere\nTrue\n"), done.stderr
    assert list(tmp_path.glob(".rocketmq_offsets/*/light-everyone/offsets.json"))
