"""offload: the finished files of a store's log brought to an archive by a command, beside a broker or without one.

    DIR/commitlog/00000000000000000000 ─▶ TARGET/commitlog/00000000000000000000 ─▶ read back, its SHA-256 compared
                  00000000001073741824 ─▶ …
                  00000000002147483648     the newest: the broker writes it, it stays

The broker does the same with `archive=TARGET`, and archives the newest file, too. Nothing is written to the store, and
nothing of it deleted: the broker's retention does that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mqlake.base.progress import Progress, no_progress
from mqlake.store.archive.target import Target
from mqlake.store.archive.uploader import Uploader
from mqlake.store.config import MessageStoreConfig
from mqlake.store.file_sizes import detect_settings
from mqlake.store.files.mapped_file_queue import MappedFileQueue
from mqlake.store.files.store_directory import check_is_store
from mqlake.store.log.log_reader import LogReader, open_log


@dataclasses.dataclass(frozen=True)
class OffloadReport:
    """Files, and bytes of the log. `begin` to `end`: the physical offsets that the target now has, of this log."""

    target: str
    copied: int
    copied_bytes: int
    already_there: int
    begin: int
    end: int


def offload(
    directory: str,
    target: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    recheck: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> OffloadReport:
    """Copies what the target lacks, oldest first. `recheck` also reads and compares what is there already.

    Raises NotAStoreError and its like for the directory; ConfigError for a target that nothing opens; StoreError when
    the target has another log's files, or gives back other bytes than it was given; ArchiveUnavailableError.
    """
    place = Target(target, storage_options)
    check_is_store(directory, must_exist=True)
    config = dataclasses.replace(
        MessageStoreConfig.from_mapping(detect_settings(directory)), store_path_root_dir=directory
    )
    files, done = open_log(config), 0
    try:
        LogReader(files).find_end()
        total = 2 * sum(each.file_size for each in files.mapped_files[:-1])  # written, and read back

        def advance(size: int) -> None:
            nonlocal done
            done += size
            progress(min(done, total), total)

        uploader = Uploader(config, place, keeps_copy=False, advance=advance)
        uploader.refresh(files)
        _forget_cut(uploader)
        end = files.mapped_files[-1].file_from_offset if files.mapped_files else 0
        lacking = uploader.lacking(files, end)
        sealed = len(files.mapped_files[:-1])
        if recheck and not dry_run:
            _recheck(uploader, files)
        if not dry_run:
            uploader.upload(files, lambda: end, with_part=False)
        return OffloadReport(
            place.url,
            len(lacking),
            sum(each.file_size for each in lacking),
            sealed - len(lacking),
            files.min_offset if sealed else 0,
            end if sealed else 0,
        )
    finally:
        files.close()


def _forget_cut(uploader: Uploader) -> None:
    """Forgets entries of the manifest whose object has another size, so that they are made again: a place may have
    lost the end of a file in a crash."""
    sizes = uploader.target.sizes("commitlog")
    manifest = uploader.manifest
    # a listing may be old: what it lacks is there
    kept = tuple(each for each in manifest.objects if sizes.get(each.name, each.size) == each.size)
    uploader.manifest = dataclasses.replace(manifest, objects=kept)


def _recheck(uploader: Uploader, files: MappedFileQueue) -> None:
    for each in uploader.manifest.objects:
        source = files.find_mapped_file_by_offset(each.start)
        if source is not None and each.is_whole:
            uploader.compare(each.name, each.size, uploader.sha256_of(source, each), source.path)
