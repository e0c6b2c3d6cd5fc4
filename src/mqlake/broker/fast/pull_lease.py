"""PullLease: what compiled code needs to answer pulls by itself, given before a round and taken back after it.

    plans of which messages are left ─▶ begin: queue's limits, units, file ─▶ rounds of native.loop ─▶ end: counted
                                              └── what the broker's settings and tables say of each, as ever

Python asks once a round what FastPull asks for each pull; while compiled code runs, no other code of the broker does,
and what threads append or delete meanwhile changes nothing: the files of a round stay mapped until it is over. A plan
that was given is kept for the next round if all is as it was. A pull that finds nothing, of a plan that is not read on,
or for what was not given, goes to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_, itemgetter
from typing import TYPE_CHECKING

import numpy as np

from mqlake.native import pull_layout as layout

if TYPE_CHECKING:
    from mqlake.broker.fast.fast_pull import FastPull, PullPlan
    from mqlake.broker.fast.fast_send import Bytes
    from mqlake.remoting.connection import Connection

PLANS_MAX = 64
"""Plans that are given for a round."""
IDLE_ROUNDS_MAX = 16
"""Rounds without a pull of a plan after which it is not given any more, until its next pull."""
_NOTHING_TAKEN = memoryview(bytes(8 * (layout.TAKEN_NEXT - layout.TAKEN_PULLS))).cast("l")


class Given:
    """A plan that compiled code has, and all that this hangs on beside the broker's own settings and tables."""

    __slots__ = (
        "ahead",
        "at",
        "group_info",
        "idle_rounds",
        "model",
        "plan",
        "queue",
        "subscription",
    )

    def __init__(self, plan: PullPlan) -> None:
        assert plan.ahead is not None
        self.plan = plan
        self.group_info, self.model, self.subscription = plan.known[4:]
        self.ahead, self.queue = plan.ahead, plan.ahead.queue
        self.at = plan.row * layout.PLAN_SIZE
        self.idle_rounds = 0


class PullLease:
    """Of one FastPull and one FastLoop."""

    def __init__(self, fast_pull: FastPull) -> None:
        self._fast_pull = fast_pull
        self._given: dict[PullPlan, Given] = {}
        self._stamp: tuple[object, ...] = ()
        self.answered = 0
        """Pulls, in the last round."""
        self._held: list[object] = []
        """What keeps the files mapped, until the round is over."""

    def begin(self) -> None:
        """Gives the plans that are read on."""
        fast_pull, given = self._fast_pull, self._given
        cells, reading_on = fast_pull.cells, fast_pull.reading_on
        if not reading_on or not fast_pull.takes_plain_pulls:
            self.take_back()
            return
        stamp = fast_pull.stamp()
        # the same objects: to compare settings takes longer than to answer a pull
        if len(stamp) != len(self._stamp) or not all(map(is_, stamp, self._stamp)):
            self.take_back()
            self._stamp = stamp
        elif len(given) > len(reading_on):
            for plan in [each for each in given if each not in reading_on]:
                self._drop(plan)
        cells[layout.KNOWN] = 0
        for plan in list(reading_on) if len(reading_on) <= PLANS_MAX else list(reading_on)[:PLANS_MAX]:
            has = given.get(plan)
            if (has is None or not self._is_current(has)) and not self._give(plan):
                reading_on.pop(plan, None)
        if fast_pull.reading_on and given:
            cells[layout.KNOWN] = fast_pull.rows
        cells[layout.HINT] = cells[layout.TURN] = 0
        cells[layout.CUT_FD] = -1

    def _is_current(self, given: Given) -> bool:
        """True if compiled code may go on with the plan; it has the queue's limits of this moment then."""
        fast_pull, plan, queue, ahead = self._fast_pull, given.plan, given.queue, given.ahead
        if not fast_pull.is_as_known(plan, given.group_info, given.model, given.subscription, queue):
            return False
        files, file = queue.files, ahead.file
        low, high, offset = queue.min_offset_in_queue, queue.max_offset_in_queue, plan.read_to
        if (
            plan.ahead is not ahead
            or files.files is not ahead.files
            or not len(array := file.readable_array)  # it was closed
            or not low <= offset < high
            or not ahead.first <= offset < ahead.end
            or _is_nearly_used_up(ahead.end - offset, high - ahead.end, plan.units_left_min)
        ):
            return False
        self._held.append(array)
        cells, at = fast_pull.cells, given.at
        cells[at + layout.READY_FILE_END] = file.read_position
        cells[at + layout.READY_MIN], cells[at + layout.READY_MAX] = low, high
        cells[at + layout.READY_FLOOR] = ahead.floor(fast_pull.in_memory_from)
        return True

    def _give(self, plan: PullPlan) -> bool:
        fast_pull = self._fast_pull
        self._drop(plan)
        connection = fast_pull.reading_on.get(plan)
        if connection is None:  # forgotten for one before it
            return False
        array = fast_pull.prepare_round(connection, plan)
        if array is None:
            return False
        self._given[plan] = Given(plan)
        self._held.append(array)
        return True

    def _drop(self, plan: PullPlan) -> None:
        if self._given.pop(plan, None) is not None and plan.row >= 0:
            self._fast_pull.cells[plan.row * layout.PLAN_SIZE + layout.IS_READY] = 0

    def take_back(self) -> None:
        """Compiled code has no plan any more."""
        for plan in list(self._given):
            self._drop(plan)
        self._fast_pull.cells[layout.KNOWN] = 0

    def end(self, connection_of: Callable[[int], Connection]) -> tuple[int, Bytes] | None:
        """Counts what was answered; the descriptor that did not take a whole answer, and the rest of it."""
        fast_pull, cells = self._fast_pull, self._fast_pull.cells
        self.answered = 0
        if not cells[layout.KNOWN]:
            self._held.clear()
            return None
        self.answered = cells[layout.TURN]
        rest, fd = None, cells[layout.CUT_FD]
        if fd >= 0:
            data = np.empty(cells[layout.CUT_SIZE] - cells[layout.CUT_AT], np.uint8)
            fast_pull.take_rest(cells[layout.CUT_AT], data)
            rest = fd, data
        taken = []
        for plan, given in list(self._given.items()):
            if cells[given.at + layout.TAKEN_PULLS]:
                taken.append((cells[given.at + layout.TAKEN_TURN], given))
                given.idle_rounds = 0
            else:
                given.idle_rounds += 1
                if given.idle_rounds > IDLE_ROUNDS_MAX:
                    fast_pull.reading_on.pop(plan, None)
                    self._drop(plan)
        taken.sort(key=itemgetter(0))  # of two plans of a queue the last pull counts
        for _, given in taken:
            at = given.at
            row = cells[at : at + layout.PLAN_SIZE].tolist()
            cells[at + layout.TAKEN_PULLS : at + layout.TAKEN_NEXT] = _NOTHING_TAKEN
            fast_pull.taken_in_round(connection_of(row[layout.TAKEN_FD]), given.plan, row)
        self._held.clear()
        return rest


def _is_nearly_used_up(left: int, more: int, left_min: int) -> bool:
    """Whether it is time to read on in a queue of which so many units are `left`, and that has so many `more`."""
    return more > 0 and (left < layout.MESSAGES_MAX or (left < left_min and more >= layout.MESSAGES_MAX))
