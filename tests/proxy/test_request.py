"""Requests of the endpoint: their header is text only for a broker that is somewhere else."""

from __future__ import annotations

from mqlake.proxy.request import Request
from mqlake.remoting.codec import decode_frame, encode_frame
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.headers.consume import AckMessageRequestHeader, GetMaxOffsetRequestHeader


def header() -> AckMessageRequestHeader:
    return AckMessageRequestHeader(
        consumer_group="G", topic="T", queue_id=1, extra_info="0 1 2", offset=3, bname="b"
    )


def test_a_broker_in_this_process_gets_the_header_itself():
    request = Request(RequestCode.ACK_MESSAGE, given := header(), b"body")
    assert request.decode_header(AckMessageRequestHeader) is given
    assert (request.body, request.is_response) == (b"body", False)


def test_another_one_gets_its_fields():
    request = Request(RequestCode.ACK_MESSAGE, header())
    frame = bytes(encode_frame(request))
    sent = decode_frame(memoryview(frame), 0, len(frame))
    assert sent.decode_header(AckMessageRequestHeader) == header()
    assert sent.opaque == request.opaque != Request(RequestCode.ACK_MESSAGE, header()).opaque


def test_fields_that_were_added_count():
    request = Request(RequestCode.ACK_MESSAGE, header())
    request.ext_fields["topic"] = "U"  # as a signature is added
    assert request.decode_header(AckMessageRequestHeader).topic == "U"
    assert request.decode_header(GetMaxOffsetRequestHeader).queue_id == 1
