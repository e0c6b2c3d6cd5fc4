"""Requests on timers: 60 GET_TIMER_CHECK_POINT and 61 GET_TIMER_METRICS, which slaves and operators send."""

from __future__ import annotations

from mqlake.errors import ResponseError
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection, ProcessorTable
from mqlake.store.timer.timer_message_store import TimerMessageStore


class TimerAdmin:
    def __init__(self, timers: TimerMessageStore | None) -> None:
        self._timers = timers

    def register(self, table: ProcessorTable) -> None:
        table.register(RequestCode.GET_TIMER_CHECK_POINT, self.get_timer_check_point)
        table.register(RequestCode.GET_TIMER_METRICS, self.get_timer_metrics)

    def _need(self) -> TimerMessageStore:
        if self._timers is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, "The timer message store is null: timerWheelEnable is false"
            )
        return self._timers

    def get_timer_check_point(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """60 GET_TIMER_CHECK_POINT: the 56 bytes of the checkpoint."""
        return RemotingCommand.create_response(body=self._need().checkpoint_bytes())

    def get_timer_metrics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """61 GET_TIMER_METRICS: how many messages wait, by topic."""
        return RemotingCommand.create_response(body=self._need().metrics.encode())
