"""Plug-ins: entry points of installed packages, as Java's ServiceLoader finds services.

[project.entry-points."mqlake.send_message_hooks"]      in the plug-in's pyproject.toml
audit = "my_package.hooks:AuditHook"
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from mqlake.errors import ConfigError


class Plugin(NamedTuple):
    name: str
    """The names of the entry point and its package, for logs and errors."""
    value: Any
    """The object that the entry point names."""


def load_plugins(group: str) -> list[Plugin]:
    """All plug-ins of `group`, in the order of their names. ConfigError if one fails to load."""
    return [Plugin(_name_of(entry), _load(entry)) for entry in sorted(entry_points(group=group))]


def load_plugin(group: str, name: str) -> Plugin:
    """The plug-in of this name. ConfigError if no package or more than one offers it, or it fails to load."""
    offered = entry_points(group=group)
    found = list(offered.select(name=name))
    if not found:
        names = ", ".join(sorted(offered.names)) or "none"
        raise ConfigError(f"no installed package has an entry point {name!r} in {group}; there are: {names}")
    if len(found) > 1:
        owners = ", ".join(map(_name_of, found))
        raise ConfigError(f"several installed packages have an entry point {name!r} in {group}: {owners}")
    return Plugin(_name_of(found[0]), _load(found[0]))


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
