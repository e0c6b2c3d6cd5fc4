"""Checks for packages that only some of the lake needs; errors have the command that installs them."""

from __future__ import annotations

import importlib.util

from mqlake.errors import MissingPartError


def require_modules(*names: str, command: str) -> None:
    """Raises MissingPartError for the first of these packages that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingPartError(f"the Python package {name}", command)
