"""Verify and repair of an archive, without its store.

verify    the manifest, sizes of what it names, with `read` every byte's SHA-256; what nothing names
repair    units made again from their file; a manifest that is gone made again from the files; what is gone is left out;
          what nothing names is deleted
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping

import numpy as np

from mqlake.base.progress import Progress, no_progress
from mqlake.errors import ArchiveUnavailableError, NotThereError, StoreError
from mqlake.formats.names import file_name_to_offset
from mqlake.message import DEFAULT_MESSAGE_DELAY_LEVEL, parse_delay_levels
from mqlake.store.archive.heads import heads_name
from mqlake.store.archive.manifest import (
    CONFIG,
    LOG,
    MANIFEST,
    PARTS,
    UNITS,
    ArchivedObject,
    Manifest,
    SmallObject,
    encode,
    read_manifest,
)
from mqlake.store.archive.target import PIECE_BYTES, Target
from mqlake.store.archive.units import survey
from mqlake.store.heads import HEADS


@dataclasses.dataclass(slots=True)
class ArchiveReport:
    """Physical offsets, bytes, times in ms. `troubles` are sentences; `orphans` names of objects that nothing names."""

    archive: str
    begin: int = 0
    end: int = 0
    objects: int = 0
    bytes: int = 0
    first_store_timestamp: int = 0
    last_store_timestamp: int = -1
    saved_timestamp: int = 0
    checked_bytes: int = 0
    holes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    troubles: list[str] = dataclasses.field(default_factory=list)
    orphans: list[str] = dataclasses.field(default_factory=list)
    repaired: list[str] = dataclasses.field(default_factory=list)


def describe(target: Target, manifest: Manifest) -> ArchiveReport:
    """Returns the report that a manifest gives."""
    objects = manifest.objects
    pairs = itertools.pairwise(objects)
    return ArchiveReport(
        target.url,
        manifest.begin,
        manifest.end,
        len(objects),
        manifest.size,
        min((each.first_time_ms for each in objects if each.records), default=0),
        manifest.last_time_ms,
        manifest.saved_at_ms,
        holes=[(one.end, other.start) for one, other in pairs if one.end < other.start],
    )


def verify(target: Target, *, read: bool = False, progress: Progress = no_progress) -> ArchiveReport:
    """Looks at an archive; `read`: at every byte. NotThereError if there is none; ArchiveUnavailableError, also for a
    damaged manifest."""
    manifest = read_manifest(target)
    if manifest is None:
        raise NotThereError(
            f"{target}: there is no {MANIFEST}, so no archive; if its files are there, `mqlake store archive repair` "
            "makes one"
        )
    report = describe(target, manifest)
    done, total = 0, sum(each.size for each in manifest.objects)
    for each in manifest.objects:
        for name, size, sha256 in _parts(each):
            if trouble := _trouble(target, name, size, sha256, read=read):
                report.troubles.append(trouble)
            report.checked_bytes += size if read else 0
        done += each.size
        progress(done, total)
    if manifest.config is not None:
        config = manifest.config
        if trouble := _trouble(target, config.name, config.size, config.sha256, read=True):
            report.troubles.append(trouble)
    report.orphans = sorted(_names(target) - _named(manifest))
    return report


def _parts(archived: ArchivedObject) -> Iterator[tuple[str, int, str]]:
    yield archived.name, archived.size, archived.sha256
    if archived.units is not None:
        yield archived.units.name, archived.units.size, archived.units.sha256


def _named(manifest: Manifest) -> set[str]:
    names = {name for each in manifest.objects for name, _, _ in _parts(each)}
    names |= {heads_name(each) for each in manifest.objects if each.is_whole}  # which need not be there
    return names | ({manifest.config.name} if manifest.config is not None else set())


def _names(target: Target) -> set[str]:
    return {name for directory in (LOG, PARTS, UNITS, CONFIG, HEADS) for name in target.sizes(directory)}


def _trouble(target: Target, name: str, size: int, sha256: str, *, read: bool) -> str:
    there = target.size(name)
    if there is None:
        return f"{name} is gone"
    if there != size:
        return f"{name} has {there} bytes instead of {size}"
    if read:
        digest = hashlib.sha256()
        try:
            for piece in target.pieces(name, size):
                digest.update(piece)
        except FileNotFoundError:
            return f"{name} is gone"
        if digest.hexdigest() != sha256:
            return f"{name} has other bytes: its SHA-256 is {digest.hexdigest()}"
    return ""


# ---------------------------------------------------------------------- repair


def repair(
    target: Target,
    *,
    dry_run: bool = False,
    settings: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> ArchiveReport:
    """Makes again what can be. `settings`: of the store, for a manifest that is gone. Raises what verify() raises,
    StoreError for files of different sizes."""
    try:
        manifest = read_manifest(target)
    except ArchiveUnavailableError as error:
        if "damaged" not in str(error):
            raise
        manifest = None
    if manifest is None:
        return _made_again(target, dict(settings or {}), dry_run=dry_run, progress=progress)
    report = verify(target, read=True, progress=progress)
    kept: list[ArchivedObject] = []
    for each in manifest.objects:
        if _trouble(target, each.name, each.size, each.sha256, read=False):
            report.repaired.append(
                f"offsets {each.start} to {each.end} are left out: {each.name} is not whole"
            )
            continue
        if each.units is not None and _trouble(
            target, each.units.name, each.units.size, each.units.sha256, read=True
        ):
            report.repaired.append(f"{each.units.name} is made again")
            if not dry_run:
                each = _surveyed(target, each.name, each.start, each.end, each.sha256)
        kept.append(each)
    if not dry_run:
        if tuple(kept) != manifest.objects:
            target.replace(MANIFEST, encode(manifest.following(kept)))
        for name in report.orphans:
            target.delete(name)
    report.repaired += [f"{name}, which nothing names, is deleted" for name in report.orphans]
    return report


def _made_again(
    target: Target, settings: dict[str, str], *, dry_run: bool, progress: Progress
) -> ArchiveReport:
    """A manifest of the whole files that are there. NotThereError if there are none."""
    sizes = {name: size for name, size in target.sizes(LOG).items() if _offset(name) is not None}
    if not sizes:
        raise NotThereError(f"{target}: there is no {MANIFEST} and no file of a log, so no archive")
    if len(set(sizes.values())) > 1:
        raise StoreError(
            f"{target}: its files have {sorted(set(sizes.values()))} bytes, and should have one size: delete "
            "those that "
            "were cut short"
        )
    file_size, total = next(iter(sizes.values())), sum(sizes.values())
    objects: list[ArchivedObject] = []
    for name in sizes:
        start = _offset(name)
        assert start is not None
        if not dry_run:
            objects.append(_surveyed(target, name, start, start + file_size, ""))
        progress(len(objects) * file_size, total)
    config = _newest_config(target)
    settings.setdefault("mappedFileSizeCommitLog", str(file_size))
    # above whatever a store remembers of the one that is gone
    sequence = int(config.name.rpartition("/")[2]) + 1_000_000 if config is not None else 1_000_000
    manifest = Manifest(file_size, settings=settings, sequence=sequence).following(objects, config)
    if not dry_run:
        target.replace(MANIFEST, encode(manifest))
    report = describe(target, manifest)
    report.repaired.append(f"{MANIFEST} is made again from {len(sizes)} files")
    return report


def _offset(name: str) -> int | None:
    return file_name_to_offset(name.rpartition("/")[2])


def _newest_config(target: Target) -> SmallObject | None:
    names = list(target.sizes(CONFIG))
    if not names:
        return None
    data = target.read(names[-1])
    return SmallObject(names[-1], len(data), hashlib.sha256(data).hexdigest())


def _surveyed(target: Target, name: str, start: int, end: int, sha256: str) -> ArchivedObject:
    """A whole file as an entry of a manifest, with its units, which are written. `sha256` "": as it is."""
    digest, size = hashlib.sha256(), end - start
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as units:
        for piece in target.pieces(name, size):
            digest.update(piece)
            log.write(piece)
        if sha256 and digest.hexdigest() != sha256:
            raise StoreError(f"{target}/{name} is damaged: its SHA-256 is {digest.hexdigest()}")
        log.flush()
        array = np.memmap(log, np.uint8, "r", shape=(size,))
        levels = parse_delay_levels(DEFAULT_MESSAGE_DELAY_LEVEL)
        found = survey(array, 0, size, start, levels, units.write)
        units_size, units_digest = units.tell(), hashlib.sha256()

        def pieces() -> Iterator[bytes]:
            units.seek(0, os.SEEK_SET)
            while piece := units.read(PIECE_BYTES):
                units_digest.update(piece)
                yield piece

        small_name = f"{UNITS}/{start:020d}"
        target.write(small_name, pieces())
    return ArchivedObject(
        name,
        start,
        end,
        digest.hexdigest(),
        found.first_time_ms,
        found.last_time_ms,
        found.records,
        tuple(sorted(found.topics)),
        SmallObject(small_name, units_size, units_digest.hexdigest()),
    )
