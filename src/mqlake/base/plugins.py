"""Plug-ins: entry points of installed packages, as Java's ServiceLoader finds services.

[project.entry-points."mqlake.send_message_hooks"]      in the plug-in's pyproject.toml
audit = "my_package.hooks:AuditHook"
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from mqlake.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Plugin(NamedTuple):
    name: str
    """The names of the entry point and its package, for logs and errors."""
    value: Any
    """The object that the entry point names."""


def load_plugins(group: str) -> list[Plugin]:
    """All plug-ins of `group`, in the order of their names. ConfigError if one fails to load."""
    if not _may_be_offered(group):
        return []
    from importlib.metadata import entry_points

    return [Plugin(_name_of(entry), _load(entry)) for entry in sorted(entry_points(group=group))]


def load_plugin(group: str, name: str) -> Plugin:
    """The plug-in of this name. ConfigError if no package or more than one offers it, or it fails to load."""
    from importlib.metadata import entry_points

    offered = entry_points(group=group)
    found = list(offered.select(name=name))
    if not found:
        names = ", ".join(sorted(offered.names)) or "none"
        raise ConfigError(f"no installed package has an entry point {name!r} in {group}; there are: {names}")
    if len(found) > 1:
        owners = ", ".join(map(_name_of, found))
        raise ConfigError(f"several installed packages have an entry point {name!r} in {group}: {owners}")
    return Plugin(_name_of(found[0]), _load(found[0]))


def _may_be_offered(group: str) -> bool:
    """Returns True if an installed package may have plug-ins of `group`: importlib.metadata, which knows, takes 1.6
    MB, and most processes have no plug-in."""
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if not _is_pythons(finder)):
        return True
    header = f"[{group}]".encode()
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except NotADirectoryError:
            return True  # an archive
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info", ".egg")):
                found = _entry_points_in(os.path.join(place, name))
                if found is None or header in found:
                    return True
    return False


def _is_pythons(finder: object) -> bool:
    return getattr(finder, "__module__", "") == "_frozen_importlib_external"


def _entry_points_in(metadata: str) -> bytes | None:
    """The text of a package's entry points; None when only importlib.metadata can read it."""
    if metadata.endswith(".egg"):
        return None
    try:
        with open(os.path.join(metadata, "entry_points.txt"), "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError:
        return None


def _name_of(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"{entry.name} ({entry.value}{package})"


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise ConfigError(
            f"the plug-in {_name_of(entry)} of {entry.group} cannot be loaded: {type(error).__name__}: {error}; "
            "repair or uninstall its package"
        ) from error
