"""FirstUsers: what `mqlake serve --auth` makes at its first start.

    DIR/auth/first-users.json (0600)   {"admin": a secret, "mqlake-inner": a secret}

`admin` is for people; brokers sign their own requests as `mqlake-inner`. The secret of `admin` is shown once and then
taken out of the file, so that only the sealed users have it.
"""

from __future__ import annotations

import json
import os
import secrets

from mqlake.base.durable import make_dirs, write_durably
from mqlake.errors import ConfigError

FIRST_USER = "admin"
INNER_USER = "mqlake-inner"
FILE_NAME = "first-users.json"


class FirstUsers:
    def __init__(self, directory: str) -> None:
        """Reads the file in `directory`, or makes both. ConfigError, OSError."""
        self._path = os.path.join(directory, FILE_NAME)
        try:
            with open(self._path, encoding="utf-8") as file:
                self._secrets = json.load(file)
            if not isinstance(self._secrets, dict) or not self._secrets.get(INNER_USER):
                raise ValueError(f"a secret of {INNER_USER} is needed")
        except FileNotFoundError:
            make_dirs(directory)
            self._secrets = {name: secrets.token_urlsafe(24) for name in (FIRST_USER, INNER_USER)}
            self._write()
        except ValueError as error:
            raise ConfigError(f"{self._path}: {error}") from None

    def _write(self) -> None:
        write_durably(self._path, json.dumps(self._secrets).encode() + b"\n", mode=0o600)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a broker that has these users."""
        inner = {"accessKey": INNER_USER, "secretKey": self._secrets[INNER_USER]}
        found = {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "innerClientAuthenticationCredentials": json.dumps(inner),
        }
        if secret := self._secrets.get(FIRST_USER):
            found["initAuthenticationUser"] = json.dumps({"username": FIRST_USER, "password": secret})
        return found

    def secret_to_show(self) -> str | None:
        """The secret of `admin`, once: later None."""
        secret: str | None = self._secrets.pop(FIRST_USER, None)
        if secret is not None:
            self._write()
        return secret
