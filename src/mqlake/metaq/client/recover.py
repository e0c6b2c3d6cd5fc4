"""RejectConsumptionHandlers: messages that a listener has refused too often.

drop_policy       logs and drops them
RecoverManager    keeps them in files and delivers them again every few minutes

    <directory>/<topic>@<group>    records, one after the other, as in a segment
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from mqlake.base.background import BackgroundWork
from mqlake.base.durable import make_dirs, write_durably
from mqlake.errors import FormatError
from mqlake.metaq.formats.record import MessageIterator, encode_payload, encode_record, message_flag
from mqlake.metaq.message import Message

logger = logging.getLogger(__name__)

RETRY_S = 300.0
FIRST_RETRY_S = 5.0

RejectConsumptionHandler = Callable[[str, Message], None]
"""Called with the group and the message."""
Listener = Callable[[Message], Awaitable[None] | None]


def drop_policy(group: str, message: Message) -> None:
    logger.error("group %s cannot take message %d of %s; dropped", group, message.id, message.topic)


def _record(message: Message) -> bytes:
    payload = encode_payload(message.data, message.attribute)
    return encode_record(payload, message.id, message_flag(message))


class RecoverManager:
    """A RejectConsumptionHandler. From `start` to `stop` it delivers the messages of a group's topics again."""

    def __init__(
        self, directory: str = "", *, retry_s: float = RETRY_S, first_retry_s: float = FIRST_RETRY_S
    ) -> None:
        """`directory` empty: ~/.meta_recover."""
        self._directory = directory or os.path.expanduser("~/.meta_recover")
        self._retry_s = retry_s
        self._first_retry_s = first_retry_s
        self._task: asyncio.Task[None] | None = None

    def __call__(self, group: str, message: Message) -> None:
        """Keeps a message, durably. OSError."""
        make_dirs(self._directory)
        fd = os.open(self._path(message.topic, group), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(fd).st_size
            try:
                data = memoryview(_record(message))
                while data:
                    data = data[os.write(fd, data) :]
                os.fdatasync(fd)
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
        logger.warning("group %s: message %d of %s is kept for later", group, message.id, message.topic)

    def _path(self, topic: str, group: str) -> str:
        return os.path.join(self._directory, f"{topic}@{group}")

    def kept(self, topic: str, group: str) -> list[Message]:
        """OSError."""
        return self._read(topic, group)[0]

    def _read(self, topic: str, group: str) -> tuple[list[Message], int]:
        """The messages, and the number of bytes they take in the file."""
        path = self._path(topic, group)
        try:
            with open(path, "rb") as file:
                messages = MessageIterator(topic, file.read())
        except FileNotFoundError:
            return [], 0
        found: list[Message] = []
        try:
            found.extend(messages)
        except FormatError as error:
            logger.error("%s: %s; the messages after it cannot be read and stay in the file", path, error)
        return found, messages.offset

    async def retry(self, group: str, listeners: dict[str, Listener]) -> None:
        """Delivers the kept messages again; those refused again stay. OSError."""
        for topic, listener in listeners.items():
            kept, size = self._read(topic, group)
            again = [message for message in kept if not await self._is_taken(group, listener, message)]
            if len(again) == len(kept):
                continue
            path = self._path(topic, group)
            with open(path, "rb") as file:
                file.seek(size)
                rest = file.read()  # messages added meanwhile, and damage
            write_durably(path, b"".join(map(_record, again)) + rest)

    async def _is_taken(self, group: str, listener: Listener, message: Message) -> bool:
        try:
            answer = listener(message)
            if answer is not None:
                await answer
        except Exception as error:
            logger.warning(
                "group %s: message %d of %s is refused again: %s",
                group,
                message.id,
                message.topic,
                error,
                exc_info=error,
            )
            return False
        refused, message.rollback_only = message.rollback_only, False
        return not refused

    def start(self, group: str, listeners: dict[str, Listener]) -> None:
        async def run() -> None:
            work = BackgroundWork(f"group {group}: offering of refused messages", logger)
            await asyncio.sleep(self._first_retry_s)
            while True:
                async with work.round():
                    await self.retry(group, listeners)
                await asyncio.sleep(self._retry_s)

        self._task = asyncio.ensure_future(run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
