"""Renewal of messages whose consumer works on them."""

from __future__ import annotations

import asyncio

from mqlake.base.clock import now_ms
from mqlake.errors import RemotingTimeoutError
from mqlake.message import ReceiptHandle
from mqlake.proxy.acknowledge import Acknowledger
from mqlake.proxy.clients import Client, Clients, Renewal
from mqlake.proxy.renew import FAILURES_MAX, LONGEST_MS, STEPS_MS, Renewer
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import ChangeInvisibleTimeRequestHeader
from tests.proxy.popping import popping
from tests.proxy.scripted import ScriptedBackend, context

CHANGE = 200053


def renewing(backend: ScriptedBackend, left_ms: int, age_ms: int = 0) -> tuple[Renewer, Client, Renewal]:
    clients = Clients(backend)
    known = clients.of(context())
    handle = ReceiptHandle(0, now_ms() - age_ms, left_ms + age_ms, 2, 0, "b", 1, 3, 77)
    renewal = known.renewals["G", "id"] = Renewal("G", "T", handle, 1)
    return Renewer(clients, Acknowledger()), known, renewal


def test_handles_are_renewed_before_their_time_for_longer_and_longer():
    backend = popping()
    renewer, _, renewal = renewing(backend, left_ms=5_000)
    for number in range(8):
        asyncio.run(renewer.renew())
        assert len(backend.asked) == number + 1
        asyncio.run(renewer.renew())  # there is time now
        assert len(backend.asked) == number + 1
        renewal.handle = renewal.handle._replace(pop_time=now_ms(), invisible_time=5_000)
    times = [
        command.decode_header(ChangeInvisibleTimeRequestHeader).invisible_time for _, command in backend.asked
    ]
    assert times == [*STEPS_MS, STEPS_MS[-1], STEPS_MS[-1]]


def test_a_message_that_takes_hours_is_given_up():
    backend = popping()
    renewer, known, _ = renewing(backend, left_ms=5_000, age_ms=LONGEST_MS + 1)
    asyncio.run(renewer.renew())
    assert not known.renewals and not backend.asked


def test_failures_are_tried_again_a_few_times():
    class Failing(ScriptedBackend):
        async def invoke(
            self, broker_name: str, command: RemotingCommand, timeout_s: float | None = None
        ) -> RemotingCommand:
            self.asked.append((broker_name, command))
            raise RemotingTimeoutError("b:1", 3)

    backend = Failing()
    renewer, known, _ = renewing(backend, left_ms=5_000)
    for _ in range(FAILURES_MAX + 2):
        asyncio.run(renewer.renew())
    assert len(backend.asked) == FAILURES_MAX and not known.renewals


def test_a_message_that_was_acknowledged_meanwhile_is_acknowledged_again():
    backend = popping()
    renewer, _, renewal = renewing(backend, left_ms=5_000)
    renewal.ended = True
    asyncio.run(renewer.renew())
    assert [command.code for _, command in backend.asked] == [CHANGE, 200051]


def test_messages_of_a_client_that_has_gone_are_visible_soon():
    backend = popping()
    renewer, known, _ = renewing(backend, left_ms=50_000)
    asyncio.run(renewer.clear(known))
    (command,) = backend.asked_for(CHANGE)
    assert command.decode_header(ChangeInvisibleTimeRequestHeader).invisible_time == 1000
    assert not known.renewals
