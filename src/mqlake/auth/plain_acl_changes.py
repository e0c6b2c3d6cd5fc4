"""Changes of plain_acl.yml by request (ACL 1.0): accounts and white addresses.

    change_account(directory, fields)      50: made in plain_acl.yml, or changed in the file that has it
    delete_account(directory, access_key)  51
    change_white(directory, addresses)     53

The file is written whole, durably, with the next `dataVersion`; comments are lost, as RocketMQ loses them. What could
not be read again is not written: RocketMQ writes a white address that stops its next start.
Facts: RocketMQ 5.3.2, live (tests/interop/test_plain_acl_live.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from mqlake.auth.plain_acl import KEY_LENGTH_MIN, MAIN_FILE, PERMISSIONS, files_of, parse, read_file
from mqlake.base.clock import now_ms
from mqlake.base.durable import write_durably
from mqlake.errors import ConfigError

PRIVATE = 0o600
_TEXTS = ("secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
_LISTS = ("topicPerms", "groupPerms")
Document = dict[str, Any]


def change_account(directory: str, fields: Mapping[str, str]) -> None:
    """`fields` as in the request: lists with commas; what is missing stays. ConfigError with RocketMQ's text."""
    key, secret = fields.get("accessKey"), fields.get("secretKey")
    if min(len(key or ""), len(secret or "")) < KEY_LENGTH_MIN:
        shown = "null" if secret is None else "******"
        raise ConfigError(
            f"The accessKey={key or 'null'} and secretKey={shown} cannot be null and length should longer than "
            f"{KEY_LENGTH_MIN - 1}"
        )
    given: dict[str, Any] = {name: fields[name] for name in _TEXTS if name in fields}
    if "admin" in fields:
        given["admin"] = fields["admin"].strip().lower() == "true"
    for name in _LISTS:
        if name in fields:
            given[name] = [_permission(item) for item in fields[name].split(",") if item.strip()]

    def change(document: Document) -> None:
        accounts = document.get("accounts") or []
        account = next((each for each in accounts if str(each.get("accessKey")) == key), None)
        if account is None:
            account = {"accessKey": key}
            accounts.append(account)
        account.update(given)
        document["accounts"] = accounts

    _change(_file_with(directory, key or "") or os.path.join(directory, MAIN_FILE), change)


def _permission(item: str) -> str:
    name, equals, held = item.partition("=")
    if not name.strip() or not equals:
        raise ConfigError(f"Parse Resource format error for {item}.")
    if held.strip() not in PERMISSIONS:
        raise ConfigError(f"Parse resource permission error for {item}.")
    return f"{name.strip()}={held.strip()}"


def delete_account(directory: str, access_key: str | None) -> None:
    """ConfigError with RocketMQ's text if there is none."""
    path = _file_with(directory, access_key or "")
    if path is None:
        raise ConfigError(
            f"The accessKey[{access_key or 'null'}] corresponding to accessConfig has been deleted failed."
        )

    def change(document: Document) -> None:
        document["accounts"] = [
            each for each in document["accounts"] if str(each.get("accessKey")) != access_key
        ]

    _change(path, change)


def change_white(directory: str, addresses: str | None, path: str | None = None) -> None:
    """`addresses`: with commas; `path`: of the file, by default plain_acl.yml. ConfigError with RocketMQ's text."""
    known = {os.path.realpath(each) for each in files_of(directory)}
    if addresses is None or (path and os.path.realpath(path) not in known):
        raise ConfigError(f"The globalWhiteAddresses[{addresses or 'null'}] has been updated failed.")

    def change(document: Document) -> None:
        document["globalWhiteRemoteAddresses"] = [
            each.strip() for each in addresses.split(",") if each.strip()
        ]

    _change(path or os.path.join(directory, MAIN_FILE), change)


def version_of(path: str) -> dict[str, int]:
    """The `dataVersion` of a file, as JSON has it; zeros if it has none. OSError."""
    with open(path, "rb") as file:
        versions = _document(file.read()).get("dataVersion")
    found = versions[0] if isinstance(versions, list) and versions and isinstance(versions[0], dict) else {}
    texts = {name: str(found.get(name)) for name in ("counter", "stateVersion", "timestamp")}
    return {name: int(text) if text.isdecimal() else 0 for name, text in texts.items()}


def _document(raw: bytes) -> Document:
    """The file as it is, for writing it again: every scalar a text, but for null and booleans."""
    import yaml

    root = yaml.compose(raw.decode(), Loader=yaml.SafeLoader)
    return {} if root is None else _value(root)


def _value(node: Any) -> Any:
    if node.id == "mapping":
        return {_value(key): _value(value) for key, value in node.value}
    if node.id == "sequence":
        return [_value(each) for each in node.value]
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    return node.value.lower() == "true" if kind == "bool" else node.value


def _file_with(directory: str, access_key: str) -> str | None:
    """Returns the file whose account of this key counts; None if no file has one."""
    return next((path for path in files_of(directory) if access_key in read_file(path).accounts), None)


def _change(path: str, change: Callable[[Document], None]) -> None:
    import yaml

    exists = os.path.exists(path)
    counter = version_of(path)["counter"] if exists else 0
    document: Document = {}
    if exists:
        with open(path, "rb") as file:
            document = _document(file.read())
    change(document)
    document["dataVersion"] = [{"counter": counter + 1, "timestamp": now_ms()}]
    written = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
    parse(written, path)
    write_durably(path, written, mode=PRIVATE)
