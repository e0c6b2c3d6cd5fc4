"""KVConfigManager: keys and values by namespace, kept in kvConfig.json.

{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}
"""

from __future__ import annotations

import logging
from typing import Any

from mqlake.base.config_file import ConfigFile
from mqlake.errors import FormatError

logger = logging.getLogger(__name__)

NAMESPACE_ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Topic → `broker:queues;broker:queues`, for topics whose queues must not move."""


class KVConfigManager:
    """Persists every change before it is answered."""

    def __init__(self, path: str) -> None:
        self._file = ConfigFile(path)
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Reads the file, if there is one. StoreCorruptError, FormatError, OSError."""
        value = self._file.load()
        table: Any = value.get("configTable") if isinstance(value, dict) else value
        if table is None:
            return
        if not isinstance(table, dict) or not all(isinstance(keys, dict) for keys in table.values()):
            raise FormatError(0, f"{self._file.path} holds no table of namespaces")
        self._table = {
            str(namespace): {str(key): str(value) for key, value in keys.items()}
            for namespace, keys in table.items()
        }

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raises OSError if it cannot be persisted, and then undoes it."""
        changed = {name: dict(keys) for name, keys in self._table.items()}
        changed.setdefault(namespace, {})[key] = value
        self._persist(changed)

    def delete(self, namespace: str, key: str) -> None:
        if key not in self._table.get(namespace, {}):
            return
        changed = {name: dict(keys) for name, keys in self._table.items()}
        del changed[namespace][key]
        self._persist(changed)

    def _persist(self, table: dict[str, dict[str, str]]) -> None:
        self._file.persist({"configTable": table})
        self._table = table

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def get_namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys and values of a namespace, None if it does not exist."""
        return self._table.get(namespace)
