"""The settings of a store: RocketMQ's MessageStoreConfig, with the defaults of RocketMQ 5.3.3.

RocketMQ's keys that the store does not act on are in base.rocketmq_keys: most are accepted, some are refused.
"""

# ruff: noqa: RUF009 - every field is declared by setting(), which is dataclasses.field() with its Setting

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import logging
import os
import re
from collections.abc import Mapping

from mqlake.base import keys_since_5_4
from mqlake.base.rocketmq_keys import STORE_KEYS
from mqlake.base.settings import (
    INT_MAX,
    LONG_MAX,
    KnownKeys,
    Setting,
    Settings,
    setting,
    settings_of,
)
from mqlake.errors import ConfigError
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE
from mqlake.message import DEFAULT_MESSAGE_DELAY_LEVEL, parse_delay_levels

logger = logging.getLogger(__name__)

CQ_UNIT_SIZE = 20
BATCH_CQ_UNIT_SIZE = 46
INDEX_HEADER_SIZE = 40
INDEX_SLOT_SIZE = 4
INDEX_ENTRY_SIZE = 20


class BrokerRole(enum.Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(enum.Enum):
    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


def _home_store() -> str:
    return os.path.join(os.path.expanduser("~"), "store")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MessageStoreConfig(Settings):
    """The settings of one store. Raises ConfigError at construction when a value cannot be used."""

    store_path_root_dir: str = setting("$HOME/store", "Directory of the store.", factory=_home_store)
    store_path_commit_log: str = setting(
        "", "Directory of the commit log; empty means `commitlog` under storePathRootDir."
    )
    mapped_file_size_commit_log: int = setting(
        1024**3, "Size of a commit log file.", unit="bytes", low=1024, fixed=True
    )
    mapped_file_plug_in: str = setting(
        "",
        "Entry point, in an installed package, of the class for commit log files; empty: mqlake's own.",
        own=True,
    )
    mapped_file_size_consume_queue: int = setting(
        300_000 * CQ_UNIT_SIZE,
        "Size of a consume queue file, rounded up to whole units of 20 bytes.",
        unit="bytes",
        low=CQ_UNIT_SIZE,
        high=INT_MAX // CQ_UNIT_SIZE * CQ_UNIT_SIZE,
        fixed=True,
    )
    enable_consume_queue_ext: bool = setting(
        False, "Keep a consume queue extension (filter bits, full tags code) as well."
    )
    mapped_file_size_consume_queue_ext: int = setting(
        48 * 1024**2, "Size of a consume queue extension file.", unit="bytes", low=1024, fixed=True
    )
    mapper_file_size_batch_consume_queue: int = setting(
        300_000 * BATCH_CQ_UNIT_SIZE,
        "Size of a batch consume queue file, whole units of 46 bytes.",
        unit="bytes",
        low=BATCH_CQ_UNIT_SIZE,
        fixed=True,
    )

    flush_disk_type: FlushDiskType = setting(
        FlushDiskType.ASYNC_FLUSH,
        "SYNC_FLUSH acknowledges a message when it is on disk, ASYNC_FLUSH when it is in the file's mapping.",
    )
    broker_role: BrokerRole = setting(
        BrokerRole.ASYNC_MASTER,
        "SYNC_MASTER acknowledges a message when inSyncReplicas brokers have it; SLAVE refuses puts.",
    )
    flush_interval_commit_log: int = setting(
        500, "Time between two flushes under ASYNC_FLUSH.", unit="ms", low=1
    )
    commit_interval_commit_log: int = setting(
        200, "Time between two commits of pool buffers to the file.", unit="ms", low=1
    )
    flush_commit_log_timed: bool = setting(
        True, "Flush only at the interval; false lets a put wake the flush earlier."
    )
    flush_interval_consume_queue: int = setting(
        1000, "Time between two flushes of the consume queues.", unit="ms", low=1
    )
    flush_commit_log_least_pages: int = setting(
        4, "Minimum unflushed pages for a flush of the commit log.", unit="pages"
    )
    commit_commit_log_least_pages: int = setting(4, "Minimum uncommitted pages for a commit.", unit="pages")
    flush_least_pages_when_warm_maped_file: int = setting(
        4096, "Pages between two flushes while a new file is warmed under SYNC_FLUSH.", unit="pages", low=1
    )
    flush_consume_queue_least_pages: int = setting(
        2, "Minimum unflushed pages for a flush of a consume queue.", unit="pages"
    )
    flush_commit_log_thorough_interval: int = setting(
        10_000, "After this time a flush of the commit log ignores flushCommitLogLeastPages.", unit="ms"
    )
    commit_commit_log_thorough_interval: int = setting(
        200, "After this time a commit ignores commitCommitLogLeastPages.", unit="ms"
    )
    flush_consume_queue_thorough_interval: int = setting(
        60_000,
        "After this time a flush of the consume queues ignores flushConsumeQueueLeastPages.",
        unit="ms",
    )
    sync_flush_timeout: int = setting(
        5000,
        "Time that a put waits for its flush under SYNC_FLUSH before FLUSH_DISK_TIMEOUT.",
        unit="ms",
        low=1,
        live=True,
    )
    wake_commit_when_put_message: bool = setting(
        True, "A put wakes the commit of pool buffers (ASYNC_FLUSH with the pool)."
    )
    wake_flush_when_put_message: bool = setting(
        False, "A put wakes the flush (ASYNC_FLUSH without the pool)."
    )

    data_read_ahead_enable: bool = setting(
        True, "The kernel reads ahead in the commit log; false suits many readers of old messages far apart."
    )
    transient_store_pool_enable: bool = setting(
        False, "Append to buffers outside the page cache and commit them to the file."
    )
    transient_store_pool_size: int = setting(
        5, "Buffers in the pool, each of mappedFileSizeCommitLog bytes.", unit="buffers", low=1
    )
    fast_fail_if_no_buffer_in_store_pool: bool = setting(
        False, "Refuse a new file at once when the pool has no buffer left."
    )
    write_without_mmap: bool = setting(
        False, "Write commit log files through their descriptor, without mapping them.", own="5.4 or 5.5"
    )
    warm_maped_file_enable: bool = setting(
        False, "Touch every page of a new commit log file before it is used."
    )
    os_page_cache_busy_time_out_mills: int = setting(
        1000,
        "An append that holds the lock longer than this makes the store answer OS_PAGECACHE_BUSY.",
        unit="ms",
        high=LONG_MAX,
        live=True,
    )

    max_message_size: int = setting(4 * 1024**2, "Largest body that a put accepts.", unit="bytes", low=1)
    auto_message_version_on_topic_len: bool = setting(
        True, "Use record version 2 for topics longer than 127 bytes."
    )
    enabled_append_prop_crc: bool = setting(
        False, "Write a checksum over the whole record as its last property.", key="enabledAppendPropCRC"
    )
    force_verify_prop_crc: bool = setting(
        False,
        "Treat a wrong whole-record checksum as damage always, not only if the next record has a right one.",
        key="forceVerifyPropCRC",
    )
    check_crc_on_recover: bool = setting(
        True, "Recovery checks the checksums of records.", key="checkCRCOnRecover"
    )
    message_delay_level: str = setting(
        DEFAULT_MESSAGE_DELAY_LEVEL,
        "Delays of the levels 1, 2, 3, ..., each a number followed by s, m, h or d.",
    )
    read_un_committed: bool = setting(
        False, "Dispatch messages to consumers before they are flushed under SYNC_FLUSH."
    )

    max_transfer_bytes_on_message_in_memory: int = setting(
        256 * 1024, "Maximum bytes that one get returns from memory.", unit="bytes", low=1, live=True
    )
    max_transfer_count_on_message_in_memory: int = setting(
        32, "Maximum messages that one get returns from memory.", unit="messages", low=1, live=True
    )
    max_transfer_bytes_on_message_in_disk: int = setting(
        64 * 1024, "Maximum bytes that one get returns from disk.", unit="bytes", low=1, live=True
    )
    max_transfer_count_on_message_in_disk: int = setting(
        8, "Maximum messages that one get returns from disk.", unit="messages", low=1, live=True
    )
    access_message_in_memory_max_ratio: int = setting(
        40,
        "The end of the log counts as in memory up to this share of the machine's memory.",
        unit="%",
        high=100,
    )
    max_filter_message_size: int = setting(
        16_000,
        "Maximum bytes of consume queue units that one get with a filter looks at.",
        unit="bytes",
        low=1,
        live=True,
    )
    max_msgs_num_batch: int = setting(
        64, "Maximum messages that a query by key returns.", unit="messages", low=1, live=True
    )
    offset_check_in_slave: bool = setting(False, "A slave corrects wrong consumer offsets as a master does.")

    ha_listen_port: int = setting(
        10912,
        "Port for slaves. A broker whose file does not set it takes listenPort + 1; 0: any free one.",
        high=65535,
    )
    ha_bind_address: str = setting(
        "", "Address to listen on for slaves; empty: that of bindAddress.", own=True
    )
    ha_allowed_addresses: str = setting(
        "",
        "Addresses and networks (10.0.0.0/8) that slaves may connect from, `;` between; empty: all.",
        own=True,
    )
    ha_master_address: str = setting(
        "", "host:port of the master's haListenPort; empty: as the name servers say."
    )
    ha_send_heartbeat_interval: int = setting(
        5000, "Silence after which master and slave send a heartbeat.", unit="ms", low=1
    )
    ha_housekeeping_interval: int = setting(
        20_000, "Silence after which master or slave closes the connection.", unit="ms", low=1
    )
    ha_transfer_batch_size: int = setting(
        32 * 1024,
        "Most bytes of the log in one frame to a slave that keeps up; one that lacks 32 times as much gets frames "
        "of that size. Java's slave takes 4 MiB at most.",
        unit="bytes",
        low=1,
        high=4 * 1024**2 - 12,
    )
    ha_max_gap_not_in_sync: int = setting(
        256 * 1024**2,
        "A slave that lacks fewer bytes is in sync (haSlaveFallbehindMax of RocketMQ 4).",
        unit="bytes",
        live=True,
    )
    file_held_time_for_slaves: int = setting(
        24,
        "How much longer than fileReservedTime a commit log file is kept that a connected slave has not got yet; "
        "not when the disk is short. 0: no longer, as RocketMQ.",
        unit="hours",
        low=0,
        live=True,
        own=True,
    )
    ha_flow_control_enable: bool = setting(
        False, "Limit what a master sends to each slave to maxHaTransferByteInSecond."
    )
    max_ha_transfer_byte_in_second: int = setting(
        100 * 1024**2, "The limit of haFlowControlEnable, for each slave.", unit="bytes", low=1, high=LONG_MAX
    )
    sync_from_last_file: bool = setting(
        False, "An empty slave gets the master's last file only, and not the whole log."
    )
    ha_check_crc: bool = setting(
        True, "A slave checks the CRC of each body before it stores and acknowledges it.", own=True
    )
    in_sync_replicas: int = setting(
        1, "SYNC_MASTER: brokers, the master included, that need a message before it is acknowledged.", low=1
    )
    min_in_sync_replicas: int = setting(
        1, "SYNC_MASTER: with fewer brokers in sync, the master included, messages are refused.", low=1
    )
    total_replicas: int = setting(
        1, "Brokers of one name, the master included; inSyncReplicas is at most that.", low=1
    )
    enable_auto_in_sync_replicas: bool = setting(
        False,
        "SYNC_MASTER: slaves that are away or far behind are not waited for, down to minInSyncReplicas.",
    )
    slave_timeout: int = setting(
        3000,
        "Time that a put waits for its replicas before FLUSH_SLAVE_TIMEOUT.",
        unit="ms",
        low=1,
        live=True,
    )
    slave_not_available_at_once: bool = setting(
        False,
        "SYNC_MASTER: with too few slaves in sync answer SLAVE_NOT_AVAILABLE at once, as RocketMQ 4 does.",
        own=True,
    )

    message_index_enable: bool = setting(True, "Index the messages by their keys.")
    message_index_safe: bool = setting(
        False, "Recovery starts early enough to rebuild the whole index as well."
    )
    max_hash_slot_num: int = setting(
        5_000_000, "Hash slots of an index file.", unit="slots", low=1, fixed=True
    )
    max_index_num: int = setting(20_000_000, "Entries of an index file.", unit="entries", low=2, fixed=True)

    file_reserved_time: int = setting(
        72, "Age at which a commit log file may be deleted.", unit="h", live=True
    )
    delete_when: str = setting(
        "04", "Hours of the day, 00 to 23 with `;` between, in which old files are deleted.", live=True
    )
    disk_max_used_space_ratio: int = setting(
        75,
        "Disk use above which old files are deleted at any hour; held to 10..95.",
        unit="%",
        high=100,
        live=True,
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        "Disk use above which files are deleted whatever their age; held to 30..85.",
        unit="%",
        high=100,
        live=True,
    )
    disk_space_warning_level_ratio: int = setting(
        90,
        "Disk use above which the store accepts no messages; held to 35..90.",
        unit="%",
        high=100,
        live=True,
    )
    disk_check_enable: bool = setting(
        True,
        "Watch how full the disk is. false: no message is refused and no file deleted because of it; for tests.",
        own=True,
        live=True,
    )
    clean_file_forcibly_enable: bool = setting(
        True, "Allow the deletion of files that are younger than fileReservedTime.", live=True
    )
    delete_file_batch_max: int = setting(
        10, "Maximum commit log files that one round deletes.", unit="files", low=1, live=True
    )
    delete_commit_log_files_interval: int = setting(
        100, "Pause after each deleted commit log file.", unit="ms", live=True
    )
    clean_resource_interval: int = setting(10_000, "Time between two cleaning rounds.", unit="ms", low=1)

    archive: str = setting(
        "",
        "Where the log is archived, and old messages are read from: s3://bucket/prefix, file:///directory, "
        "or what else "
        "fsspec opens; empty: nowhere. See archive.md.",
        own=True,
    )
    archive_options: str = setting(
        "",
        "For the file system of `archive`: key=value, `;` between, such as endpoint_url=http://host:9000. Keys for S3 "
        "belong into the environment or ~/.aws.",
        own=True,
    )
    archive_interval: int = setting(
        30,
        "Time after which what was flushed since is archived, too; 0: only whole files of the log.",
        unit="s",
        own=True,
        live=True,
    )
    archive_interval_bytes: int = setting(
        64 * 1024**2,
        "With so much more of the log the archive does not wait for archiveInterval; 0: it does.",
        unit="bytes",
        own=True,
        live=True,
    )
    archive_bytes_per_second: int = setting(
        0, "How fast the log is uploaded at most; 0: as fast as it goes.", unit="bytes", own=True, live=True
    )
    archive_reserved_time: int = setting(
        0, "Age at which a file leaves the archive; 0: none does.", unit="h", own=True, live=True
    )
    archive_max_size: int = setting(
        0,
        "Size of the archive above which its oldest files leave it; 0: no bound.",
        unit="bytes",
        high=LONG_MAX,
        own=True,
        live=True,
    )
    archive_cache_size: int = setting(
        1024**3,
        "Space on the disk for what was read from the archive; at least 256 MiB are used if needed.",
        unit="bytes",
        low=1,
        high=LONG_MAX,
        own=True,
        live=True,
    )
    delete_only_archived: bool = setting(
        False,
        "Delete no file of the log that the archive does not have, also when the disk is full: then messages "
        "are refused.",
        own=True,
        live=True,
    )

    batch_inherits_properties: bool = setting(
        True,
        "Each message of a batch gets the properties that the broker adds (CLUSTER and others), as in RocketMQ 5.3.3; "
        "false: none, as in 5.5, and sends take the slow path.",
        own=True,
    )

    timer_wheel_enable: bool = setting(True, "Take and deliver timer messages (to the second).")
    timer_precision_ms: int = setting(
        1000,
        "Length of a step of the timer wheel: 100, 200, 500 or 1000; others are lowered to one of these.",
        unit="ms",
        low=1,
    )
    timer_max_delay_sec: int = setting(
        3 * 86400, "The longest time that a timer message may wait.", unit="s", live=True
    )
    timer_roll_window_slot: int = setting(
        2 * 86400,
        "Steps after which a message that waits longer is stored again, so that it does not expire.",
        unit="steps",
    )
    timer_flush_interval_ms: int = setting(
        1000, "Time between two writes of the timers' progress.", unit="ms", low=1, live=True
    )
    mapped_file_size_timer_log: int = setting(
        100 * 1024**2, "Size of a timer log file.", unit="bytes", low=68, fixed=True
    )
    timer_stop_enqueue: bool = setting(False, "Put no more messages into the timer wheel for now.", live=True)
    timer_stop_dequeue: bool = setting(False, "Deliver no timer messages for now.", live=True)
    timer_congest_num_each_slot: int = setting(
        INT_MAX,
        "Messages due in one step above which some are refused, and all above twice as many.",
        unit="messages",
        low=1,
        live=True,
    )
    disappear_time_after_start: int = setting(
        -1, "Time after the start before which no timer messages are delivered.", unit="ms", low=-1
    )
    append_topic_for_timer_delete_key: bool = setting(
        True,
        "Recalls name topic and key, as RocketMQ 5.3.3 needs it; false: the key alone, as 5.4 has it.",
        own="5.4 or 5.5",
        live=True,
    )

    scrub_bytes_per_second: int = setting(
        4 * 1024**2,
        "How fast the scrub reads the log to find damage before a consumer does; 0 turns it off.",
        unit="bytes",
        own=True,
        live=True,
    )
    scrub_interval: int = setting(
        168, "Time from the end of one round of the scrub to the next.", unit="h", own=True, live=True
    )
    pull_check_crc: bool = setting(
        False,
        "Check the CRC of each body before a pull or a query returns it; skip, log and count damaged messages.",
        own=True,
        live=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            "mapped_file_size_consume_queue", _round_up(self.mapped_file_size_consume_queue, CQ_UNIT_SIZE)
        )
        self._set(
            "timer_precision_ms",
            next((step for step in (1000, 500, 200) if self.timer_precision_ms >= step), 100),
        )
        self._check_together()

    def _check_together(self) -> None:
        """Checks beyond those of single values in a range."""
        for key, path in (
            ("storePathRootDir", self.store_path_root_dir),
            ("storePathCommitLog", self.store_path_commit_log),
        ):
            if "\0" in path:
                raise ConfigError(f"{key}: a path cannot hold a NUL character")
        if not self.store_path_root_dir:
            raise ConfigError("storePathRootDir: a directory is needed")
        if "," in self.store_path_commit_log:
            raise ConfigError(
                f"storePathCommitLog={self.store_path_commit_log}: a commit log over several directories "
                "is not supported; name one directory"
            )
        if self.mapper_file_size_batch_consume_queue % BATCH_CQ_UNIT_SIZE:
            raise ConfigError(
                f"mapperFileSizeBatchConsumeQueue={self.mapper_file_size_batch_consume_queue}: "
                f"a multiple of {BATCH_CQ_UNIT_SIZE} is needed"
            )
        if self.index_file_size > INT_MAX:
            raise ConfigError(
                f"maxHashSlotNum={self.max_hash_slot_num}, maxIndexNum={self.max_index_num}: "
                f"an index file would have {self.index_file_size} bytes; at most {INT_MAX} is allowed"
            )
        try:
            parse_delay_levels(self.message_delay_level)
        except ConfigError as error:
            raise ConfigError(f"messageDelayLevel={self.message_delay_level!r}: {error}") from None
        if self.min_in_sync_replicas > self.in_sync_replicas:
            raise ConfigError(
                f"minInSyncReplicas={self.min_in_sync_replicas}: at most inSyncReplicas={self.in_sync_replicas}, else "
                "messages are refused that would be acknowledged"
            )
        try:
            self.ha_allowed_networks  # noqa: B018 - parsed to see that it can be
        except ValueError as error:
            raise ConfigError(f"haAllowedAddresses={self.ha_allowed_addresses}: {error}") from None
        if self.delete_only_archived and not self.archive:
            raise ConfigError(
                "deleteOnlyArchived=true: without an archive nothing would ever be deleted; set archive"
            )
        if self.archive and "://" not in self.archive:
            raise ConfigError(
                f"archive={self.archive}: name a place such as s3://bucket/store or file:///data/archive"
            )
        if not self.delete_when_hours:
            raise ConfigError("deleteWhen: at least one hour is needed, like 04 or 02;14")

    # -- derived ---------------------------------------------------------------------------------------------

    @property
    def new_store_size(self) -> int:
        """Bytes that a new store allocates by its first message: two files of the log and one of the index."""
        return 2 * self.mapped_file_size_commit_log + self.message_index_enable * self.index_file_size

    @property
    def index_file_size(self) -> int:
        """Bytes of an index file: header, slots, entries."""
        return (
            INDEX_HEADER_SIZE
            + self.max_hash_slot_num * INDEX_SLOT_SIZE
            + self.max_index_num * INDEX_ENTRY_SIZE
        )

    @property
    def delete_when_hours(self) -> frozenset[int]:
        """The hours of `deleteWhen`; raises ConfigError when one is not 00 to 23."""
        hours = [hour.strip() for hour in self.delete_when.split(";") if hour.strip()]
        for hour in hours:
            if not re.fullmatch(r"\d{1,2}", hour, re.ASCII) or int(hour) > 23:
                raise ConfigError(
                    f"deleteWhen={self.delete_when}: hours of 00 to 23 are needed, with `;` between them"
                )
        return frozenset(int(hour) for hour in hours)

    @property
    def ha_allowed_networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """The networks of haAllowedAddresses. ValueError."""
        addresses = [address.strip() for address in self.ha_allowed_addresses.split(";")]
        return [ipaddress.ip_network(address) for address in addresses if address]

    def become(self, role: BrokerRole) -> None:
        """Changes brokerRole in place: only a promotion may, which puts the parts of the new role in place."""
        self._set("broker_role", role)

    def waits_for_in_sync_set(self) -> None:
        """The broker is one of a group with failover: every put of its master waits for the in-sync set."""
        self._set("_waits_for_in_sync_set", True)

    def listens_for_slaves_on(self, port: int) -> None:
        """Writes back the port that was found for haListenPort, as RocketMQ's broker does."""
        self._set("ha_listen_port", port)

    @property
    def waits_for_replicas(self) -> bool:
        """True if a put may have to wait for slaves."""
        return self.broker_role is BrokerRole.SYNC_MASTER and (
            max(self.in_sync_replicas, self.min_in_sync_replicas) > 1
            or getattr(self, "_waits_for_in_sync_set", False)
        )

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def writes_prop_crc(self) -> bool:
        """True if a property CRC is the store's own, and damage when it is wrong."""
        return self.enabled_append_prop_crc or self.force_verify_prop_crc

    @property
    def commit_log_dir(self) -> str:
        return self.store_path_commit_log or self._under_root("commitlog")

    @property
    def consume_queue_dir(self) -> str:
        return self._under_root("consumequeue")

    @property
    def consume_queue_ext_dir(self) -> str:
        return self._under_root("consumequeue_ext")

    @property
    def batch_consume_queue_dir(self) -> str:
        return self._under_root("batchconsumequeue")

    @property
    def index_dir(self) -> str:
        return self._under_root("index")

    @property
    def transfer_limits(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Messages and bytes that a pull gets at most: of those in memory, and of those on the disk."""
        return (
            (self.max_transfer_count_on_message_in_memory, self.max_transfer_bytes_on_message_in_memory),
            (self.max_transfer_count_on_message_in_disk, self.max_transfer_bytes_on_message_in_disk),
        )

    def filter_span(self, max_count: int) -> int:
        """Units of a queue that a pull of `max_count` messages with a filter looks at, at most."""
        return max(self.max_filter_message_size // CQ_STORE_UNIT_SIZE, max_count)

    @property
    def config_dir(self) -> str:
        return self._under_root("config")

    @property
    def checkpoint_path(self) -> str:
        return self._under_root("checkpoint")

    @property
    def timer_wheel_path(self) -> str:
        return self._under_root("timerwheel")

    @property
    def timer_log_dir(self) -> str:
        return self._under_root("timerlog")

    @property
    def queue_ends_path(self) -> str:
        return self._under_root("queue-ends.json")

    @property
    def abort_path(self) -> str:
        return self._under_root("abort")

    @property
    def lock_path(self) -> str:
        return self._under_root("lock")

    def _under_root(self, name: str) -> str:
        return os.path.join(self.store_path_root_dir, name)

    # -- from and to key = value -----------------------------------------------------------------------------

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], *, strict: bool = True) -> MessageStoreConfig:
        """The configuration of RocketMQ's keys with texts (or values of the right type).

        `strict=False` ignores unknown keys, since a broker.conf holds other settings as well.
        Raises UnknownKeyError (strict) and ConfigError.
        """
        if strict:
            KEYS.require(mapping)
        if idle := KEYS.without_effect(mapping):
            logger.warning("settings without effect on this store: %s", ", ".join(idle))
        return cls().replaced(mapping)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


SETTINGS: dict[str, Setting] = settings_of(MessageStoreConfig)

KEYS = KnownKeys(SETTINGS, STORE_KEYS, keys_since_5_4.STORE_KEYS)
"""All that a configuration of a store may have."""
