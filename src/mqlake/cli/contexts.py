"""Contexts: clusters by name, each with its name servers, credentials and TLS, in one private file.

{"current": "test", "contexts": {"test": {"namesrv": "10.0.0.1:9876", "accessKey": …, "secretKey": …}}}
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from typing import Any

from mqlake.base.durable import make_dirs, write_durably
from mqlake.errors import ConfigError, NotFoundError

FILE_VARIABLE, NAME_VARIABLE = "MQLAKE_CONTEXTS", "MQLAKE_CONTEXT"
PRIVATE = 0o600
_KEYS = {
    "namesrv": "namesrv",
    "tls": "tls",
    "tls_ca": "tlsCa",
    "tls_cert": "tlsCert",
    "access_key": "accessKey",
    "secret_key": "secretKey",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """As the options of the same names; what is empty is not set."""

    namesrv: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    access_key: str = ""
    secret_key: str = dataclasses.field(default="", repr=False)

    def shown(self) -> dict[str, Any]:
        """Returns the settings, with the secret masked."""
        found = {key: getattr(self, name) for name, key in _KEYS.items() if getattr(self, name)}
        return found | ({"secretKey": "******"} if self.secret_key else {})


@dataclasses.dataclass(frozen=True, slots=True)
class Contexts:
    contexts: dict[str, Context] = dataclasses.field(default_factory=dict)
    current: str = ""

    def named(self, name: str) -> Context:
        """NotFoundError if there is none of that name."""
        if name not in self.contexts:
            error = NotFoundError(name, self.contexts, what="context")
            error.add_note("`mqlake context list` lists them")
            raise error
        return self.contexts[name]


def path_of_contexts() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.environ.get(FILE_VARIABLE) or os.path.join(base, "mqlake", "contexts.json")


def read_contexts() -> Contexts:
    """ConfigError names the file; OSError."""
    path = path_of_contexts()
    try:
        with open(path, "rb") as file:
            mode, raw = stat.S_IMODE(os.fstat(file.fileno()).st_mode), file.read()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    if mode & 0o077:
        raise ConfigError(f"{path}: others may read it (mode {mode:o}); chmod 600 {path}")
    try:
        found = json.loads(raw)
        contexts = {str(name): _context(fields) for name, fields in found.get("contexts", {}).items()}
        return Contexts(contexts, str(found.get("current") or ""))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _context(fields: dict[str, Any]) -> Context:
    unknown = fields.keys() - set(_KEYS.values())
    if unknown:
        raise ValueError(f"unknown key {min(unknown)}")
    given = {name: fields[key] for name, key in _KEYS.items() if key in fields}
    wrong = next(
        (name for name, value in given.items() if type(value) is not (bool if name == "tls" else str)), None
    )
    if wrong is not None:
        raise ValueError(f"{_KEYS[wrong]}: {given[wrong]!r} is of the wrong type")
    return Context(**given)


def write_contexts(contexts: Contexts) -> None:
    """OSError."""
    stored = {
        name: {key: getattr(each, field) for field, key in _KEYS.items() if getattr(each, field)}
        for name, each in sorted(contexts.contexts.items())
    }
    path = path_of_contexts()
    make_dirs(os.path.dirname(os.path.abspath(path)))
    data = json.dumps({"current": contexts.current, "contexts": stored}, indent=2, ensure_ascii=False)
    write_durably(path, data.encode() + b"\n", mode=PRIVATE)
