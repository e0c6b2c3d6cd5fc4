"""What producers and pop consumers of a broker saw, and whether it is what they were promised.

every message that was sent is acknowledged in the end, unless it was recalled
nothing is delivered before the time that its sender asked for, nor after a recall that was answered in time
no delivery while an earlier one of the message keeps it invisible
no delivery after an acknowledgement that was answered in time
in order: none while one before it may still be worked on
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

RECALL_MS = 1500
"""A recall counts if it is answered so long before its message is due: the timer's step, and the way into the wheel."""


@dataclass
class Delivery:
    """A message was handed out. `visible_at`: when it may be handed out again, as far as its consumer can know."""

    pop_time: int
    visible_at: int
    acknowledging: bool = False
    """An acknowledgement was sent."""
    acknowledged_at: int | None = None
    """When the answer came."""
    place: tuple[str, int, int] = ("", 0, 0)
    """Topic, queue and offset."""


@dataclass
class History:
    sent: dict[bytes, int] = field(default_factory=dict)
    """Body → when it is due (ms), 0: at once. Its producer was told that it is stored."""
    maybe_sent: dict[bytes, int] = field(default_factory=dict)
    recalling: set[bytes] = field(default_factory=set)
    """They may be gone or not."""
    recalled: set[bytes] = field(default_factory=set)
    """They were recalled, in time and with an answer."""
    half_changed: Counter[bytes] = field(default_factory=Counter)
    """So many changes of its invisible time have no answer: the broker may have died between the new checkpoint and the
    acknowledgement of the old one, and both may bring the message again."""
    deliveries: defaultdict[bytes, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    in_order: list[bytes] = field(default_factory=list)
    """What was sent to the queue that is popped in order."""

    def delivered(
        self, body: bytes, pop_time: int, visible_at: int, place: tuple[str, int, int] = ("", 0, 0)
    ) -> Delivery:
        delivery = Delivery(pop_time, visible_at, place=place)
        self.deliveries[body].append(delivery)
        return delivery

    @property
    def is_done(self) -> bool:
        return not self.open()

    def open(self) -> list[bytes]:
        """What was sent and is not acknowledged."""
        return [body for body in self.sent.keys() - self.recalling if not self.is_acknowledged(body)]

    def is_acknowledged(self, body: bytes) -> bool:
        """Also if the answer is missing: the broker may have died between the two."""
        return any(delivery.acknowledging for delivery in self.deliveries[body])

    def violations(self) -> list[str]:
        found = [f"lost: {body!r}" for body in self.open()]
        for body, deliveries in self.deliveries.items():
            found += self._of_one(body, sorted(deliveries, key=lambda each: each.pop_time))
        for number, body in enumerate(self.in_order):
            for delivery in self.deliveries.get(body, ()):
                found += [
                    f"overtaken: {before!r} by {body!r}, {delivery}"
                    for before in self.in_order[:number]
                    if self._is_overtaken(before, delivery)
                ]
        return found

    def _of_one(self, body: bytes, deliveries: list[Delivery]) -> list[str]:
        due = self.sent.get(body, self.maybe_sent.get(body))
        if due is None:
            return [f"nobody sent {body!r}"] if deliveries else []
        found = []
        if deliveries and body in self.recalled:
            found.append(f"recalled: {body!r} {deliveries}")
        for number, later in enumerate(deliveries):
            if later.pop_time < due:
                found.append(f"early: {body!r} is due at {due}, {later}")
            for earlier in () if self.half_changed[body] else deliveries[:number]:
                if later.pop_time < earlier.visible_at:
                    found.append(f"too soon: {body!r} {earlier} {later}")
                elif (earlier.acknowledged_at or earlier.visible_at + 1) <= earlier.visible_at:
                    found.append(f"after its acknowledgement: {body!r} {earlier} {later}")
        return found

    def _is_overtaken(self, body: bytes, delivery: Delivery) -> bool:
        before = [each for each in self.deliveries.get(body, ()) if each.pop_time <= delivery.pop_time]
        if not before:
            return body in self.sent
        last = max(before, key=lambda each: each.pop_time)
        if last.pop_time == delivery.pop_time or any(each.acknowledging for each in before):
            return False
        return last.visible_at > delivery.pop_time
