"""Requests on timers: 60 GET_TIMER_CHECK_POINT and 61 GET_TIMER_METRICS, which slaves and operators send."""

from __future__ import annotations

from mqlake.errors import ResponseError
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.processors import answers
from mqlake.store.timer.timer_message_store import TimerMessageStore


class TimerAdmin:
    def __init__(self, timers: TimerMessageStore | None) -> None:
        self._timers = timers

    def _need(self) -> TimerMessageStore:
        if self._timers is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, "The timer message store is null: timerWheelEnable is false"
            )
        return self._timers

    @answers(RequestCode.GET_TIMER_CHECK_POINT)
    def get_timer_check_point(self) -> RemotingCommand:
        """60 GET_TIMER_CHECK_POINT: the 56 bytes of the checkpoint."""
        return RemotingCommand.create_response(body=self._need().checkpoint_bytes())

    @answers(RequestCode.GET_TIMER_METRICS)
    def get_timer_metrics(self) -> RemotingCommand:
        """61 GET_TIMER_METRICS: how many messages wait, by topic."""
        return RemotingCommand.create_response(body=self._need().metrics.encode())
