"""NotificationProcessor: 200054 NOTIFICATION, which waits for messages without taking them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from mqlake.broker.pop.polling import EARLIER_MS, Wait, Waiter
from mqlake.broker.pop.pop_message import LATE_MS, available
from mqlake.broker.pop.state import PopState
from mqlake.broker.services.error_responses import DEFAULT_REMARK, with_default_header
from mqlake.errors import ResponseError
from mqlake.remoting.bodies.topic import PERM_READ
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Answer, Connection
from mqlake.remoting.headers.consume import NotificationRequestHeader, NotificationResponseHeader
from mqlake.remoting.processors import answers


class NotificationProcessor:
    def __init__(self, state: PopState) -> None:
        self._state = state

    @answers(
        RequestCode.NOTIFICATION,
        with_default_header(lambda: NotificationResponseHeader(has_msg=False, polling_full=False)),
    )
    def notification(
        self, connection: Connection | None, header: NotificationRequestHeader
    ) -> Answer | Awaitable[Answer]:
        self._check(header)
        state = self._state
        now = state.broker.clock_ms()
        if header.born_time == 0:
            header.born_time = now
        if now - header.born_time - header.poll_time > LATE_MS:
            return _answer(has_msg=False)

        def has_msg() -> bool:
            return available(
                state,
                header.topic,
                header.consumer_group,
                header.queue_id,
                bool(header.order),
                header.attempt_id,
            )

        def look(waiter: Waiter, is_over: bool) -> None:
            """Answers, or waits (again): whoever was woken may come too late, whoever was not may find something."""
            try:
                found = has_msg()
                wait = Wait.OVER if found or is_over else state.notification_polling.wait(waiter, has_msg)
            except Exception as error:  # answered like any failure of a processor
                waiter.answer.set_exception(error)
                return
            if wait is Wait.WAITS:
                state.broker.store.messages_awaited()
            else:
                waiter.answer.set_result(_answer(has_msg=found, polling_full=wait is Wait.FULL))

        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        deadline = header.born_time + header.poll_time - EARLIER_MS
        key = header.topic, header.consumer_group, header.queue_id
        look(Waiter(connection, key, deadline, answer, look), False)
        return answer.result() if answer.done() else answer

    def _check(self, header: NotificationRequestHeader) -> None:
        broker = self._state.broker
        if not broker.config.broker_permission & PERM_READ:
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{broker.config.broker_ip1}] peeking message is forbidden",
            )
        self._state.check_readable(header.topic, header.queue_id, header.consumer_group)


def _answer(*, has_msg: bool, polling_full: bool = False) -> RemotingCommand:
    return RemotingCommand.create_response(
        remark=DEFAULT_REMARK, header=NotificationResponseHeader(has_msg=has_msg, polling_full=polling_full)
    )
