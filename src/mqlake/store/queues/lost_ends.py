"""The ends of consume queues before a loss was accepted: their next messages get queue offsets from there on.

    config/lostQueueEnds.json    {"queues": {"Orders": {"0": 250}}}

    unit  [ 98 ][ 99 ]                                the log lost 100 to 249
          [ 98 ][ 99 ][ 250 ][ 250 ] ... [ 250 ]      the next message is 250; those before it lead to it

Consumer groups know offsets up to those ends: an offset that is given a second time is a message which they skip. The
file is among the configuration, so it outlives the queues, which may be deleted and made again, and is in backups.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from mqlake.base.config_file import ConfigFile
from mqlake.errors import StoreCorruptError
from mqlake.store.config import MessageStoreConfig

Place = tuple[str, int]


class QueueEnd(NamedTuple):
    """A queue ended at this queue offset."""

    topic: str
    queue_id: int
    queue_offset: int


class LostEnds(dict[Place, int]):
    """(topic, queue id) → the queue offset below which none is given again."""

    def __init__(self, config: MessageStoreConfig) -> None:
        super().__init__()
        self._file = ConfigFile(self.path_of(config))

    @staticmethod
    def path_of(config: MessageStoreConfig) -> str:
        return os.path.join(config.config_dir, "lostQueueEnds.json")

    def load(self) -> None:
        """StoreCorruptError if the file cannot be read: without it offsets might be given again. OSError."""
        found = self._file.load()
        try:
            for topic, queues in ({} if found is None else found["queues"]).items():
                self.update({(topic, int(number)): int(end) for number, end in queues.items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreCorruptError(
                self._file.path,
                0,
                f"it does not say where queues ended ({error!r})",
                hint="restore or delete it",
            ) from error

    def add(self, ends: Iterable[QueueEnd]) -> None:
        """Keeps these ends too, durably. OSError."""
        for topic, queue_id, end in ends:
            self[topic, queue_id] = max(end, self.get((topic, queue_id), 0))
        self._persist()

    def forget(self, topic: str) -> None:
        """The topic was deleted: one of its name begins at 0. OSError."""
        gone = [place for place in self if place[0] == topic]
        for place in gone:
            del self[place]
        if gone:
            self._persist()

    def _persist(self) -> None:
        table: dict[str, dict[str, int]] = {}
        for (topic, queue_id), end in self.items():
            table.setdefault(topic, {})[str(queue_id)] = end
        self._file.persist({"queues": table})
