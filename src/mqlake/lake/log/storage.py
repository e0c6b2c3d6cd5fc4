"""The place of a store: a local directory, whose files are mapped, or one that fsspec opens, whose files are read.

    /data/store, file:///data/store       mapped; a writer may be at work in it
    s3://bucket/store, memory://store     read in ranges; a copy that no broker writes to

Whatever fsspec knows by its scheme will do, pyarrow's file systems among them (`hdfs://`).
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from mqlake.errors import ConfigError, NotAStoreError
from mqlake.formats.arrow import Bytes
from mqlake.store.files.store_directory import check_is_store


@dataclass(frozen=True)
class Storage:
    """One store directory. `options` go to the file system (fsspec's storage options); `name`: what errors call it."""

    root: str
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = field(default="path", compare=False)

    @classmethod
    def at(cls, path: str, options: Mapping[str, Any] = MappingProxyType({}), name: str = "path") -> Storage:
        """A place as a user gives it: one local directory has one root, which checkpoints know it by."""
        path = path.removeprefix("file://")
        root = path if "://" in path else os.path.normpath(os.path.expanduser(path))
        return cls(root, options, name)

    @property
    def is_local(self) -> bool:
        return "://" not in self.root

    def check(self) -> None:
        """Raises NotAStoreError, ForeignFormatError, ConfigError for a place that nothing opens, or what the file
        system says of one that it cannot reach."""
        if self.is_local:
            check_is_store(self.root, must_exist=True)
        elif "commitlog" not in self.directories(""):
            self._check_bucket()
            raise NotAStoreError(f"{self.root}: not a RocketMQ store: there is no directory commitlog in it")

    def _check_bucket(self) -> None:
        """NotAStoreError when not even the first part of the path is there, such as a bucket with another name."""
        scheme, _, path = self.root.partition("://")
        bucket = path.strip("/").partition("/")[0]
        if not bucket:
            return
        fs, inside = self.file_system(f"{scheme}://{bucket}")
        with self._reached():
            is_there = fs.exists(inside)
        if not is_there:
            raise NotAStoreError(
                f"{self.root}: there is no {bucket!r} at {scheme}://: is the name right, and may it be listed?"
            )

    def path(self, *parts: str) -> str:
        return (
            "/".join([self.root.rstrip("/"), *parts])
            if not self.is_local
            else os.path.join(self.root, *parts)
        )

    def files(self, directory: str) -> list[tuple[str, int]]:
        """Names and sizes of the files of a directory, by name; none when there is no such directory."""
        return sorted((name, size) for name, size, is_file in self._entries(directory) if is_file)

    def directories(self, directory: str) -> list[str]:
        if self.is_local:
            try:
                with os.scandir(self.path(directory)) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(name for name, _, is_file in self._entries(directory) if not is_file)

    def _entries(self, directory: str) -> list[tuple[str, int, bool]]:
        where = self.path(directory) if directory else self.root
        if self.is_local:
            try:
                with os.scandir(where) as entries:
                    return [(e.name, e.stat().st_size, e.is_file()) for e in entries]
            except (FileNotFoundError, NotADirectoryError):
                return []
        fs, path = self.file_system(where)
        fs.invalidate_cache()
        try:
            with self._reached():
                entries = fs.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [
            (entry["name"].rstrip("/").rsplit("/", 1)[-1], entry["size"] or 0, entry["type"] == "file")
            for entry in entries
        ]

    def exists(self, name: str) -> bool:
        if self.is_local:
            return os.path.exists(self.path(name))
        fs, path = self.file_system(self.path(name))
        with self._reached():
            return bool(fs.exists(path))

    def map(self, path: str, size: int, *, random: bool = False) -> Bytes:
        """The file's first `size` bytes: mapped when it is local, else read; `random`: without reading ahead."""
        if not self.is_local or size == 0:
            return self.read(path, 0, size)
        with io.FileIO(path) as file:
            return mapped(file, size, random=random)

    def read(self, path: str, start: int, end: int) -> Bytes:
        """The bytes from `start` to `end`, fewer where the file ends before."""
        if self.is_local:
            with open(path, "rb") as file:
                file.seek(start)
                return np.frombuffer(file.read(end - start), np.uint8)
        fs, path = self.file_system(path)
        with self._reached():
            return np.frombuffer(fs.cat_file(path, start=start, end=end), np.uint8)

    def json_object(self, directory: str, name: str) -> dict[str, Any]:
        """Reads a file with a JSON object; empty when it is not there, cannot be read, or has no object."""
        path = self.path(directory, name) if directory else self.path(name)
        try:
            size = dict(self.files(directory)).get(name, 0)
            found = json.loads(self.read(path, 0, size).tobytes()) if size else {}
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """ConnectionError where a file system fails with an error of its own library."""
        try:
            yield
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise ConnectionError(f"{self.root} cannot be reached: {error}") from error

    def file_system(self, path: str) -> tuple[Any, str]:
        """fsspec's, and the path as it is called there. ConfigError for a place that nothing opens."""
        import fsspec.core

        try:
            fs, inside = fsspec.core.url_to_fs(path, **self.options)
        except (ImportError, TypeError, ValueError) as error:  # no such scheme, or what opens it is missing
            raise ConfigError(f"{self.name} is {self.root!r}: {error}") from error
        return fs, inside


def mapped(file: io.FileIO, size: int, *, random: bool = False) -> Bytes:
    """The file's first `size` bytes, at least one; `random`: without reading ahead around each page that is touched."""
    mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    if random and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapping, np.uint8)
