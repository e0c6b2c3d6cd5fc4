"""Backups of a store, also beside a running broker: whole, or what has come since the last one.

    STORE/commitlog/…0000 …1024 …2048│     up to the last whole record
    DIR/commitlog/…0000 …1024 …2048        what is new is appended, a file that is there as it is stays
        config-3/                          offsets of groups from before the log was read: none points past it
        backup.json                        last: which bytes of which files, their CRC-32, the configuration's directory

The log is the truth, so consume queues, index, timer wheel and checkpoint are not copied; they are made again when the
restored store opens. What `backup.json` names is one state of the store; a backup that was interrupted leaves that of
before, and the next one goes on. Nothing in the store is written.

A log that is not the one in DIR (another store, a repaired or truncated one, one that has lost what the backup needs to
go on) is refused, unless `overwrite` says that DIR may follow it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping

from mqlake.base.clock import now_ms
from mqlake.base.durable import fsync_dir, make_dirs, write_durably
from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ConfigError, NotThereError, StoreError
from mqlake.formats.columns import ScanStop
from mqlake.store.backup_check import config_troubles, crcs_of_config, trouble_of
from mqlake.store.backup_manifest import (
    CONFIG,
    LOG,
    MANIFEST,
    Manifest,
    SavedFile,
    read_manifest,
    write_manifest,
)
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.mapped_file import MappedFile
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.files.store_directory import ROCKSDB_MARK, check_is_store
from mqlake.store.log.log_reader import LogReader, open_log
from mqlake.store.message_store import open_store

LOCK = "backup.lock"
PIECE = 4 << 20
AGAIN_AFTER_THE_LOG = ("topics.json", "subscriptionGroup.json", "topicQueueMapping.json")
"""A topic that was made while the log was copied has its settings, too."""


@dataclasses.dataclass(slots=True)
class BackupReport:
    """Physical offsets that the backup has now; bytes that were copied and those that were there already."""

    directory: str
    start: int = 0
    end: int = 0
    files: int = 0
    copied_bytes: int = 0
    kept_bytes: int = 0
    damage: list[str] = dataclasses.field(default_factory=list)
    """Places in what was copied where no record is, as they are in the store."""
    mended: list[str] = dataclasses.field(default_factory=list)
    """Copies that were damaged, and are made again from the store."""
    damaged_copies: list[str] = dataclasses.field(default_factory=list)
    """Damaged copies of which the store no longer has the original."""
    checked_bytes: int = 0
    """Bytes of copies that were there already, which were read and compared."""


@dataclasses.dataclass(slots=True)
class RestoreReport:
    directory: str
    start: int
    end: int
    files: int
    bytes: int


# --- backup


def back_up(
    root: str,
    directory: str,
    settings: Mapping[str, object] | None = None,
    *,
    overwrite: bool = False,
    prune: bool = False,
    verify: bool = False,
    progress: Progress = no_progress,
) -> BackupReport:
    """Brings the backup in `directory` up to the store at `root`. `prune`: forgets files that the store has deleted.
    `verify`: reads all that is there already, not only the file that was not read for the longest time. A copy that is
    damaged is made again where the store has its original.

    Raises ConfigError if `directory` is in use, is no backup, or has another log; NotAStoreError, WrongFileSizeError,
    StoreCorruptError (a file of the log is missing), OSError.
    """
    check_is_store(root, must_exist=True)
    config = dataclasses.replace(
        MessageStoreConfig.from_mapping({**detect_settings(root), **(settings or {})}),
        store_path_root_dir=root,
    )
    _check_target(root, directory)
    make_dirs(os.path.join(directory, LOG))
    with _locked(directory):
        before = read_manifest(directory) or Manifest(config.mapped_file_size_commit_log)
        saved_config = _save_config(config, directory, before.config)
        files = open_log(config)
        try:
            LogReader(files).find_end()
            kept = _kept(files, before, overwrite, prune)
            report = BackupReport(directory)
            kept = _check_copies(files, directory, kept, report, every=verify)
            if kept != list(before.files):  # what follows may change their files
                write_manifest(directory, dataclasses.replace(before, files=tuple(kept)))
            saved = _save_log(files, directory, kept, report, progress)
        finally:
            files.close()
        _save_config_again(config, os.path.join(directory, saved_config))
        size = config.mapped_file_size_commit_log
        sizes = {key: str(value) for key, value in detect_settings(root).items()}
        crcs = crcs_of_config(os.path.join(directory, saved_config))
        manifest = Manifest(size, tuple(saved), saved_config, now_ms(), sizes, crcs)
        write_manifest(directory, manifest)
        _delete_strangers(directory, {each.name for each in saved})
        _forget_others(directory, saved_config)
    report.start, report.end, report.files = manifest.start, manifest.end, len(saved)
    return report


def _check_target(root: str, directory: str) -> None:
    if os.path.exists(directory):
        if not os.path.isdir(directory):
            raise ConfigError(f"{directory}: a backup is a directory")
        names = set(os.listdir(directory))
        if names and MANIFEST not in names and not names <= {LOG, LOCK} | _configs(directory):
            raise ConfigError(f"{directory}: not a backup; name an empty or new directory")
    inside = os.path.realpath(directory) + os.sep
    if inside.startswith(os.path.realpath(root) + os.sep):
        raise ConfigError(f"{directory} is in the store; a backup belongs elsewhere, best on another disk")


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    with open(os.path.join(directory, LOCK), "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{directory}: another backup is writing there") from None
        yield


def _check_copies(
    files: MappedFileQueue, directory: str, kept: list[SavedFile], report: BackupReport, *, every: bool
) -> list[SavedFile]:
    """The files of the backup without those whose copies are damaged and can be made again. All have to be there; read
    are the one that is appended to, those known to be damaged, and of the others the one that was not read for the
    longest time, or `every` one."""
    sources = {os.path.basename(each.path): each for each in files.mapped_files}
    oldest = min((each.checked for each in kept if each.checked >= 0), default=-1)
    sample = next((each.name for each in kept if each.checked == oldest), "")
    good = []
    for each in kept:
        source = sources.get(each.name)
        grows = source is not None and source.wrote_position > each.size
        is_read = every or grows or each.checked < 0 or each.name == sample
        trouble = trouble_of(directory, each, read=is_read)
        report.checked_bytes += each.size if is_read else 0
        if not trouble:
            good.append(dataclasses.replace(each, checked=now_ms()) if is_read else each)
        elif source is not None and _crc(source, each.size) == each.crc:
            report.mended.append(trouble)
        else:
            report.damaged_copies.append(trouble)
            good.append(dataclasses.replace(each, checked=-1))
    return good


def _save_log(
    files: MappedFileQueue, directory: str, kept: list[SavedFile], report: BackupReport, progress: Progress
) -> list[SavedFile]:
    """Copies what the backup lacks. The caller writes what it has then to the manifest."""
    sources = {os.path.basename(each.path): each for each in files.mapped_files}
    known = {each.name: each for each in kept}
    saved = [each for each in kept if each.name not in sources]
    total, done = sum(each.wrote_position for each in sources.values()), 0
    for name, source in sources.items():
        path = os.path.join(directory, LOG, name)
        entry, copied = _save_file(source, path, known.get(name), progress, done, total)
        if copied:
            end = source.file_from_offset + entry.size
            report.damage += _damage(files, end - copied, end)
        done += source.wrote_position
        report.copied_bytes += copied
        report.kept_bytes += entry.size - copied
        saved.append(entry)
    if not saved:
        raise StoreError(f"{files.directory}: there is no log to back up")
    fsync_dir(os.path.join(directory, LOG))
    return sorted(saved, key=lambda each: each.start)


def _kept(files: MappedFileQueue, before: Manifest, overwrite: bool, prune: bool) -> list[SavedFile]:
    """Which files of the backup stay, as far as they are the beginning of the store's log. ConfigError."""
    sources = {os.path.basename(each.path): each for each in files.mapped_files}
    if not before.files:
        return []
    trouble = ""
    if before.file_size != files.file_size:
        trouble = f"its files have {before.file_size} bytes each, the store's {files.file_size}"
    elif sources and before.end < files.min_offset:
        trouble = f"the store no longer has offsets {before.end} to {files.min_offset}"
    if trouble:
        if not overwrite:
            raise _another(trouble)
        return []
    kept = []
    for each in before.files:
        source = sources.get(each.name)
        if source is None and each.start < files.min_offset:
            if not prune:
                kept.append(each)  # deleted by the store, since it was old
            continue
        if source is None or not _is_prefix(each, source):
            if not overwrite:
                raise _another(
                    f"{each.name} is not the store's" if source else f"the store has no {each.name}"
                )
            break
        kept.append(each)
    return kept


def _another(why: str) -> ConfigError:
    return ConfigError(
        f"this is the backup of another log, or the store was repaired or truncated: {why}. Name a new directory, or "
        "--overwrite what is there"
    )


def _seen(source: MappedFile) -> tuple[int, int]:
    status = os.stat(source.path)
    return status.st_ino, status.st_mtime_ns


def _is_prefix(saved: SavedFile, source: MappedFile) -> bool:
    """Returns True if the saved bytes are those at the beginning of a file."""
    if saved.size > source.wrote_position:
        return False
    with contextlib.suppress(FileNotFoundError):
        if saved.size == source.file_size and saved.seen == _seen(source):
            return True
    return _crc(source, saved.size) == saved.crc


def _crc(source: MappedFile, size: int) -> int:
    crc = 0
    for start in range(0, size, PIECE):
        end = min(start + PIECE, size)
        crc = zlib.crc32(source.view[start:end], crc)
        source.evict(start, end)
    return crc


def _save_file(
    source: MappedFile, path: str, saved: SavedFile | None, progress: Progress, done: int, total: int
) -> tuple[SavedFile, int]:
    """Appends to the copy what it lacks; (the entry, bytes copied). The copy is read back, and is durable. OSError."""
    size = source.wrote_position
    crc, start = (saved.crc, saved.size) if saved is not None else (0, 0)
    try:
        seen = _seen(source)
    except FileNotFoundError:  # deleted by the broker since: the mapping still has its bytes
        seen = (0, 0)
    if start == size and saved is not None:
        return dataclasses.replace(saved, seen=seen), 0
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with _naming(path):
            os.ftruncate(fd, start)
            for at in range(start, size, PIECE):
                end = min(at + PIECE, size)
                piece = source.view[at:end]
                crc = zlib.crc32(piece, crc)
                _write_all(fd, piece, at)
                source.evict(at, end)
                progress(done + end, total)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the check is of the disk
            _check_copy(fd, path, size, crc)
    finally:
        os.close(fd)
    return SavedFile(os.path.basename(path), size, crc, seen, now_ms()), size - start


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """An error of the system names the file: a full disk, a quota."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def _write_all(fd: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written


def _check_copy(fd: int, path: str, size: int, crc: int) -> None:
    found = 0
    for at in range(0, size, PIECE):
        found = zlib.crc32(os.pread(fd, min(PIECE, size - at), at), found)
    if found != crc:
        raise StoreError(f"{path}: what is read back is not what was written; is the disk sound?")


def _damage(files: MappedFileQueue, start: int, end: int) -> list[str]:
    """Returns a line about the first place in [start, end) without a whole record; empty if there is none."""
    for chunk in LogReader(files).scan(start, end):
        if (
            chunk.stopped
            and chunk.end < end
            and chunk.scan.stop in (ScanStop.INVALID, ScanStop.TRUNCATED, ScanStop.END)
        ):
            return [f"{chunk.path}: no whole record at offset {chunk.end}"]
    return []


def _delete_strangers(directory: str, names: set[str]) -> None:
    for name in os.listdir(os.path.join(directory, LOG)):
        if name not in names:
            os.unlink(os.path.join(directory, LOG, name))


# --- configuration


def _configs(directory: str) -> set[str]:
    return {name for name in os.listdir(directory) if re.fullmatch(rf"{CONFIG}-\d+", name)}


def _save_config(config: MessageStoreConfig, directory: str, before: str) -> str:
    """Copies the configuration to a directory that no backup names yet; its name."""
    number = int(before.rpartition("-")[2]) + 1 if before else 1
    name = f"{CONFIG}-{number}"
    target = os.path.join(directory, name)
    shutil.rmtree(target, ignore_errors=True)
    os.mkdir(target, 0o700)
    source = os.path.join(config.store_path_root_dir, CONFIG)
    if os.path.isdir(source):
        _copy_config(source, target)
    fsync_dir(target)
    return name


def _copy_config(source: str, target: str) -> None:
    for entry in os.scandir(source):
        path = os.path.join(target, entry.name)
        if entry.is_dir(follow_symlinks=False):
            if not os.path.exists(os.path.join(entry.path, ROCKSDB_MARK)):
                os.mkdir(path, 0o700)
                _copy_config(entry.path, path)
        elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(".tmp"):
            with contextlib.suppress(FileNotFoundError):  # replaced or removed since
                _copy_small(entry.path, path)


def _copy_small(source: str, target: str) -> None:
    with open(source, "rb") as file:
        data, mode = file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    write_durably(target, data, mode=mode)


def _save_config_again(config: MessageStoreConfig, target: str) -> None:
    for name in AGAIN_AFTER_THE_LOG:
        source = os.path.join(config.store_path_root_dir, CONFIG, name)
        with contextlib.suppress(FileNotFoundError):
            _copy_small(source, os.path.join(target, name))


def _forget_others(directory: str, name: str) -> None:
    for other in _configs(directory) - {name}:
        shutil.rmtree(os.path.join(directory, other))


# --- restore


def restore(
    directory: str,
    root: str,
    settings: Mapping[str, object] | None = None,
    *,
    progress: Progress = no_progress,
) -> RestoreReport:
    """Makes the store at `root`, which is new or empty, from a backup; each file is compared with its CRC. Then the
    store is opened once, which makes its queues and index, and closed.

    Raises NotThereError if there is no backup, ConfigError if `root` holds something; StoreCorruptError if the backup
    is damaged, with file; OSError. Until all is there it is in `root`.restoring.
    """
    manifest = read_manifest(directory)
    if manifest is None or not manifest.files:
        raise NotThereError(f"{directory}: there is no {MANIFEST}, so no whole backup")
    if os.path.exists(root) and (not os.path.isdir(root) or os.listdir(root)):
        raise ConfigError(f"{root} is not empty; name a new directory")
    partial = root.rstrip(os.sep) + ".restoring"
    shutil.rmtree(partial, ignore_errors=True)
    make_dirs(os.path.join(partial, LOG))
    total, done = sum(each.size for each in manifest.files), 0
    for each in manifest.files:
        _restore_file(directory, partial, each, manifest.file_size)
        done += each.size
        progress(done, total)
    if troubles := config_troubles(os.path.join(directory, manifest.config), manifest.config_crcs):
        raise StoreError(f"the backup is damaged: {troubles[0]}")
    os.mkdir(os.path.join(partial, CONFIG))
    _copy_config(os.path.join(directory, manifest.config), os.path.join(partial, CONFIG))
    for path in (os.path.join(partial, LOG), os.path.join(partial, CONFIG), partial):
        fsync_dir(path)
    with open_store(partial, {**manifest.settings, **(settings or {})}, progress=progress):
        pass
    if os.path.isdir(root):
        os.rmdir(root)
    os.rename(partial, root)
    fsync_dir(os.path.dirname(os.path.abspath(root)))
    return RestoreReport(root, manifest.start, manifest.end, len(manifest.files), total)


def _restore_file(directory: str, root: str, saved: SavedFile, file_size: int) -> None:
    source, target, crc = os.path.join(directory, LOG, saved.name), os.path.join(root, LOG, saved.name), 0
    with _naming(target), open(source, "rb") as file, open(target, "wb") as out:
        left = saved.size
        while left:
            piece = file.read(min(PIECE, left))
            if not piece:
                break
            crc = zlib.crc32(piece, crc)
            out.write(piece)
            left -= len(piece)
        if left or crc != saved.crc:
            raise StoreError(
                f"{source}: the backup is damaged: "
                + (f"{left} bytes are missing" if left else f"CRC {crc:08x} is not {saved.crc:08x}")
            )
        out.truncate(file_size)
        out.flush()
        os.fsync(out.fileno())
