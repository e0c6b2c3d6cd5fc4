"""mappedFilePlugIn: commit log files of a class from outside, as RocketMQ's ServiceLoader takes a MappedFile.

    [project.entry-points."mqlake.mapped_file"]        in the plug-in's pyproject.toml
    persistent-memory = "acme.files:PersistentMemoryFile"      a subclass of MappedFile

The class decides how bytes get into a file and to the disk. The file itself stays what it is, a file of the configured
size with the records at their offsets: readers in other processes, Spark and RocketMQ open it without the class. So
each start has the class write, flush, reopen and delete a few small files, and refuses one that does not keep to that.
"""

from __future__ import annotations

import os

from mqlake.base.plugins import load_plugin
from mqlake.errors import ConfigError
from mqlake.store.files.mapped_file import MappedFile

GROUP = "mqlake.mapped_file"
KEY = "mappedFilePlugIn"
TRIAL_SIZE = 64 << 10
_RECORDS = tuple(size.to_bytes(4, "big") + bytes([size]) * (size - 4) for size in (100, 200))


def mapped_file_class(name: str) -> type[MappedFile]:
    """The class of the entry point `name`; MappedFile when it is empty. ConfigError when there is no such class."""
    if not name:
        return MappedFile
    plugin = load_plugin(GROUP, name)
    if not (isinstance(plugin.value, type) and issubclass(plugin.value, MappedFile)):
        raise ConfigError(f"{KEY}={name}: {plugin.name} is no subclass of {MappedFile.__module__}.MappedFile")
    return plugin.value


def try_mapped_file(mapped_file_type: type[MappedFile], directory: str) -> None:
    """Has a class from outside write and read small files in a new directory below `directory`, which is removed.

    ConfigError names what the class does otherwise than MappedFile. OSError when the directory cannot be written.
    """
    if mapped_file_type is MappedFile:
        return
    import shutil
    import tempfile

    place = tempfile.mkdtemp(prefix="mapped-file-trial-", dir=directory)
    try:
        for buffered, without_mmap in ((False, False), (False, True), (True, False)):
            _try(
                mapped_file_type,
                os.path.join(place, f"{0:020}"),
                write_buffer=memoryview(bytearray(TRIAL_SIZE)) if buffered else None,
                without_mmap=without_mmap,
            )
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{KEY}: {_name(mapped_file_type)} cannot be used: {type(error).__name__}: {error}"
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _name(kind: type[MappedFile]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _try(kind: type[MappedFile], path: str, *, write_buffer: memoryview | None, without_mmap: bool) -> None:
    first, second = _RECORDS
    end = len(first) + len(second)

    def require(what: str, found: object, expected: object) -> None:
        if found != expected:
            raise ConfigError(
                f"{KEY}: {_name(kind)} cannot be used: {what} should be {expected!r}, and is {found!r} "
                f"(transient store pool: {write_buffer is not None}, writeWithoutMmap: {without_mmap})"
            )

    def on_disk() -> bytes:
        with open(path, "rb") as file:
            return file.read()

    made = kind(path, TRIAL_SIZE, write_buffer=write_buffer, without_mmap=without_mmap)
    try:
        require("the size of a new file", os.path.getsize(path), TRIAL_SIZE)
        require("where the first record goes", made.append_record(first, 1), 0)
        require("where the second record goes", made.append_record(second, 2), len(first))
        require("wrote_position", made.wrote_position, end)
        before = 0 if write_buffer is not None else end
        require("read_position before the commit", made.read_position, before)
        require("what commit() returns", made.commit(0), end)
        require("what flush() returns", made.flush(0), end)
        require("the bytes in the file", on_disk()[: end + 4], first + second + bytes(4))
        selected = made.select(len(first), len(second))
        require("what select() gives", None if selected is None else bytes(selected), second)
        require("what select() gives beyond the end", made.select(end - 1, 2), None)
    finally:
        made.close()
    again = kind(path, TRIAL_SIZE, without_mmap=without_mmap)
    try:
        require("the bytes of a file that is opened again", bytes(again.view[:end]), first + second)
        again.set_positions(len(first))
        again.erase(len(first))
        require("the bytes after erase()", on_disk()[: end + 4], first + bytes(len(second) + 4))
    finally:
        again.destroy()
    require("whether a destroyed file is there", os.path.exists(path), False)
