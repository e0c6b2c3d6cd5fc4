"""When a send is refused because a resource is short: which one, the measured figure, the limit.

    resource       measured                                                limit
    role           the broker is a slave                                   -
    page cache     how long a put has been holding the log's lock, or      osPageCacheBusyTimeOutMills
                   held the event loop while the send waited for it
    pool           buffers left in the transient store pool                1
    queue wait     how long the last turn of the event loop took           waitTimeMillsInSendQueue

RocketMQ keeps requests in queues and refuses those that waited there too long: their senders are about to give up and
send again, so a message stored then is stored twice. Here requests wait in the sockets for the next turn of the event
loop, so a request may have waited as long as the last turn took. One long turn is a hiccup; if the next one, which
does the work that was held up, takes too long as well, sends come faster than they can be stored. If it was a put that
took so long, the page cache is known to be busy at once; but it held up the very thread that would look. So the sends
that it held up are refused: those of the same turn, and those that the next one reads.
"""

from __future__ import annotations

import asyncio
import time

from mqlake.broker.broker import Broker
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.store.config import BrokerRole

REJECT = "[REJECTREQUEST]system busy, start flow control for a while"
TIMEOUT_CLEAN_QUEUE = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while"
PC_SYNCHRONIZED = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"


def busy(remark: str) -> RemotingCommand:
    return RemotingCommand.create_response(ResponseCode.SYSTEM_BUSY, remark)


class SendFlowControl:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.turn_began = 0
        """When a send came first in this turn of the event loop, by the monotonic clock in ns; 0: none has come."""
        self._last_turn_ms = 0
        self.long_turns = 0
        """Consecutive long turns; from two on, sends are refused."""
        self.held_ms = 0
        """How long a put of the last turn took, if that was too long."""

    def refusal(self) -> RemotingCommand | None:
        """The answer that refuses a send now, or None. Called for each send."""
        broker = self._broker
        store, config = broker.store, broker.config
        if store.config.broker_role is BrokerRole.SLAVE:
            return busy(f"{REJECT}: this broker is a slave (brokerRole=SLAVE); send to its master")
        if store.is_os_page_cache_busy:
            held = broker.clock_ms() - store.commit_log.appender.begin_time_in_lock
            limit = store.config.os_page_cache_busy_time_out_mills
            return busy(
                f"{REJECT}: page cache: a put has been writing for {held} ms, the limit is {limit} ms"
            )
        if self.turn_began:
            held = self.held_ms or store.longest_put_ms
        else:
            self.begin_turn()
            held = self.held_ms
        if held and held > (limit := store.config.os_page_cache_busy_time_out_mills):
            return busy(
                f"{REJECT}: page cache: a put took {held} ms while this send waited, the limit is {limit} ms"
            )
        pool = store.transient_store_pool
        if pool is not None and pool.available_buffer_nums == 0:
            return busy(
                f"{REJECT}: pool: 0 of the {store.config.transient_store_pool_size} buffers of the transient "
                f"store pool are free, 1 is needed"
            )
        if self.long_turns > 1 and config.broker_fast_failure_enable:
            return busy(
                f"{TIMEOUT_CLEAN_QUEUE}, period in queue: {self._last_turn_ms}ms: queue wait: the broker came "
                f"round to its sockets after {self._last_turn_ms} ms, the limit is "
                f"{config.wait_time_mills_in_send_queue} ms (waitTimeMillsInSendQueue)"
            )
        return None

    def begin_turn(self) -> None:
        """Called with the first send of a turn."""
        self.turn_began = time.monotonic_ns()
        self._broker.store.forget_longest_put()
        asyncio.get_running_loop().call_soon(self._turn_ends)

    def _turn_ends(self) -> None:
        """Runs first in the turn after the one in which a send came. Sends read in this turn arrived during the
        last one; sends read later did not."""
        self._last_turn_ms = (time.monotonic_ns() - self.turn_began) // 1_000_000
        self.turn_began = 0
        held = self._broker.store.longest_put_ms
        if held and held > self._broker.store.config.os_page_cache_busy_time_out_mills:
            self.held_ms = held
            asyncio.get_running_loop().call_soon(self._hold_is_over)
        if self._last_turn_ms > self._broker.config.wait_time_mills_in_send_queue:
            self.long_turns += 1
            asyncio.get_running_loop().call_soon(self._next_turn_begins)
        else:
            self.long_turns = 0

    def _hold_is_over(self) -> None:
        self.held_ms = 0

    def _next_turn_begins(self) -> None:
        """Resets: if the turn before brought no send, no send waits."""
        if not self.turn_began or self.long_turns > 1:
            self.long_turns = 0
