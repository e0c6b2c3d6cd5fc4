"""ConsensusService: the few operations that failover needs of a consensus service.

    read(key)                    linearizable: what the last write that was answered has left, or something later
    swap(key, value, version)    writes if the version is still that one; durable when it is answered
    put, read_all                for what nobody decides by

An answer that does not come is an error of its own: what was asked may have been done, or may be done later.
"""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple, Protocol

from mqlake.base.net import parse_address
from mqlake.errors import ConfigError, MqlakeError

DEFAULT_PREFIX = "/mqlake"


class Value(NamedTuple):
    data: bytes | None
    """None: there is none."""
    version: int
    """0: there is none. Another one after each write."""


class ConsensusService(Protocol):
    """Every method raises FailoverUnavailableError without an answer, FailoverError for an answer that is none. They
    block, for `timeout_s` at most; one at a time for each object."""

    where: str
    """In words."""

    def read(self, key: str) -> Value: ...
    def swap(self, key: str, value: bytes, version: int) -> int:
        """The new version; 0 if another write came first. `version` 0: only if there is none."""
        ...

    def put(self, key: str, value: bytes) -> None: ...
    def read_all(self, prefix: str) -> list[bytes]: ...
    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """`etcd://HOST:PORT,HOST:PORT/PREFIX`, taken apart."""

    kind: str
    endpoints: tuple[tuple[str, int], ...]
    prefix: str = DEFAULT_PREFIX

    def group(self, cluster: str, broker_name: str) -> str:
        """The beginning of the keys of one group of replicas."""
        return f"{self.prefix}/failover/{cluster}/{broker_name}"


_WHERE = re.compile(r"(?P<kind>[a-z]+)://(?P<endpoints>[^/]+)(?P<prefix>/[^?#]*)?")
ETCD_PORT = 2379


def parse_where(text: str) -> Where:
    """ConfigError."""
    match = _WHERE.fullmatch(text.strip())
    if match is None or match["kind"] != "etcd":
        raise ConfigError(f"failover={text}: etcd://HOST:PORT,HOST:PORT,... is needed")
    endpoints = []
    for each in match["endpoints"].split(","):
        try:
            endpoints.append(parse_address(each if re.search(r":\d+$", each) else f"{each}:{ETCD_PORT}"))
        except MqlakeError as error:
            raise ConfigError(f"failover={text}: {error}") from None
    return Where(match["kind"], tuple(endpoints), (match["prefix"] or "").rstrip("/") or DEFAULT_PREFIX)
