"""A store made from an archive: ready as soon as its queues are there, whatever the size of the log.

    config/…                      ─▶ DIR/config                          topics, groups and their offsets
    units/… of each whole file    ─▶ DIR/consumequeue, DIR/index         20 bytes a message, smaller on the way
    parts/… of the newest file    ─▶ DIR/commitlog/<its name>            the log goes on there
    commitlog/…                      stays: read from the archive when somebody asks for it

What was acknowledged and had not been archived is not there; the report says until when the archive has the log.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from mqlake.base.durable import fsync_dir, make_dirs
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ConfigError, NotThereError, StoreError
from mqlake.formats.names import offset_to_file_name
from mqlake.store.archive.config_copy import unpack
from mqlake.store.archive.manifest import (
    CONFIG,
    LOG,
    ArchivedObject,
    Manifest,
    SmallObject,
    read_manifest,
    write_local,
)
from mqlake.store.archive.target import Target
from mqlake.store.archive.units import decode
from mqlake.store.config import MessageStoreConfig
from mqlake.store.files.store_directory import check_is_store
from mqlake.store.files.store_lock import StoreLock
from mqlake.store.index.index_service import IndexService
from mqlake.store.message_store import open_store
from mqlake.store.queues.consume_queue_store import BATCH_CQ, SIMPLE_CQ, ConsumeQueueStore, QueueTypeOf
from mqlake.store.queues.queue_ends import RestorableQueues, write_ends


@dataclasses.dataclass(frozen=True, slots=True)
class ArchiveRestoreReport:
    """Physical offsets, times in ms. Messages from `begin` on can be read, those before `log_begin` from the
    archive."""

    directory: str
    archive: str
    begin: int
    log_begin: int
    end: int
    fetched_bytes: int
    last_store_timestamp: int
    """Store time (ms) of the newest message in the archive; later ones, if there were any, are lost."""
    saved_timestamp: int
    """When the archive was brought up to the log for the last time."""


def restore_archive(
    source: str,
    root: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = no_progress,
) -> ArchiveRestoreReport:
    """Makes the store at `root`, which is new or empty. Until all is there it is in `root`.restoring.

    Raises NotThereError if there is no archive; ConfigError if `root` holds something; StoreError for what is
    damaged, with its name; ArchiveUnavailableError; OSError.
    """
    target = Target(source, storage_options)
    manifest, config_copy = _manifest_and_config(target)
    if os.path.exists(root) and (not os.path.isdir(root) or os.listdir(root)):
        raise ConfigError(f"{root} is not empty; name a new directory")
    partial = root.rstrip(os.sep) + ".restoring"
    shutil.rmtree(partial, ignore_errors=True)
    make_dirs(os.path.join(partial, LOG))
    settings = dict(manifest.settings)
    config = MessageStoreConfig.from_mapping({**settings, "storePathRootDir": partial})
    if manifest.config is not None:
        unpack(config_copy, config.config_dir, f"{target}/{manifest.config.name}")
    else:
        make_dirs(os.path.join(partial, CONFIG))
    parts, whole = _split(manifest)
    total = sum(each.size for each in parts) + sum(each.units.size for each in whole if each.units)
    _Restore(target, config, total, progress).run(parts, whole, manifest.end)
    write_local(partial, manifest)
    for path in (os.path.join(partial, LOG), partial):
        fsync_dir(path)
    with open_store(partial, settings):
        pass
    if os.path.isdir(root):
        os.rmdir(root)
    os.rename(partial, root)
    fsync_dir(os.path.dirname(os.path.abspath(root)))
    log_begin = parts[0].start if parts else manifest.end
    return ArchiveRestoreReport(
        root,
        target.url,
        manifest.begin,
        log_begin,
        manifest.end,
        total,
        manifest.last_time_ms,
        manifest.saved_at_ms,
    )


def make_queues_again(
    source: str,
    root: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = no_progress,
) -> Manifest:
    """Makes the consume queues and the index of a store again, those of messages that only its archive has, too. The
    store is opened once for those of its own log. What the archive had.

    Raises NotThereError if there is no archive, StoreError if it does not reach up to the store's log or is damaged,
    StoreLockedError, ArchiveUnavailableError, and what opening raises; a store that is not opened then has the
    queues of its own log after its next start.
    """
    target = Target(source, storage_options)
    manifest = read_manifest(target)
    if manifest is None or not manifest.objects:
        raise NotThereError(f"{target}: there is no archive")
    check_is_store(root, must_exist=True)
    config = MessageStoreConfig.from_mapping({**manifest.settings, "storePathRootDir": root})
    with open_store(root, dict(manifest.settings)) as store:  # it is sound, and nobody has it
        log_begin = store.min_phy_offset
    _, whole = _split(manifest)
    whole = [each for each in whole if each.start < log_begin]
    if whole and whole[-1].end < log_begin:
        raise StoreError(
            f"{target} has the log up to {whole[-1].end}, it begins here at {log_begin}: what lies between is "
            "lost, and "
            "queues cannot reach over it"
        )
    lock = StoreLock(config.lock_path)
    lock.acquire()
    try:
        for directory in (
            config.consume_queue_dir,
            config.batch_consume_queue_dir,
            config.consume_queue_ext_dir,
            config.index_dir,
        ):
            shutil.rmtree(directory, ignore_errors=True)
        total = sum(each.units.size for each in whole if each.units)
        _Restore(target, config, total, progress).make_queues(whole)
        write_local(root, manifest)
    finally:
        lock.release()
    with open_store(root, dict(manifest.settings)):
        pass
    return manifest


def _split(manifest: Manifest) -> tuple[list[ArchivedObject], list[ArchivedObject]]:
    """The parts of the newest file, and the whole files that the log goes back to without a hole."""
    objects = [each for each in manifest.objects if each.start >= manifest.begin]
    return [each for each in objects if not each.is_whole], [each for each in objects if each.is_whole]


def _manifest_and_config(target: Target) -> tuple[Manifest, bytes]:
    """Returns a manifest and the config that belongs to it, also while the broker that writes the archive writes
    another pair: it deletes the config of the older manifest. NotThereError, StoreError."""
    manifest = read_manifest(target)
    while manifest is not None and manifest.objects:
        if manifest.config is None:
            return manifest, b""
        try:
            return manifest, _small(target, manifest.config)
        except StoreError:
            before, manifest = manifest, read_manifest(target)
            if manifest is not None and manifest.config == before.config:
                raise
    raise NotThereError(f"{target}: there is no archive")


def _small(target: Target, small: SmallObject) -> bytes:
    """StoreError if it is not what was written."""
    try:
        data = target.read(small.name)
    except FileNotFoundError:
        data = b""
    if hashlib.sha256(data).hexdigest() != small.sha256:
        raise StoreError(
            f"{target}/{small.name} is damaged or gone; see `mqlake store archive verify {target}`"
        )
    return data


class _Restore:
    def __init__(self, target: Target, config: MessageStoreConfig, total: int, progress: Progress) -> None:
        self._target = target
        self._config = config
        self._total = total
        self._progress = progress
        self._done = 0

    def run(self, parts: list[ArchivedObject], whole: Iterable[ArchivedObject], end: int) -> None:
        self._make_log_file(parts, end)
        self.make_queues(whole)

    def _tell(self, size: int) -> None:
        self._done += size
        self._progress(self._done, self._total)

    def _make_log_file(self, parts: list[ArchivedObject], end: int) -> None:
        """The file in which the log goes on: what the archive has of it, and zeros."""
        size = self._config.mapped_file_size_commit_log
        base = end - end % size
        path = os.path.join(self._config.commit_log_dir, offset_to_file_name(base))
        with open(path, "wb") as file:
            for part in parts:
                digest = hashlib.sha256()
                file.seek(part.start - base)
                for piece in self._target.pieces(part.name, part.size):
                    digest.update(piece)
                    file.write(piece)
                    self._tell(len(piece))
                if digest.hexdigest() != part.sha256:
                    raise StoreError(f"{self._target}/{part.name} is damaged: it has another SHA-256")
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())

    def make_queues(self, whole: Iterable[ArchivedObject]) -> None:
        """Consume queues and index of the messages of these files."""
        config = self._config
        queues = ConsumeQueueStore(config, queue_type_of=_queue_types(config))
        index = IndexService(config) if config.message_index_enable else None
        try:
            queues.may_create = RestorableQueues(config, queues)  # topics that were deleted do not come back
            for each in whole:
                if each.units is None:
                    continue
                data = _small(self._target, each.units)
                for units, keys in decode(data, f"{self._target}/{each.units.name}"):
                    queues.put(units)
                    if index is not None:
                        index.put(keys)
                self._tell(len(data))
            queues.flush()
            write_ends(config, queues)
        finally:
            queues.close()
            if index is not None:
                index.close()


def _queue_types(config: MessageStoreConfig) -> QueueTypeOf:
    """By the attributes in topics.json."""
    try:
        with open(os.path.join(config.config_dir, "topics.json"), encoding="utf-8") as file:
            table = json.load(file)["topicConfigTable"]
        batch = {
            topic
            for topic, its in table.items()
            if (its.get("attributes") or {}).get("queue.type") == BATCH_CQ
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        batch = set()
    return lambda topic: BATCH_CQ if topic in batch else SIMPLE_CQ
