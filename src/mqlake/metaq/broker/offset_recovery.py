"""recoverOffset=true: before a samsa registers itself, it corrects the groups' offsets for its own log.

    <message id>-<offset>   ─▶   the same id, or the last one that is not greater, and the offset after that message

A log that replaced another may have the same messages elsewhere. A group whose messages are not in it begins at the
start (`-1-0`). Only ids above 0 are searched, as in the original, whose brokers give negative ones, too.
"""

from __future__ import annotations

import logging
from collections import defaultdict

import numpy as np

from mqlake.errors import FormatError
from mqlake.metaq.formats.record import HEADER_SIZE
from mqlake.metaq.message import Partition
from mqlake.metaq.store.inspect import SegmentFile, SegmentReader
from mqlake.metaq.store.manager import MessageStoreManager
from mqlake.metaq.store.message_store import MessageStore
from mqlake.metaq.zookeeper.paths import ConsumedOffset, MetaZookeeper
from mqlake.metaq.zookeeper.session import ZkSession

logger = logging.getLogger(__name__)

FROM_THE_START = ConsumedOffset(0, -1)


def recover_offsets(
    session: ZkSession, paths: MetaZookeeper, manager: MessageStoreManager, broker_id: int
) -> int:
    """Returns the number of changed offsets. RemotingError, OSError."""
    changed = 0
    for (topic, number), nodes in _known(session, paths, broker_id).items():
        store = manager.get(topic, number)
        wanted = {known.message_id for known in nodes.values()}
        ends = _ends_of(store, wanted) if store is not None else {}
        for path, known in nodes.items():
            found = ends.get(known.message_id, FROM_THE_START)
            if found != known:
                logger.warning("%s: %s becomes %s", path, known.encode().decode(), found.encode().decode())
                session.put_persistent(path, found.encode())
                changed += 1
    return changed


def _known(
    session: ZkSession, paths: MetaZookeeper, broker_id: int
) -> dict[tuple[str, int], dict[str, ConsumedOffset]]:
    """(topic, partition) → node → offset, for this broker's partitions and ids that can be searched."""
    found: dict[tuple[str, int], dict[str, ConsumedOffset]] = defaultdict(dict)
    for group in session.children(paths.consumers):
        for topic in session.children(f"{paths.consumers}/{group}/offsets"):
            for name in session.children(f"{paths.consumers}/{group}/offsets/{topic}"):
                try:
                    partition = Partition.parse(name)
                    path = paths.consumer_offset(group, topic, partition)
                    known = ConsumedOffset.decode(session.read(path) or b"")
                except FormatError as error:
                    logger.warning("an offset of group %s is not changed: %s", group, error.reason)
                    continue
                if partition.broker_id == broker_id and known.message_id > 0:
                    found[topic, partition.partition][path] = known
    return found


def _ends_of(store: MessageStore, wanted: set[int]) -> dict[int, ConsumedOffset]:
    """Id → where the last message with it or a lower one ends, if there is one. OSError."""
    found: dict[int, ConsumedOffset] = {}
    for start, message_set in reversed(store.segments):
        here: dict[int, ConsumedOffset] = {}
        with SegmentReader(SegmentFile(start, message_set.high_water_mark, message_set.path)) as reader:
            for scan in reader.headers():
                for identity in wanted - found.keys():
                    rows = np.flatnonzero(scan.message_id <= identity)
                    if len(rows):
                        row = rows[-1]
                        end = start + int(scan.position[row]) + HEADER_SIZE + int(scan.length[row])
                        here[identity] = ConsumedOffset(end, int(scan.message_id[row]))
        found |= here
        if len(found) == len(wanted):
            break
    return found
