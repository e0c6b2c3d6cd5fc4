"""An archive: the sealed files of a store's log at another place, and what of them continues the store's log backwards.

archive    [0 ........][1 GiB .....][2 GiB .....]          s3://bucket/store/commitlog/…
store                               [2 GiB .....][3 GiB …  the store counts where both have a file
"""

from __future__ import annotations

from collections.abc import Sequence

from mqlake.errors import WrongFileSizeError
from mqlake.formats.names import file_name_to_offset
from mqlake.lake.log.splits import LogFile
from mqlake.lake.log.storage import Storage


def archive_files(archive: Storage) -> list[LogFile]:
    """All files of an archive, oldest first; one listing. WrongFileSizeError when they are not of one size."""
    found: list[LogFile] = []
    for name, size in archive.files("commitlog"):
        offset = file_name_to_offset(name)
        if offset is None:
            continue
        path = archive.path("commitlog", name)
        if found and size != found[0].file_size:
            raise WrongFileSizeError(path, size, found[0].file_size, key="mappedFileSizeCommitLog")
        found.append(LogFile(path, offset, size, size))
    return found


def before(archived: Sequence[LogFile], files: Sequence[LogFile]) -> list[LogFile]:
    """The archived files that end where the log of a store begins, or before."""
    begin = files[0].base_offset if files else None
    return [file for file in archived if begin is None or file.base_offset < begin]
