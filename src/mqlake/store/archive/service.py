"""Archive: an archive beside a running store: a thread that uploads, and the reader of what is there.

every archiveInterval, or archiveIntervalBytes:  upload what was flushed ─▶ retention of the archive
a slave:                                         uploads nothing; reads what its master has archived
the bucket is away:                              the round is tried again; nothing else of the broker waits for it
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

from mqlake.base.clock import now_ms
from mqlake.base.service_thread import ServiceThread
from mqlake.base.throttled_log import ThrottledLog
from mqlake.errors import MqlakeError
from mqlake.store.archive.manifest import Manifest, read_local, read_manifest, write_local
from mqlake.store.archive.reader import ArchiveReader
from mqlake.store.archive.retention import expire
from mqlake.store.archive.target import Target, parse_options
from mqlake.store.archive.uploader import Brake, Stopped, Uploader
from mqlake.store.config import BrokerRole, MessageStoreConfig
from mqlake.store.files.mapped_file_queue import MappedFileQueue

logger = logging.getLogger(__name__)

RETRY_S = 5.0
"""From a failed round to the next one, unless archiveInterval is shorter."""
LOOK_S = 1.0
"""How often the thread looks whether there are archiveIntervalBytes."""


class Archive(ServiceThread):
    """The archive of the store with `config` and the log `files`. `archivable` gives the physical offset up to which
    it is flushed and dispatched; `on_manifest` is told when what can be read has changed. ConfigError for settings
    that cannot be."""

    def __init__(
        self,
        config: MessageStoreConfig,
        files: MappedFileQueue,
        archivable: Callable[[], int],
        on_manifest: Callable[[Manifest, Manifest], None] = lambda before, after: None,
    ) -> None:
        super().__init__("Archive")
        self._config = config
        self._files = files
        self._archivable = archivable
        self._on_manifest = on_manifest
        self._options = parse_options(config.archive_options)
        self._target: Target | None = None
        self._opening = threading.Lock()
        directory = os.path.join(config.store_path_root_dir, "archive", "cache")
        self.reader = ArchiveReader(self.target, directory, lambda: config.archive_cache_size)
        self.reader.manifest = read_local(config.store_path_root_dir) or Manifest(
            config.mapped_file_size_commit_log
        )
        self.trouble = ""
        """Why the last round failed; empty when it did not."""
        self.uploaded_bytes = self.failed_rounds = 0
        self._trouble_log = ThrottledLog(logger, logging.WARNING)
        self._uploader: Uploader | None = None

    def target(self) -> Target:
        """Opened when it is used for the first time, which may take a while. ConfigError, MissingPartError."""
        with self._opening:
            if self._target is None:
                self._target = Target(self._config.archive, self._options)
            return self._target

    # ------------------------------------------------------------------ what there is

    @property
    def manifest(self) -> Manifest:
        return self.reader.manifest

    @property
    def behind_bytes(self) -> int:
        """Bytes of the log that are flushed and not archived."""
        return max(0, self._archivable() - max(self.manifest.end, self._files.min_offset))

    def has(self, end: int) -> bool:
        """True if the archive has the whole file of the log that ends at a physical offset."""
        return self.manifest.has_file(end - self._files.file_size)

    def readable_from(self, log_begin: int) -> int:
        """The physical offset from which on messages can be read: the archive's beginning if it reaches up to the log,
        which begins at `log_begin`."""
        manifest = self.manifest
        begin = manifest.begin
        return begin if manifest.objects and begin < log_begin <= manifest.end else log_begin

    def runtime_info(self) -> Mapping[str, str]:
        manifest = self.manifest
        return {
            "archive": self._config.archive,
            "archiveBeginOffset": str(manifest.begin),
            "archiveEndOffset": str(manifest.end),
            "archiveLastStoreTimestamp": str(manifest.last_time_ms),
            "archiveSavedTimestamp": str(manifest.saved_at_ms),
            "archiveObjects": str(len(manifest.objects)),
            "archiveBytes": str(manifest.size),
            "archiveBehindBytes": str(self.behind_bytes),
            "archiveCachedBytes": str(self.reader.cached_bytes),
            "archiveRequests": str(self.reader.requests),
            "archiveReadBytes": str(self.reader.request_bytes),
            "archiveTrouble": self.trouble,
        }

    # ------------------------------------------------------------------ uploading

    def run_once(self) -> None:
        """One round. Raises Stopped, MqlakeError, OSError."""
        config = self._config
        if self._uploader is None:
            self._uploader = Uploader(
                config,
                self.target(),
                brake=Brake(lambda: config.archive_bytes_per_second, self._stops_in),
                on_manifest=self._adopt,
            )
        uploader = self._uploader
        uploader.refresh(self._files)
        with_part = config.archive_interval > 0
        done = uploader.upload(self._files, self._archivable, with_part=with_part)
        self.uploaded_bytes += done.sent_bytes
        expire(uploader, config.archive_reserved_time, config.archive_max_size, now_ms())

    def follow_once(self) -> None:
        """A slave's round: what its master has archived can be read here, too. Raises as run_once()."""
        there = read_manifest(self.target())
        if there is not None and there.sequence > self.manifest.sequence:
            write_local(self._config.store_path_root_dir, there)
            self._adopt(there)

    def _adopt(self, manifest: Manifest) -> None:
        before, self.reader.manifest = self.reader.manifest, manifest
        self._on_manifest(before, manifest)

    def _stops_in(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self._stopped and (left := deadline - time.monotonic()) > 0:
            self._wake.wait(min(left, LOOK_S))
        return self._stopped

    def _run(self) -> None:
        config = self._config
        while True:
            started = time.monotonic()
            try:
                if config.broker_role is BrokerRole.SLAVE:
                    self.follow_once()
                else:
                    self.run_once()
            except Stopped:
                return
            except (MqlakeError, OSError) as error:
                self.trouble = str(error)
                self.failed_rounds += 1
                self._trouble_log.failed(f"the log cannot be archived: {error}")
            except Exception as error:  # of a library; the broker goes on without its archive
                self.trouble = repr(error)
                self.failed_rounds += 1
                logger.exception("the log cannot be archived")
            else:
                self.trouble = ""
                self._trouble_log.worked("the log is archived again")
            if self._wait_for_more(started):
                return

    def _wait_for_more(self, started: float) -> bool:
        """Until the next round; True when there is none."""
        config = self._config
        interval = config.archive_interval or 10
        due = started + (min(interval, RETRY_S) if self.trouble else interval)
        while not self._stops_within(min(LOOK_S, max(0.0, due - time.monotonic()))):
            enough = not self.trouble and self.behind_bytes >= config.archive_interval_bytes > 0
            if time.monotonic() >= due or enough:
                return False
        return True

    def shutdown(self) -> None:
        super().shutdown()
        self.reader.close()
