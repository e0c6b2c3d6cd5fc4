"""PullLease: what compiled code needs to answer pulls by itself, given before a round and taken back after it.

    plans of which messages are left ─▶ begin: queue's limits, units, file ─▶ rounds of kernels.loop ─▶ end: counted
                                              └── what the broker's settings and tables say of each, as ever

Python asks once a round what FastPull asks for each pull; while compiled code runs, no other code of the broker does,
and what threads append or delete meanwhile changes nothing: the files of a round stay mapped until it is over. A pull
that finds nothing, of a plan that is not read on, or for what was not given, goes to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mqlake.compiled.kernels import pull_layout as layout

if TYPE_CHECKING:
    from mqlake.broker.fast.fast_pull import FastPull, PullPlan
    from mqlake.broker.fast.fast_send import Bytes
    from mqlake.remoting.connection import Connection

PLANS_MAX = 64
"""Plans that are given for a round."""
IDLE_ROUNDS_MAX = 16
"""Rounds without a pull of a plan after which it is not given any more, until its next pull."""
_TAKEN = range(layout.TAKEN_PULLS, layout.TAKEN_TURN + 1)


class PullLease:
    """Of one FastPull and one FastLoop."""

    def __init__(self, fast_pull: FastPull) -> None:
        self._fast_pull = fast_pull
        self._plans: list[PullPlan] = []
        self._held: list[object] = []
        """What keeps the files of this round mapped."""

    def begin(self) -> None:
        """Gives the plans that are read on."""
        fast_pull = self._fast_pull
        cells = fast_pull.cells
        if not fast_pull.reading_on:
            cells[layout.KNOWN] = 0
            return
        plans, self._plans = self._plans, []
        plans.clear()
        if fast_pull.takes_plain_pulls:
            for plan, connection in list(fast_pull.reading_on.items())[:PLANS_MAX]:
                array = fast_pull.prepare_round(connection, plan)
                if array is None:
                    fast_pull.reading_on.pop(plan, None)
                else:
                    plans.append(plan)
                    self._held.append(array)
        self._plans = [plan for plan in plans if plan.row >= 0]  # not forgotten for one that came after it
        cells[layout.KNOWN] = fast_pull.rows if self._plans else 0
        cells[layout.HINT] = cells[layout.TURN] = 0
        cells[layout.CUT_FD] = -1

    def end(self, connection_of: Callable[[int], Connection]) -> tuple[int, Bytes] | None:
        """Counts what was answered; the descriptor that did not take a whole answer, and the rest of it."""
        if not self._plans:
            return None
        fast_pull, cells = self._fast_pull, self._fast_pull.cells
        rest, fd = None, cells[layout.CUT_FD]
        if fd >= 0:
            data = np.empty(cells[layout.CUT_SIZE] - cells[layout.CUT_AT], np.uint8)
            fast_pull.take_rest(cells[layout.CUT_AT], data)
            rest = fd, data
        taken = []
        for plan in self._plans:
            at = plan.row * layout.PLAN_SIZE
            cells[at + layout.IS_READY] = 0
            if cells[at + layout.TAKEN_PULLS]:
                taken.append((cells[at + layout.TAKEN_TURN], plan))
                plan.idle_rounds = 0
            else:
                plan.idle_rounds += 1
                if plan.idle_rounds > IDLE_ROUNDS_MAX:
                    del fast_pull.reading_on[plan]
        taken.sort(key=lambda each: each[0])  # of two plans of a queue the last pull counts
        for _, plan in taken:
            at = plan.row * layout.PLAN_SIZE
            fast_pull.taken_in_round(
                connection_of(cells[at + layout.TAKEN_FD]), plan, cells[at : at + layout.PLAN_SIZE].tolist()
            )
            for number in _TAKEN:
                cells[at + number] = 0
        self._plans.clear()
        self._held.clear()
        return rest
