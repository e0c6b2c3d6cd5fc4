"""Record: what stands in the consensus service of one group of replicas, one value that is compared and swapped whole.

    {"epoch": 7, "master": 1, "inSync": [[1, 8041…], [2, 1177…]], "begins": [[6, 4096], [7, 8192]], "leaseMs": 3000,
     "renewal": 41, "released": false, "successor": null, "unclean": false, "excluded": [],
     "address": "10.0.0.1:10911", "haAddress": "10.0.0.1:10912"}

A member is a replica's id with a number that its store was given when it first took part: a store that was emptied,
or may have lost what it had, is another member under the same id. An epoch is the time of one master. `begins` says
where in the log each began: what a replica got from the master of an older epoch beyond that place is no part of it.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from mqlake.errors import FailoverError
from mqlake.store.ha.membership import Member

EPOCHS_KEPT = 200
ANYONE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    epoch: int
    master: int
    in_sync: tuple[Member, ...]
    """Replicas that have every acknowledged message, the master among them."""
    begins: tuple[tuple[int, int], ...]
    """(epoch, offset), the latest EPOCHS_KEPT."""
    lease_ms: int
    renewal: int = 0
    """Grows with each write of the master, so that no two of its writes are the same."""
    released: bool = False
    """The master has given up: nobody needs to wait for its lease."""
    successor: int | None = None
    """The next master, as an operator or the master itself says; ANYONE: whoever the master chooses."""
    unclean: bool = False
    """`successor` may be one that lacks acknowledged messages: an operator has said so."""
    excluded: tuple[int, ...] = ()
    """Replicas that an operator keeps out of the in-sync set."""
    address: str = ""
    ha_address: str = ""

    @property
    def members(self) -> frozenset[Member]:
        return frozenset(self.in_sync)

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000

    def to_json(self) -> bytes:
        values: dict[str, object] = {
            "epoch": self.epoch,
            "master": self.master,
            "inSync": self.in_sync,
            "begins": self.begins,
            "leaseMs": self.lease_ms,
            "renewal": self.renewal,
            "released": self.released,
            "successor": self.successor,
            "unclean": self.unclean,
            "excluded": self.excluded,
            "address": self.address,
            "haAddress": self.ha_address,
        }
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Record:
        """FailoverError if it is none."""
        try:
            values: dict[str, Any] = json.loads(data)
            return cls(
                epoch=int(values["epoch"]),
                master=int(values["master"]),
                in_sync=tuple((int(each), int(node)) for each, node in values["inSync"]),
                begins=tuple((int(epoch), int(offset)) for epoch, offset in values["begins"]),
                lease_ms=int(values["leaseMs"]),
                renewal=int(values["renewal"]),
                released=bool(values["released"]),
                successor=None if values["successor"] is None else int(values["successor"]),
                unclean=bool(values["unclean"]),
                excluded=tuple(int(each) for each in values["excluded"]),
                address=str(values["address"]),
                ha_address=str(values["haAddress"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FailoverError(
                f"the failover service has no record of this group but {data[:80]!r}"
            ) from error

    def end_for(self, epoch: int) -> int | None:
        """Returns the end of the log for a replica that last followed the master of `epoch`: what it has beyond that
        was never part of the log that others followed. None: no such end, it followed the present master.

        FailoverError when so many masters came after it that it is not known any more."""
        later = [offset for each, offset in self.begins if each > epoch]
        if not later:
            return None
        if self.begins[0][0] > epoch + 1 and len(self.begins) >= EPOCHS_KEPT:
            raise FailoverError(
                f"this replica last followed the master of epoch {epoch}, and what happened before epoch "
                f"{self.begins[0][0]} is not kept: start it with an empty directory"
            )
        return min(later)

    def taken_over(self, by: Member, log_end: int, address: str, ha_address: str) -> Record:
        """The record of the next epoch, which begins at `log_end`. Whom an operator has named stays named when another
        one takes over, which hands over to it then."""
        epoch = self.epoch + 1
        is_open = not self.unclean and self.successor not in (None, ANYONE, by[0])
        return dataclasses.replace(
            self,
            epoch=epoch,
            master=by[0],
            in_sync=(by,),
            begins=(*self.begins, (epoch, log_end))[-EPOCHS_KEPT:],
            renewal=self.renewal + 1,
            released=False,
            successor=self.successor if is_open else None,
            unclean=False,
            address=address,
            ha_address=ha_address,
        )

    @classmethod
    def first(cls, by: Member, log_end: int, lease_ms: int, address: str, ha_address: str) -> Record:
        """The record of a group that has had no master yet."""
        return cls(0, by[0], (by,), (), lease_ms).taken_over(by, log_end, address, ha_address)


@dataclasses.dataclass(frozen=True, slots=True)
class Announcement:
    """A replica's report of itself in the service: the end of its log, and in which epoch it said so; and why it
    could take no messages as a master, if so."""

    replica: int
    epoch: int
    log_end: int
    address: str = ""
    trouble: str = ""

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "replica": self.replica,
                "epoch": self.epoch,
                "logEnd": self.log_end,
                "address": self.address,
                "trouble": self.trouble,
            }
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Announcement:
        """FailoverError if it is none."""
        try:
            values: dict[str, Any] = json.loads(data)
            return cls(
                int(values["replica"]),
                int(values["epoch"]),
                int(values["logEnd"]),
                str(values["address"]),
                str(values.get("trouble", "")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FailoverError(f"the failover service has {data[:80]!r} in place of a replica") from error
