"""Orders: what an operator writes into the record of a group, whether its brokers run or not.

    elect REPLICA    the master hands over to it, or it takes over when there is none
    resign           the master hands over to the member with the longest log
    exclude, include REPLICA    it is kept out of the in-sync set, so it does not become master

The master, or the replica that is named, sees the order with its next look at the service.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from mqlake.broker.failover.record import ANYONE, Record
from mqlake.broker.failover.service import ConsensusService, Where
from mqlake.errors import FailoverError

TRIES = 20


class Orders:
    """Orders of an operator to one group. Every method raises FailoverError when there is no such group, or when the
    order makes no sense, and FailoverUnavailableError without an answer."""

    def __init__(self, service: ConsensusService, where: Where, cluster: str, broker_name: str) -> None:
        self._service = service
        self._key = f"{where.group(cluster, broker_name)}/record"
        self._group = f"{cluster}/{broker_name}"

    def read(self) -> Record:
        return self._read()[0]

    def elect(self, replica: int, *, unclean: bool = False) -> Record:
        """`unclean`: also if it lacks acknowledged messages, once the master's lease is over."""

        def named(record: Record) -> Record:
            if record.master == replica and not record.released and not unclean:
                raise FailoverError(f"replica {replica} is the master of {self._group} already")
            if not unclean and replica not in {each for each, _ in record.in_sync}:
                raise FailoverError(
                    f"replica {replica} is not in the in-sync set {sorted(each for each, _ in record.in_sync)}: it may "
                    "lack acknowledged messages. Wait until it follows; if no member of the set can come back, "
                    "--unclean makes it master without them"
                )
            return dataclasses.replace(record, successor=replica, unclean=unclean)

        return self._change(named)

    def resign(self) -> Record:
        def resigned(record: Record) -> Record:
            others = [each for each, _ in record.in_sync if each not in (record.master, *record.excluded)]
            if not others:
                raise FailoverError(
                    f"no other replica of {self._group} is in the in-sync set: nobody could take over"
                )
            return dataclasses.replace(record, successor=ANYONE)

        return self._change(resigned)

    def exclude(self, replica: int) -> Record:
        def without(record: Record) -> Record:
            if record.master == replica and not record.released:
                raise FailoverError(f"replica {replica} is the master: let another one be elected first")
            return dataclasses.replace(record, excluded=tuple(sorted({*record.excluded, replica})))

        return self._change(without)

    def include(self, replica: int) -> Record:
        return self._change(
            lambda record: dataclasses.replace(
                record, excluded=tuple(each for each in record.excluded if each != replica)
            )
        )

    def _read(self) -> tuple[Record, int]:
        value = self._service.read(self._key)
        if value.data is None:
            raise FailoverError(
                f"{self._service.where} knows no group {self._group}: none of its brokers has run with failover, or "
                "they have another prefix in `failover`"
            )
        return Record.from_json(value.data), value.version

    def _change(self, change: Callable[[Record], Record]) -> Record:
        for _ in range(TRIES):
            record, version = self._read()
            changed = change(record)
            if changed == record or self._service.swap(self._key, changed.to_json(), version):
                return changed
        raise FailoverError(f"the record of {self._group} changes all the time: try again")
