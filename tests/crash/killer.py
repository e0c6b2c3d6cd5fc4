"""Ends this process by SIGKILL at a named point of its work, without a line for it in the product.

A point is a call of the operating system (`os.fdatasync` of a commit log file, say) or a step between two of them
that no call marks: a slice written to the map of a commit log file, keys put into the index.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.index import index_file

# what → (function of os, part of the path it must touch)
CALLS = {
    "flush": ("fdatasync", "/commitlog/"),
    "create log file": ("posix_fallocate", "/commitlog/"),
    "name log file": ("fsync", "/commitlog"),
    "open log file": ("open", "/commitlog/0"),
    "write checkpoint": ("pwrite", "/checkpoint"),
    "flush checkpoint": ("fdatasync", "/checkpoint"),
    "write queue": ("pwrite", "/consumequeue/"),
    "create queue file": ("ftruncate", "/consumequeue/"),
    "make queue directory": ("mkdir", "/consumequeue"),
    "flush queue": ("fdatasync", "/consumequeue/"),
    "create index file": ("posix_fallocate", "/index/"),
    "flush index": ("fdatasync", "/index/"),
    "rename": ("replace", "/abort"),
    "delete": ("unlink", "/"),
    "write log file": ("pwrite", "/commitlog/"),
    "create timer log": ("ftruncate", "/timerlog/"),
    "write timer log": ("pwrite", "/timerlog/"),
    "flush timer log": ("fdatasync", "/timerlog/"),
    "write wheel": ("pwrite", "/timerwheel"),
    "flush wheel": ("fsync", "/timerwheel"),
    "write timercheck": ("pwrite", "/timercheck"),
    "flush timercheck": ("fdatasync", "/timercheck"),
    "write offsets": ("replace", "/consumerOffset.json"),
    "write order": ("replace", "/consumerOrderInfo.json"),
    "write order journal": ("write", "/consumerOrderInfo.journal"),
    "cut order journal": ("replace", "/consumerOrderInfo.journal"),
}
# what → the method that does it
METHODS = {
    "hand out": "mqlake.broker.pop.pop_message:PopMessageProcessor._hand_out",
    "hand out in order": "mqlake.broker.pop.order:ConsumerOrderInfoManager.update",
    "put checkpoint": "mqlake.broker.pop.checkpoint:ReviveLog.put_checkpoint",
    "put acknowledgement": "mqlake.broker.pop.checkpoint:ReviveLog.put_acknowledgement",
    "acknowledge in order": "mqlake.broker.pop.order:ConsumerOrderInfoManager.commit_and_next",
    "read revive queue": "mqlake.broker.pop.revive:ReviveQueue.read",
    "prepare retry": "mqlake.broker.pop.revive:PopReviveService._prepare",
    "retry stored": "mqlake.broker.pop.revive:PopReviveService._is_stored",
    "finish checkpoint": "mqlake.broker.pop.revive:ReviveQueue.finish",
    "commit revive offset": "mqlake.broker.pop.revive:PopReviveService._commit",
    "enqueue timer": "mqlake.store.timer.timer_message_store:TimerMessageStore._put_into_wheel",
    "deliver timer": "mqlake.store.timer.timer_message_store:TimerMessageStore._store_one",
    "dequeue slot": "mqlake.store.timer.timer_message_store:TimerMessageStore._dequeue_slot",
    "flush timers": "mqlake.store.timer.timer_message_store:TimerMessageStore.flush",
    "recover offsets": "mqlake.broker.pop.recover:_checkpoints",
    "recall": "mqlake.broker.requests.recall_message:RecallMessageProcessor.recall_message",
}


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Countdown:
    """Dies at the `n`-th step."""

    def __init__(self, n: int) -> None:
        self.n = n

    def step(self) -> bool:
        self.n -= 1
        return self.n == 0


def arm(point: str, moment: str, n: int) -> None:
    """`moment`: before or after the call, half for a write of which half arrives. AssertionError: no such point."""
    countdown = Countdown(n)
    if point in CALLS:
        name, part = CALLS[point]
        setattr(os, name, _call(getattr(os, name), part, moment, countdown))
    elif point in METHODS:
        module, _, path = METHODS[point].partition(":")
        owner = importlib.import_module(module)
        *outer, name = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        setattr(owner, name, _wrapped(getattr(owner, name), moment, countdown))
    elif point == "append":
        _arm_map(countdown)
    elif point == "index":
        index_file.index_put_many = _wrapped(index_file.index_put_many, moment, countdown)
    else:
        assert point == "never", point


def _wrapped(real: Callable[..., Any], moment: str, countdown: Countdown) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        now = countdown.step()
        if now and moment == "before":
            die()
        result = real(*args, **options)
        if now:
            die()
        return result

    return call


def _call(real: Callable[..., Any], part: str, moment: str, countdown: Countdown) -> Callable[..., Any]:
    def call(target: Any, *args: Any, **options: Any) -> Any:
        path = target if isinstance(target, str) else os.readlink(f"/proc/self/fd/{target}")
        if part not in path or not countdown.step():
            return real(target, *args, **options)
        if moment == "half":
            data, position = args
            real(target, bytes(data)[: len(data) // 2], position)
        elif moment == "after":
            real(target, *args, **options)
        die()

    return call


class _Map:
    """The map of a commit log file, or its write buffer, which counts the slices written to it."""

    def __init__(self, view: memoryview, countdown: Countdown) -> None:
        self._view = view
        self._countdown = countdown

    def __setitem__(self, key: slice, data: bytes) -> None:
        if self._countdown.step():
            # a process may die in the middle of a copy too
            done = random.randrange(len(data) + 1) if len(data) > 4 else random.choice((0, 4))
            self._view[key.start : key.start + done] = data[:done]
            die()
        self._view[key] = data

    def __getitem__(self, key: slice) -> memoryview:
        return self._view[key]

    def __len__(self) -> int:
        return len(self._view)


def _arm_map(countdown: Countdown) -> None:
    real = MappedFile.__init__

    def init(self: MappedFile, path: str, *args: Any, **options: Any) -> None:
        real(self, path, *args, **options)
        if "/commitlog/" in path:
            # a write buffer stays where records go: what is in it is not in the file before it is committed
            self._target = _Map(self.write_buffer or self.view, countdown)  # type: ignore[assignment]

    MappedFile.__init__ = init  # type: ignore[method-assign]
