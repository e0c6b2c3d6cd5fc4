"""Deleting or archiving a segment's file, by a delete policy.

delete     unlinked
archive    NAME.meta → NAME.meta.arc, or with compression → NAME.meta.zip with one entry NAME.meta
"""

from __future__ import annotations

import os
import zipfile

from mqlake.base.durable import fsync_dir
from mqlake.metaq.config.values import DeletePolicy


def process_segment(policy: DeletePolicy, path: str) -> None:
    """Applies the policy to the file at `path`, durably. After an OSError the file still exists."""
    if policy.name == "delete":
        os.unlink(path)
    elif policy.compress:
        _zip(path)
        os.unlink(path)
    else:
        os.replace(path, f"{path}.arc")
    fsync_dir(os.path.dirname(path))


def _zip(path: str) -> None:
    temporary = f"{path}.zip.tmp"
    try:
        with open(temporary, "wb") as raw:
            with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
                archive.write(path, os.path.basename(path))
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(temporary, f"{path}.zip")
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
