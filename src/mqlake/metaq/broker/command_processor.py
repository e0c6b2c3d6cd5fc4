"""BrokerCommandProcessor: put, get, offset, stats, version, quit; answers with the original's codes and texts.

put      200 "<id> <partition> <offset>" once the message is as safe as its topic asks for
get      value ...   301 continue at this offset   404 no message (yet)   403 closed   400 invalid size
offset   200 the nearest offset to continue at
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mqlake.errors import ConfigError, MqlakeError, OffsetOutOfRangeError
from mqlake.metaq.broker.consumer_filter import ConsumerFilterManager
from mqlake.metaq.broker.stats import StatsManager
from mqlake.metaq.config.meta_config import MetaConfig
from mqlake.metaq.formats.command import (
    ANY_PARTITION,
    NO_CHECKSUM,
    DataCommand,
    GetCommand,
    HttpStatus,
    OffsetCommand,
    PutCommand,
    StatsCommand,
    SyncCommand,
    VersionCommand,
)
from mqlake.metaq.formats.ids import IdWorker
from mqlake.metaq.formats.record import HEADER, HEADER_SIZE, checksum, encode_header
from mqlake.metaq.store.manager import MessageStoreManager
from mqlake.metaq.store.message_store import Location, MessageStore
from mqlake.metaq.wire.connection import BODY_MAX, Connection

logger = logging.getLogger(__name__)
transfer_log = logging.getLogger("mqlake.metaq.TransferLog")
"""At debug, a line for each answer to a get: the client, the bytes, and how many went without a copy (sendfile)."""

VERSION = "1.4.6.2"
CONSUME_FROM_MAX = (1 << 63) - 1
"""The offset with which a consumer asks for the end."""


class BrokerCommandProcessor:
    def __init__(
        self,
        config: MetaConfig,
        manager: MessageStoreManager,
        ids: IdWorker,
        stats: StatsManager,
        *,
        broker_string: Callable[[], str] = lambda: "",
        topic_created: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """`broker_string`: the broker's meta:// address; `topic_created` is called at a topic's first message."""
        self.config = config
        self.manager = manager
        self.ids = ids
        self.stats = stats
        self.filters = ConsumerFilterManager(config)
        self._broker_string = broker_string
        self._topic_created = topic_created
        self._seen_topics: set[str] = set()

    def error_message(self, topic: str, partition: int) -> str:
        return f"Put message to [broker '{self._broker_string()}'] [partition '{topic}-{partition}'] failed."

    def _partition_string(self, partition: int) -> str:
        return f"{self.config.system.broker_id}-{partition}"

    # --- put

    def process_put(self, connection: Connection, command: PutCommand) -> None:
        topic, partition, opaque = command.topic, command.partition, command.opaque
        self.stats.stats_put(topic, len(command.data))
        if self.refuses_closed(connection, command):
            return
        try:
            if partition == ANY_PARTITION:
                partition = self.manager.choose_random_partition(topic)
            store = self.manager.get_or_create(topic, partition)
            if topic not in self._seen_topics:
                self._seen_topics.add(topic)
                self._topic_created(topic)
            self.append(connection, command, store, self.ids.next_id(), right_checksum(command))
        except (MqlakeError, OSError) as error:
            self.put_failed(connection, topic, partition, opaque, error)

    def refuses_closed(self, connection: Connection, command: PutCommand) -> bool:
        """Answers a put to a partition that is closed."""
        topic, partition = command.topic, command.partition
        closed = self.config.is_closed(topic, partition)
        if closed:
            detail = f"partition[{self._partition_string(partition)}] has been closed"
            text = f"{self.error_message(topic, partition)}Detail:{detail}"
            connection.respond(HttpStatus.FORBIDDEN, text, command.opaque)
        return closed

    def append(
        self,
        connection: Connection,
        command: PutCommand | SyncCommand,
        store: MessageStore,
        message_id: int,
        crc: int,
    ) -> None:
        """Stores a message and answers when it is stored. Raises MqlakeError, OSError if it cannot be appended."""

        def stored(location: Location | None, error: Exception | None) -> None:
            if location is not None:
                text = f"{message_id} {store.partition} {location.offset}"
                connection.respond(HttpStatus.SUCCESS, text, command.opaque)
            else:
                self.put_failed(connection, store.topic, store.partition, command.opaque, error)

        store.append(encode_header(command.data, message_id, command.flag, crc) + command.data, stored)

    def put_failed(
        self, connection: Connection, topic: str, partition: int, opaque: int, error: Exception | None
    ) -> None:
        self.stats.stats_put_failed(topic)
        if isinstance(error, OSError):
            logger.error("put to %s-%d: %s", topic, partition, error)
        connection.respond(
            HttpStatus.INTERNAL_SERVER_ERROR, f"{self.error_message(topic, partition)}Detail:{error}", opaque
        )

    # --- get

    def process_get(self, connection: Connection, command: GetCommand) -> None:
        topic, offset, opaque = command.topic, command.offset, command.opaque
        self.stats.stats_get(topic)
        if self.config.is_closed(topic, command.partition):
            text = f"Partition[{self._partition_string(command.partition)}] has been closed"
            connection.respond(HttpStatus.FORBIDDEN, text, opaque)
            return
        store = self.manager.get(topic, command.partition)
        if store is None:
            self.stats.stats_get_miss(topic)
            connection.respond(HttpStatus.NOT_FOUND, _no_partition(topic, command.partition), opaque)
            return
        if command.max_size <= 0:
            connection.respond(
                HttpStatus.BAD_REQUEST, f"Bad request,invalid max size:{command.max_size}", opaque
            )
            return
        try:
            found = store.slice(offset, self._size_for(store, command))
            if found is None:
                self._respond_after_end(connection, command, store.max_offset)
                return
            accepts = self.filters.find(topic, command.group)
            if accepts is None:
                sent = found.write(opaque, connection)
                _log_transfer(connection, command, found.size, sent)
                return
            start, data = self.filters.accepted(accepts, command.group, topic, found.read(found.size))
            if start or not data:
                connection.respond(HttpStatus.MOVED, str(offset + start), opaque)
            else:
                connection.send(DataCommand(data, opaque).encode())
        except OffsetOutOfRangeError:
            self.stats.stats_get_miss(topic)
            self.stats.stats_offset(topic)
            connection.respond(HttpStatus.MOVED, str(store.nearest_offset(offset)), opaque)
        except OSError as error:
            logger.error("get from %s: %s", store.directory, error)
            connection.respond(
                HttpStatus.INTERNAL_SERVER_ERROR,
                f"{self.error_message(topic, command.partition)}Detail:{error}",
                opaque,
            )

    def _size_for(self, store: MessageStore, command: GetCommand) -> int:
        """The requested size, at most maxTransferSize, but enough for one longer message.

        The original makes no exception, so it accepts messages longer than maxTransferSize and never delivers them.
        """
        size = min(self.config.system.max_transfer_size, command.max_size)
        if size < command.max_size:
            head = store.read(command.offset, HEADER_SIZE)
            if len(head) == HEADER_SIZE:
                length = HEADER.unpack(head)[0] + HEADER_SIZE
                size = max(size, min(length, command.max_size, BODY_MAX + HEADER_SIZE))
        return size

    def _respond_after_end(self, connection: Connection, command: GetCommand, max_offset: int) -> None:
        self.stats.stats_get_miss(command.topic)
        asks_for_end = self.config.system.update_consumer_offsets or command.offset == CONSUME_FROM_MAX
        if command.offset > max_offset and asks_for_end:
            self.stats.stats_offset(command.topic)
            connection.respond(HttpStatus.MOVED, str(max_offset), command.opaque)
        else:
            connection.respond(
                HttpStatus.NOT_FOUND, f"Could not find message at position {command.offset}", command.opaque
            )

    # --- the others

    def process_offset(self, connection: Connection, command: OffsetCommand) -> None:
        self.stats.stats_offset(command.topic)
        store = self.manager.get(command.topic, command.partition)
        if store is None:
            text = _no_partition(command.topic, command.partition)
            connection.respond(HttpStatus.NOT_FOUND, text, command.opaque)
        else:
            connection.respond(HttpStatus.SUCCESS, str(store.nearest_offset(command.offset)), command.opaque)

    def process_version(self, connection: Connection, command: VersionCommand) -> None:
        connection.respond(HttpStatus.SUCCESS, VERSION, command.opaque)

    def process_stats(self, connection: Connection, command: StatsCommand) -> None:
        if command.item != "config":
            connection.respond(HttpStatus.SUCCESS, self.stats.get_stats_info(command.item), command.opaque)
            return
        try:
            raw = self.config.file_content()
        except (ConfigError, OSError) as error:
            connection.respond(HttpStatus.INTERNAL_SERVER_ERROR, str(error), command.opaque)
            return
        connection.send(b"result %d %d %d\r\n%b" % (HttpStatus.SUCCESS, len(raw), command.opaque, raw))


class RefusedError(MqlakeError):
    """The message was not stored; the text is the answer."""


def right_checksum(command: PutCommand | SyncCommand) -> int:
    """The payload's checksum. RefusedError if the sender gave another."""
    crc = checksum(command.data)
    if command.checksum not in (NO_CHECKSUM, crc):
        raise RefusedError("Checksum failure,message may be corrupted when transfering on networking.")
    return crc


def _log_transfer(connection: Connection, command: GetCommand, size: int, sent: int) -> None:
    if transfer_log.isEnabledFor(logging.DEBUG):
        # the names of the original's transfer log
        fields = {
            "topic": command.topic,
            "group": command.group,
            "partition": command.partition,
            "offset": command.offset,
            "sizeInBytes": size,
            "zeroCopyBytes": sent,
            "client": connection.remote_address,
        }
        text = " ".join(f"{name}:{value}" for name, value in fields.items())
        transfer_log.debug("%s", text, extra=fields)


def _no_partition(topic: str, partition: int) -> str:
    return f"The topic `{topic}` in partition `{partition}` is not exists"
