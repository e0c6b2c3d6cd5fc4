"""A store's configuration as one small object: topics, groups and their offsets, users and acls, in a zip file."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator

from mqlake.base.durable import make_dirs, write_durably
from mqlake.errors import StoreError
from mqlake.store.files.store_directory import ROCKSDB_MARK

SAME_TIME = (1980, 1, 1, 0, 0, 0)
"""So that the same files make the same bytes."""


def _files(directory: str, inside: str = "") -> Iterator[tuple[str, str]]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if not os.path.exists(os.path.join(entry.path, ROCKSDB_MARK)):
                yield from _files(entry.path, f"{inside}{entry.name}/")
        elif entry.is_file(follow_symlinks=False) and not entry.name.endswith((".tmp", ".bak")):
            yield entry.path, inside + entry.name


def pack(directory: str) -> bytes:
    """The files of a configuration directory. OSError."""
    import zipfile  # which a broker without an archive does not need

    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, name in _files(directory):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:  # replaced since
                entry = zipfile.ZipInfo(name, SAME_TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = stat.S_IMODE(os.fstat(file.fileno()).st_mode) << 16
                archive.writestr(entry, file.read())
    return data.getvalue()


def unpack(data: bytes, directory: str, place: str) -> None:
    """Makes the files again, durably. StoreError for what is damaged, or would leave the directory; OSError."""
    import zipfile

    make_dirs(directory)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                path = os.path.normpath(os.path.join(directory, entry.filename))
                if not path.startswith(os.path.join(directory, "")):
                    raise StoreError(f"{place}: {entry.filename!r} does not stay in the directory")
                make_dirs(os.path.dirname(path))
                write_durably(path, archive.read(entry), mode=entry.external_attr >> 16 or 0o600)
    except zipfile.BadZipFile as error:
        raise StoreError(f"{place} is damaged: {error}") from None
