"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.base.clock import now_ms
from mqlake.message import ReceiptHandle
from mqlake.proxy.acknowledge import Acknowledger, current_handle
from mqlake.proxy.clients import Renewal
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code
from mqlake.proxy.values import duration
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ViewMessageRequestHeader,
)
from mqlake.remoting.headers.produce import ConsumerSendMsgBackRequestHeader
from tests.proxy.live import resource
from tests.proxy.popping import popping, record
from tests.proxy.scripted import ScriptedBackend, client, context

ACK, CHANGE = 200051, 200053


def handle(offset: int = 3, *, flag: int = 0, age_ms: int = 0, physical: int = 77) -> ReceiptHandle:
    return ReceiptHandle(0, now_ms() - age_ms, 30_000, 2, flag, "b", 1, offset, physical)


def ack(backend: ScriptedBackend, *handles: str) -> v2.AckMessageResponse:
    entries = [
        v2.AckMessageEntry(message_id=f"id-{number}", receipt_handle=text)
        for number, text in enumerate(handles)
    ]
    request = v2.AckMessageRequest(group=resource("G"), topic=resource("T"), entries=entries)
    return asyncio.run(Acknowledger().ack_message(context(), client(backend), request))


@pytest.mark.parametrize(("flag", "topic"), [(0, "T"), (1, "%RETRY%G_T"), (2, "%RETRY%G+T")])
def test_an_ack_goes_to_the_topic_that_has_the_message(flag: int, topic: str):
    backend = popping()
    text = handle(flag=flag).text
    answer = ack(backend, text)
    assert answer.status.code == Code.OK
    (entry,) = answer.entries
    assert (entry.message_id, entry.receipt_handle, entry.status.code) == ("id-0", text, Code.OK)
    header = backend.asked[0][1].decode_header(AckMessageRequestHeader)
    assert (header.topic, header.consumer_group, header.queue_id, header.offset) == (topic, "G", 1, 3)
    assert header.extra_info == text


def test_entries_have_their_own_results():
    backend = popping()
    answer = ack(backend, handle().text, "garbage", handle(age_ms=40_000).text, handle(4).text)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    bad = Code.INVALID_RECEIPT_HANDLE
    assert [entry.status.code for entry in answer.entries] == [Code.OK, bad, bad, Code.OK]
    assert "is not a receipt handle" in answer.entries[1].status.message
    assert "receipt handle is expired" in answer.entries[2].status.message
    assert len(backend.asked) == 2
    assert ack(backend, "garbage").status.code == bad


def run(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(call)


def change(backend: ScriptedBackend, text: str, ms: int, *, suspend: bool = False) -> Any:
    request = v2.ChangeInvisibleDurationRequest(
        group=resource("G"),
        topic=resource("T"),
        receipt_handle=text,
        invisible_duration=duration(ms),
        message_id="id",
        suspend=suspend,
    )
    return run(Acknowledger().change_invisible_duration(context(), client(backend), request))


def test_the_new_handle_finds_its_own_checkpoint():
    """It begins at its message, and still knows where the message is in the log."""
    backend = popping()
    answer = change(backend, handle(3).text, 0, suspend=True)
    made = ReceiptHandle.parse(answer.receipt_handle)
    assert (made.start_offset, made.queue_offset, made.invisible_time, made.revive_queue_id) == (3, 3, 0, 5)
    assert made.physical_offset == 77
    header = backend.asked[0][1].decode_header(ChangeInvisibleTimeRequestHeader)
    assert (header.invisible_time, header.suspend, header.offset) == (0, True, 3)


@pytest.mark.parametrize("ms", [-1, 12 * 3600 * 1000 + 1])
def test_times_out_of_range(ms: int):
    with pytest.raises(StatusError) as caught:
        change(popping(), handle().text, ms)
    assert caught.value.code == Code.ILLEGAL_INVISIBLE_TIME


def forward(backend: ScriptedBackend, text: str) -> Any:
    request = v2.ForwardMessageToDeadLetterQueueRequest(
        group=resource("G"), topic=resource("T"), receipt_handle=text, message_id="id"
    )
    return run(Acknowledger().forward_to_dead_letter_queue(context(), client(backend), request))


def test_a_dead_letter_is_copied_then_acknowledged():
    backend = popping()
    assert forward(backend, handle().text).status.code == Code.OK
    look, back, ack_it = (command for _, command in backend.asked)
    assert look.decode_header(ViewMessageRequestHeader).offset == 77
    assert (back.code, ack_it.code) == (RequestCode.CONSUMER_SEND_MSG_BACK, ACK)
    header = back.decode_header(ConsumerSendMsgBackRequestHeader)
    assert (header.offset, header.group, header.delay_level, header.max_reconsume_times) == (77, "G", -1, 0)
    assert (header.origin_topic, header.origin_msg_id) == ("T", "id")


def test_a_dead_letter_that_is_not_stored_is_not_acknowledged():
    backend = popping()
    backend.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda _: RemotingCommand.create_response(
        1, "disk full"
    )
    answer = forward(backend, handle().text)
    assert (answer.status.code, answer.status.message) == (Code.INTERNAL_SERVER_ERROR, "disk full")
    assert backend.asked_for(ACK) == []


@pytest.mark.parametrize(
    "answer",
    [
        RemotingCommand.create_response(body=record(4)),
        RemotingCommand.create_response(body=record(3, queue_id=0)),
        RemotingCommand.create_response(body=b"garbage"),
        RemotingCommand.create_response(),
        RemotingCommand.create_response(1, "can not find message by the offset"),
    ],
)
def test_a_handle_that_leads_to_another_message_makes_no_dead_letter(answer: RemotingCommand):
    backend = popping()
    backend.answers[RequestCode.VIEW_MESSAGE_BY_ID] = lambda _: answer
    with pytest.raises(StatusError, match="leads to no message that group G received") as caught:
        forward(backend, handle().text)
    assert caught.value.code == Code.INVALID_RECEIPT_HANDLE
    assert len(backend.asked) == 1


def test_a_handle_without_a_place_in_the_log_cannot_become_a_dead_letter():
    with pytest.raises(StatusError) as caught:
        forward(popping(), handle(physical=-1).text)
    assert caught.value.code == Code.INVALID_RECEIPT_HANDLE


NUMBERS = st.integers(-(10**22), 10**22)


@given(
    st.text(max_size=60)
    | st.builds(
        lambda front, flag, rest: " ".join(map(str, [*front, flag, "b", *rest])),
        st.lists(NUMBERS, min_size=4, max_size=4),
        st.integers(0, 99),
        st.lists(NUMBERS, max_size=4),
    )
)
def test_forged_handles(text: str):
    known = client(ScriptedBackend())
    try:
        current_handle(known, "G", "id", text)
    except StatusError as error:
        assert error.code == Code.INVALID_RECEIPT_HANDLE
    else:
        assert ReceiptHandle.parse(text).visible_at >= now_ms() - 60_000


def test_a_renewed_handle_takes_the_place_of_the_clients():
    known = client(ScriptedBackend())
    old, new = handle(age_ms=40_000), handle()
    known.renewals["G", "id"] = renewal = Renewal("G", "T", old, 1)
    renewal.handle = new
    assert current_handle(known, "G", "id", old.text) is new
    assert current_handle(known, "G", "id", old.text, end=True) is new
    assert not known.renewals and renewal.ended
    with pytest.raises(StatusError):
        current_handle(known, "G", "id", old.text)
