"""Etcd: the operations of failover on etcd 3, through its JSON gateway.

    POST /v3/kv/range   {"key": base64}                                          serializable is not set: linearizable
    POST /v3/kv/txn     {"compare": [{"key", "target": "MOD", "modRevision"}], "success": [{"requestPut": ...}]}

etcd's documents: "API guarantees" (a transaction that is answered is on the disks of a majority), "gRPC gateway" (keys
and values in base64, 64-bit numbers as text). Its leases are not used: a member that was leader once can prolong one
after another has let it end.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Sequence
from typing import Any

from mqlake.base.net import format_address
from mqlake.broker.failover.service import ConsensusService, Value, Where
from mqlake.errors import FailoverError, FailoverUnavailableError


class Etcd:
    """`timeout_s` for an operation, all endpoints together: the one that answered last is asked first, and for half
    of it at most while there are others."""

    def __init__(self, endpoints: Sequence[tuple[str, int]], timeout_s: float) -> None:
        self.where = ", ".join(format_address(each) for each in endpoints)
        self._endpoints = list(endpoints)
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def read(self, key: str) -> Value:
        answer = self._ask("range", {"key": _text(key.encode())})
        for found in answer.get("kvs", ()):
            return Value(base64.b64decode(found.get("value", "")), int(found["mod_revision"]))
        return Value(None, 0)

    def swap(self, key: str, value: bytes, version: int) -> int:
        name = _text(key.encode())
        answer = self._ask(
            "txn",
            {
                "compare": [{"key": name, "target": "MOD", "result": "EQUAL", "modRevision": str(version)}],
                "success": [{"requestPut": {"key": name, "value": _text(value)}}],
            },
        )
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    def put(self, key: str, value: bytes) -> None:
        self._ask("put", {"key": _text(key.encode()), "value": _text(value)})

    def read_all(self, prefix: str) -> list[bytes]:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        answer = self._ask("range", {"key": _text(prefix.encode()), "range_end": _text(end.encode())})
        return [base64.b64decode(found.get("value", "")) for found in answer.get("kvs", ())]

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self, what: str, request: dict[str, object]) -> dict[str, Any]:
        body = json.dumps(request).encode()
        deadline = time.monotonic() + self._timeout_s
        why = ""
        for number in range(len(self._endpoints)):
            endpoint = self._endpoints[0]
            left = deadline - time.monotonic()
            if left <= 0:
                break
            is_last = number + 1 == len(self._endpoints)
            try:
                return self._ask_one(
                    endpoint, what, body, left if is_last else min(left, self._timeout_s / 2)
                )
            except (OSError, http.client.HTTPException, ValueError) as error:
                why = why or f"{format_address(endpoint)}: {error or type(error).__name__}"
                self.close()
                self._endpoints.append(self._endpoints.pop(0))
        raise FailoverUnavailableError(f"etcd does not answer ({why or 'no time left'})")

    def _ask_one(self, endpoint: tuple[str, int], what: str, body: bytes, timeout_s: float) -> dict[str, Any]:
        connection = self._connection
        if connection is None:
            connection = self._connection = http.client.HTTPConnection(*endpoint, timeout=timeout_s)
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        else:
            connection.timeout = timeout_s
        connection.request("POST", f"/v3/kv/{what}", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        if response.status == 200:
            answer = json.loads(data)
            if isinstance(answer, dict):
                return answer
        if response.status in (401, 403, 404):
            raise FailoverError(
                f"{format_address(endpoint)} is no etcd 3 that this broker may use: {response.status} {data[:200]!r}"
            )
        # no leader, too many requests, a request that timed out inside: another member may do better
        raise OSError(f"{response.status} {data[:200].decode(errors='replace')}")


def open_service(where: Where, timeout_s: float) -> ConsensusService:
    """The service that a setting names; etcd is the only kind so far."""
    return Etcd(where.endpoints, timeout_s)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
