"""Storage: all users and acls in one file, accessControl.jsonl, with passwords that are sealed by a key file.

    {"format":"mqlake access control","version":1}
    {"user":{"password":"sealed:…","subjectType":1,"userStatus":1,"userType":1,"username":"admin"}}
    {"acl":{"policies":[…],"subject":{"subjectType":1,"username":"alice"}}}

A line for each user and acl; the objects are those that RocketMQ's broker keeps in RocksDB (config/users and
config/acls), apart from the password. HMAC needs the secret itself, so it cannot be a hash: it is sealed (AES-256-GCM,
with the user's name as associated data) with the key in accessControl.key, which nobody but the broker's user may read.
A password that somebody wrote in clear is read, too, and sealed with the next change.

One file, written whole: a crash at any point leaves the old state or the new one, and no acl outlives its user. What
cannot be read is an error with file and line: a broker that guessed could let in whom it must not.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat

from mqlake.auth.model import (
    Acl,
    IllegalError,
    User,
    acl_from_stored,
    acl_to_stored,
    user_from_stored,
    user_to_stored,
)
from mqlake.auth.state import State
from mqlake.base.durable import fsync_dir, make_dirs, write_durably
from mqlake.errors import ConfigError, MissingPartError

FILE_NAME = "accessControl.jsonl"
KEY_NAME = "accessControl.key"
SEALED = "sealed:"
FORMAT = "mqlake access control"
VERSION = 1
KEY_SIZE = 32
NONCE_SIZE = 12
PRIVATE = 0o600


class Sealer:
    """Seals passwords with one key."""

    def __init__(self, key: bytes) -> None:
        """Raises MissingPartError."""
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise MissingPartError("the Python package cryptography", "pip install 'mqlake[auth]'") from None
        self._cipher = AESGCM(key)
        self._invalid = InvalidTag

    def seal(self, name: str, password: str) -> str:
        nonce = os.urandom(NONCE_SIZE)
        sealed = self._cipher.encrypt(nonce, password.encode(), name.encode())
        return SEALED + base64.b64encode(nonce + sealed).decode()

    def unseal(self, name: str, text: str) -> str:
        """The password; one that is not sealed is returned as it is. IllegalError."""
        if not text.startswith(SEALED):
            return text
        try:
            data = base64.b64decode(text.removeprefix(SEALED), validate=True)
            return self._cipher.decrypt(data[:NONCE_SIZE], data[NONCE_SIZE:], name.encode()).decode()
        except (self._invalid, binascii.Error, ValueError):
            raise IllegalError(
                f"the password of {name} was not sealed with this {KEY_NAME}, or for another user"
            ) from None


class Storage:
    """The state in a directory, which is made when missing."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = os.path.join(directory, FILE_NAME)
        self.key_path = os.path.join(directory, KEY_NAME)
        self._sealer: Sealer | None = None

    def load(self) -> State:
        """The state; empty if there is no file. ConfigError names file and line; OSError."""
        try:
            with open(self.path, "rb") as file:
                raw = file.read()
            lines = raw.decode().split("\n")  # a name may have other ends of lines in it
        except FileNotFoundError:
            self._refuse_rocksdb()
            return State()
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise ConfigError(f"{self.path}:{line}: this is not UTF-8") from None
        return self._parse(lines)

    def _refuse_rocksdb(self) -> None:
        for name in ("users", "acls"):
            path = os.path.join(self.directory, name, "CURRENT")
            if os.path.exists(path):
                raise ConfigError(
                    f"{os.path.dirname(path)} has the {name} of RocketMQ's broker in RocksDB, which cannot be read "
                    f"here. While that broker runs: mqlake admin user export -b HOST:PORT {self.path}; then start "
                    "this broker"
                )

    def _parse(self, lines: list[str]) -> State:
        users: dict[str, User] = {}
        acls: dict[str, Acl] = {}
        if lines in ([], [""]):
            raise ConfigError(f"{self.path}:1: the file is empty; remove it to start without users")
        sealer = self._opened() if any(f'"{SEALED}' in line for line in lines) else None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
                self._take(value, number, users, acls, sealer)
            except (ValueError, KeyError, TypeError, AttributeError, IllegalError) as error:
                raise ConfigError(f"{self.path}:{number}: {error}") from None
        return State(users, acls)

    @staticmethod
    def _take(
        value: dict[str, object],
        number: int,
        users: dict[str, User],
        acls: dict[str, Acl],
        sealer: Sealer | None,
    ) -> None:
        """Takes one line. ValueError, TypeError, IllegalError."""
        if number == 1:
            if value.get("format") != FORMAT or value.get("version") != VERSION:
                raise ValueError(f'{{"format":"{FORMAT}","version":{VERSION}}} is needed here')
            return
        if set(value) == {"user"} and isinstance(value["user"], dict):
            user = user_from_stored(value["user"], sealer.unseal if sealer else lambda name, text: text)
            if user.name in users:
                raise ValueError(f"user {user.name} is here twice")
            users[user.name] = user
        elif set(value) == {"acl"} and isinstance(value["acl"], dict):
            acl = acl_from_stored(value["acl"])
            if acl.username in acls:
                raise ValueError(f"the acl of {acl.subject} is here twice")
            if acl.username not in users:
                raise ValueError(f"there is no user {acl.username} above this line")
            acls[acl.username] = acl
        else:
            raise ValueError('{"user":{…}} or {"acl":{…}} is needed here')

    def write(self, state: State) -> None:
        """Makes `state` what is on disk, durably. On OSError the old state stays, and so it does on ConfigError, for a
        state that the next start could not read."""
        make_dirs(self.directory)
        data = encode(state, self._opened(create=True))
        if self._parse(data.decode().split("\n")) != state:
            raise ConfigError(f"{self.path}: this change would not be read as it is; nothing is changed")
        write_durably(self.path, data, mode=PRIVATE)

    def _opened(self, *, create: bool = False) -> Sealer:
        """With the key in its file. ConfigError, OSError."""
        if self._sealer is None:
            self._sealer = Sealer(self._read_key(create))
        return self._sealer

    def _read_key(self, create: bool) -> bytes:
        try:
            with open(self.key_path, "rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read().strip()
        except FileNotFoundError:
            if not create:
                raise ConfigError(
                    f"{self.key_path} is missing: the passwords in {self.path} are sealed with it. Restore it from a "
                    "copy, or remove both files and make the users again"
                ) from None
            return self._make_key()
        if mode & 0o077:
            raise ConfigError(
                f"{self.key_path}: others may read it (mode {mode:o}); chmod 600 {self.key_path}"
            )
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_SIZE:
            raise ConfigError(f"{self.key_path}:1: {KEY_SIZE} bytes in base64 are needed")
        return key

    def _make_key(self) -> bytes:
        key = os.urandom(KEY_SIZE)
        write_durably(self.key_path, base64.b64encode(key) + b"\n", mode=PRIVATE)
        fsync_dir(self.directory)
        return key


def encode(state: State, sealer: Sealer | None) -> bytes:
    """The file's content; without a sealer with passwords in clear, as RocketMQ keeps them."""

    def stored(user: User) -> dict[str, object]:
        password = user.password if sealer is None else sealer.seal(user.name, user.password)
        return {"user": user_to_stored(user, password)}

    lines: list[dict[str, object]] = [{"format": FORMAT, "version": VERSION}]
    lines += [stored(user) for _, user in sorted(state.users.items())]
    lines += [{"acl": acl_to_stored(acl)} for _, acl in sorted(state.acls.items())]
    return b"".join(
        json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for line in lines
    )
