"""The sizes of a store's files, read from the files themselves, so that a store opens as it was made.

commitlog/<offset>                  mappedFileSizeCommitLog: the length that most of them have
consumequeue/<topic>/<queue>/...    mappedFileSizeConsumeQueue, and so on: the first whole number of units
index/<time>                        maxHashSlotNum and maxIndexNum: see index_sizes
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Collection, Iterator

from mqlake.errors import ConfigError, StoreCorruptError
from mqlake.formats.batch_consume_queue import BCQ_STORE_UNIT_SIZE
from mqlake.formats.consume_queue import CQ_STORE_UNIT_SIZE
from mqlake.store.config import MessageStoreConfig
from mqlake.store.index.index_sizes import any_sizes, index_sizes, usual_sizes

LOG_SIZE = "mappedFileSizeCommitLog"
INDEX_SIZES = ("maxHashSlotNum", "maxIndexNum")
LOG_FILE_SIZE_MIN = 1024
"""The least that mappedFileSizeCommitLog may say."""


def fit_to_files(config: MessageStoreConfig, given: Collection[str]) -> MessageStoreConfig:
    """A writer's configuration with the file sizes of the store that is there, but for the keys that were `given`.

    The only file of a log that was not closed does not count: it may have been cut short, and opening it says so; of
    a closed one recovery misses what it was cut by. Raises ConfigError that names every given size that the files
    contradict, and what detect_settings() raises.
    """
    found = detect_settings(config.store_path_root_dir, config.commit_log_dir)
    found.pop("enableConsumeQueueExt", None)  # no size
    alike = sum(size == found.get(LOG_SIZE) for size in _file_sizes(config.commit_log_dir, 0))
    if alike < 2 and os.path.exists(config.abort_path):
        found.pop(LOG_SIZE, None)
    there = config.replaced(found)
    if there.index_file_size == config.index_file_size:  # many pairs make one length
        found = {key: size for key, size in found.items() if key not in INDEX_SIZES}
    set_to, made_with = config.to_mapping(), there.to_mapping()
    wrong = [key for key in found if key in given and set_to[key] != made_with[key]]
    if wrong:
        raise ConfigError(
            f"the files in {config.store_path_root_dir} were made with other sizes than set: "
            + ", ".join(f"{key}={made_with[key]} and not {set_to[key]}" for key in wrong)
            + "; leave these settings out, and the sizes are taken from the files"
        )
    return config.replaced({key: size for key, size in found.items() if key not in given})


def detect_settings(root: str, log: str | None = None) -> dict[str, object]:
    """The file sizes a store was written with, as settings: read from the lengths of its files. `log`: the directory
    of its log; None: root/commitlog.

    StoreCorruptError when most files of the log are shorter than any may be.
    """

    def under(name: str) -> str:
        return os.path.join(root, name)

    found: dict[str, object] = {}
    for key, directory, depth, unit_size in (
        (LOG_SIZE, log or under("commitlog"), 0, 1),
        ("mappedFileSizeConsumeQueue", under("consumequeue"), 2, CQ_STORE_UNIT_SIZE),
        ("mappedFileSizeConsumeQueueExt", under("consumequeue_ext"), 2, 1),
        ("mapperFileSizeBatchConsumeQueue", under("batchconsumequeue"), 2, BCQ_STORE_UNIT_SIZE),
    ):
        sizes = _file_sizes(directory, depth)
        if depth == 0:  # the log's files are few, and one of them may have been cut short
            size = max(Counter(sizes).items(), key=lambda item: item[::-1], default=(0, 0))[0]
            if 0 < size < LOG_FILE_SIZE_MIN:
                raise _cut_short(directory, size)
        else:
            size = next((size for size in sizes if size % unit_size == 0), 0)
        if size:
            found[key] = size
    if os.path.isdir(under("consumequeue_ext")):
        found["enableConsumeQueueExt"] = True
    sizes_of_index = _index_sizes(under("index"))
    if sizes_of_index is not None:
        found |= zip(INDEX_SIZES, sizes_of_index, strict=True)
    return found


def _index_sizes(directory: str) -> tuple[int, int] | None:
    """Slots and entries of the index files, as the newest that tells has them; by their length when none does."""
    files = list(_files(directory, 0))
    found = (index_sizes(entry.path) for entry in reversed(files))
    lengths = [entry.stat().st_size for entry in files]
    guesses = (guess(length) for guess in (usual_sizes, any_sizes) for length in lengths)
    return next((pair for pair in itertools.chain(found, guesses) if pair is not None), None)


def _cut_short(directory: str, size: int) -> StoreCorruptError:
    """Returns the error for the first file that has this size."""
    names = (name for name in sorted(os.listdir(directory)) if name.isdigit())
    path = next(p for name in names if os.path.getsize(p := os.path.join(directory, name)) == size)
    reason = f"the file was cut short here; one of the log has {LOG_FILE_SIZE_MIN} bytes at least"
    return StoreCorruptError(path, size, reason)


def _file_sizes(directory: str, depth: int) -> Iterator[int]:
    return (entry.stat().st_size for entry in _files(directory, depth))


def _files(directory: str, depth: int) -> Iterator[os.DirEntry[str]]:
    """Files with something in them and a number for a name, in the order of their names."""
    if not os.path.isdir(directory):
        return
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if depth and entry.is_dir():
                yield from _files(entry.path, depth - 1)
            elif not depth and entry.is_file() and entry.name.isdigit() and entry.stat().st_size:
                yield entry
