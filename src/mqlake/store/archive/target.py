"""Target: the place of an archive, as fsspec opens it: ranges are read, objects are written whole.

    s3://bucket/prefix, gs://…, memory://…     an object is there when it is whole; large ones go up in parts
    file:///data/archive                       written beside, synced, and renamed

Whatever the library of a place raises becomes ArchiveUnavailableError, which says that it may be tried again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mqlake.base.durable import fsync_dir, make_dirs
from mqlake.base.net import reason_of
from mqlake.errors import ArchiveUnavailableError, ConfigError, MissingPartError

PIECE_BYTES = 16 << 20
"""Read, and uploaded, at once; parts of an upload are at least 5 MiB in S3."""
INSTALL = "pip install 'mqlake[archive]'"
LOCAL = ("file", "local")


class Target:
    """`url` names the place, such as s3://bucket/prefix; `options` go to fsspec. ConfigError for what nothing opens,
    MissingPartError where a library is not installed."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        if "://" not in url:
            raise ConfigError(
                f"{url!r} is no place for an archive: name one that fsspec opens, such as s3://bucket/store or "
                "file:///data/archive"
            )
        self.url = url.rstrip("/")
        self._options = dict(options or {})
        self._fs, self._root = self._open()
        protocol = self._fs.protocol
        self._is_local = (protocol if isinstance(protocol, str) else protocol[0]) in LOCAL

    def _open(self) -> tuple[Any, str]:
        try:
            import fsspec.core
        except ImportError:
            raise MissingPartError("fsspec", INSTALL) from None
        try:
            fs, root = fsspec.core.url_to_fs(self.url, **self._options)
        except ImportError as error:
            raise MissingPartError(f"what opens {self.url}", INSTALL, why=str(error)) from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"archive {self.url}: {error}") from error
        except OSError as error:  # some file systems connect at once, as that of FTP
            raise ArchiveUnavailableError(f"{self.url} cannot be reached: {reason_of(error)}") from error
        return fs, str(root).rstrip("/")

    def __str__(self) -> str:
        return self.url

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _reached(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ArchiveUnavailableError, FileNotFoundError):
            raise
        except Exception as error:
            text = str(error) or type(error).__name__
            raise ArchiveUnavailableError(f"{self.url}/{name} cannot be reached: {text}") from error

    # ------------------------------------------------------------------ reading

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The object's bytes, or those from `start` to `end`. FileNotFoundError; ArchiveUnavailableError, also for
        fewer bytes than `end` asks for."""
        with self._reached(name):
            if end is None:
                found = self._fs.cat_file(self.path(name))
            else:
                found = self._fs.cat_file(self.path(name), start=start, end=end)
        if end is not None and len(found) != end - start:
            raise ArchiveUnavailableError(
                f"{self.url}/{name} gave {len(found)} bytes for those from {start} to {end}: it is cut short"
            )
        return bytes(found)

    def pieces(self, name: str, size: int) -> Iterator[bytes]:
        """The object's first `size` bytes. Raises what read() raises."""
        for start in range(0, size, PIECE_BYTES):
            yield self.read(name, start, min(start + PIECE_BYTES, size))

    def size(self, name: str) -> int | None:
        """None when there is no such object. ArchiveUnavailableError."""
        with self._reached(name):
            self._forget(name)
            try:
                found = self._fs.info(self.path(name))
            except FileNotFoundError:
                return None
        return int(found["size"])

    def sizes(self, directory: str) -> dict[str, int]:
        """Names, with the directory, and sizes of what is in it, as one listing gives them; a listing may be old.
        ArchiveUnavailableError."""
        with self._reached(directory):
            self._forget(f"{directory}/x")
            try:
                entries = self._fs.ls(self.path(directory), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        names = {
            f"{directory}/{entry['name'].rstrip('/').rpartition('/')[2]}": int(entry["size"] or 0)
            for entry in entries
            if entry["type"] == "file"
        }
        return dict(sorted(names.items()))

    def _forget(self, name: str) -> None:
        """Drops the listings that fsspec remembers."""
        self._fs.invalidate_cache(self.path(name).rpartition("/")[0])

    # ------------------------------------------------------------------ writing

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Writes an object, which is there when it is whole. ArchiveUnavailableError."""
        with self._reached(name):
            if self._is_local:
                self._write_local(self.path(name), pieces)
                return
            self._fs.makedirs(self.path(name).rpartition("/")[0], exist_ok=True)
            # closing it would publish what there is of it, also after an error
            file = self._fs.open(self.path(name), "wb", block_size=PIECE_BYTES)
            try:
                for piece in pieces:
                    file.write(piece)
            except BaseException:
                with contextlib.suppress(Exception):
                    file.discard()
                file.closed = True
                raise
            file.close()

    @staticmethod
    def _write_local(path: str, pieces: Iterable[bytes | memoryview]) -> None:
        directory = os.path.dirname(path)
        make_dirs(directory)
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_dir(directory)

    def replace(self, name: str, data: bytes) -> None:
        """Writes a small object in one step: readers find the old one or the new one. ArchiveUnavailableError."""
        with self._reached(name):
            if self._is_local:
                self._write_local(self.path(name), [data])
            else:
                self._fs.pipe_file(self.path(name), data)

    def delete(self, name: str) -> None:
        """Also good when it is gone already. ArchiveUnavailableError."""
        with self._reached(name), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self.path(name))
        self._forget(name)


def parse_options(text: str) -> dict[str, str]:
    """`key=value;key=value` as fsspec's options. ConfigError."""
    found: dict[str, str] = {}
    for each in filter(None, (part.strip() for part in text.split(";"))):
        key, equals, value = each.partition("=")
        if not equals or not key.strip() or key.strip() in found:
            raise ConfigError(
                f"archiveOptions: {each!r} is not key=value, or comes twice; `;` separates options"
            )
        found[key.strip()] = value.strip()
    return found
