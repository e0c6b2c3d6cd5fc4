"""Clients that mean harm, or are broken, beside one that does not: it is answered, and memory stays bounded."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers import admin, codec, consume, namesrv, produce
from mqlake.remoting.headers.codec import CommandHeader
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S

NEIGHBOUR_S = 30.0
"""In which a neighbour is answered, whatever others do; a test's machine is busy."""
FRAME_MAX = 16 << 20
NO_CODE = 9999


class Client:
    def __init__(self, broker: MqlakeBroker, timeout_s: float = PATIENCE_S) -> None:
        host, _, port = broker.address.partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._received = bytearray()

    def ask(self, code: int = NO_CODE) -> RemotingCommand:
        request = RemotingCommand.create_request(code)
        self.socket.sendall(encode_frame(request))
        answer = self.answer()
        assert answer.opaque == request.opaque
        return answer

    def answer(self) -> RemotingCommand:
        received = self._received
        while not (end := frame_end(received, 0, len(received))):
            came = self.socket.recv(1 << 20)
            assert came, "the connection was closed"
            received += came
        command = decode_frame(memoryview(bytes(received[:end])), 0, end)
        del received[:end]
        return command

    def is_closed(self) -> bool:
        """Waits for the other side to close; False when it has not within the timeout."""
        try:
            while self.socket.recv(1 << 20):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="module")
def neighbour(broker: MqlakeBroker) -> Iterator[Callable[[], None]]:
    """Asks on a connection that was there before, and must be answered soon."""
    with contextlib.closing(Client(broker, NEIGHBOUR_S)) as client:

        def ask() -> None:
            assert client.ask().code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

        ask()
        yield ask


@pytest.fixture
def client(broker: MqlakeBroker) -> Iterator[Callable[[], Client]]:
    with contextlib.ExitStack() as clients:
        yield lambda: clients.enter_context(contextlib.closing(Client(broker)))


def frame_of(
    header: bytes, *, kind: int = 0, header_size: int | None = None, size: int | None = None
) -> bytes:
    said = len(header) if header_size is None else header_size
    return struct.pack(">iI", (4 + len(header)) if size is None else size, kind << 24 | said) + header


# of the headers of all requests
_NAMES = {
    field.name
    for module in (admin, consume, namesrv, produce)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, CommandHeader)
    for field in codec._fields_of(kind)
}

NO_FRAMES = {
    "a length of nothing": struct.pack(">i", 0) + bytes(100),
    "a negative length": struct.pack(">i", -1) + bytes(100),
    "a length beyond the limit": struct.pack(">i", FRAME_MAX + 1) + bytes(100),
    "a header longer than its frame": frame_of(b"{}", header_size=1000),
    "a header longer than a header may be": frame_of(b" " * (2 << 20)),
    "a header of an unknown kind": frame_of(b"{}", kind=77),
    "a header that is no JSON": frame_of(b"{" * 5000),
    "a header with a number for a map": frame_of(b'{"code":10,"extFields":7}'),
    "a header of 60 KB in fastjson's dialect": frame_of(b"{'a':" + b"[" * 60_000),
    "half a binary header": frame_of(bytes(20), kind=1),
    "a binary header whose fields have no end": frame_of(bytes(17) + struct.pack(">i", 2**31 - 1), kind=1),
    "text": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "a TLS hello to a server without a certificate": b"\x16\x03\x01\x02\x00" + bytes(512),
}


@pytest.mark.parametrize("what", NO_FRAMES)
def test_what_is_no_frame_closes_its_connection_only(
    client: Callable[[], Client], neighbour: Callable[[], None], what: str
):
    one = client()
    with contextlib.suppress(ConnectionError):
        one.socket.sendall(encode_frame(RemotingCommand.create_request(NO_CODE)) + NO_FRAMES[what])
    assert one.is_closed()
    neighbour()


def test_noise(client: Callable[[], Client], neighbour: Callable[[], None], broker: MqlakeBroker):
    dice = random.Random(7)
    before = broker.resident()
    for _ in range(100):
        one = client()
        with contextlib.suppress(ConnectionError):
            one.socket.sendall(dice.randbytes(dice.randrange(1, 5000)))
        neighbour()
    assert broker.resident() - before < 8 << 20


def test_frames_that_come_byte_by_byte(client: Callable[[], Client], neighbour: Callable[[], None]):
    frame = encode_frame(RemotingCommand.create_request(NO_CODE))
    slow = [client() for _ in range(50)]
    for number in range(len(frame)):
        for one in slow:
            one.socket.sendall(frame[number : number + 1])
        if number % 10 == 0:
            neighbour()
    for one in slow:
        assert one.answer().code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_claims_cost_what_came(
    client: Callable[[], Client], neighbour: Callable[[], None], broker: MqlakeBroker
):
    """200 clients say that 16 MB follow, and send a kilobyte."""
    before = broker.resident()
    claims = [client() for _ in range(200)]
    for one in claims:
        one.socket.sendall(frame_of(bytes(1024), size=FRAME_MAX - 4))
    neighbour()
    assert broker.resident() - before < 200 * 128 * 1024
    for one in claims:
        one.close()
    neighbour()


def test_a_long_frame_costs_its_length(
    client: Callable[[], Client], neighbour: Callable[[], None], broker: MqlakeBroker
):
    before = broker.resident()
    one = client()
    request = RemotingCommand.create_request(NO_CODE, body=bytes(FRAME_MAX - 1024))
    frame = encode_frame(request)
    most = 0
    for start in range(0, len(frame), 1 << 20):
        one.socket.sendall(frame[start : start + (1 << 20)])
        neighbour()
        most = max(most, broker.resident() - before)
    assert one.answer().code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    # while a buffer grows its half is there too
    assert most < 1.5 * FRAME_MAX + (4 << 20)
    deadline = time.monotonic() + PATIENCE_S
    while broker.resident() - before >= 4 << 20:  # the answer leaves a moment before the frame is given back
        assert time.monotonic() < deadline, "it is not given back"
        time.sleep(0.01)


def test_a_client_that_does_not_read(
    client: Callable[[], Client], neighbour: Callable[[], None], broker: MqlakeBroker
):
    """It is not read from either; when it reads, every answer is there, in its order."""
    before = broker.resident()
    one = client()
    requests = [
        RemotingCommand.create_request(RequestCode.GET_ALL_TOPIC_CONFIG, body=bytes(2048))
        for _ in range(10_000)
    ]
    sizes = [len(encode_frame(request)) for request in requests]
    frames = b"".join(map(encode_frame, requests))
    one.socket.setblocking(False)
    sent = 0
    stalled_at = time.monotonic()
    while sent < len(frames) and time.monotonic() - stalled_at < 0.5:
        try:
            sent += one.socket.send(frames[sent : sent + (1 << 20)])
            stalled_at = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
        neighbour()
    assert sent < len(frames), "it took everything"
    assert broker.resident() - before < 16 << 20
    neighbour()
    one.socket.setblocking(True)
    one.socket.settimeout(PATIENCE_S)
    complete = sum(end <= sent for end in itertools.accumulate(sizes))
    assert complete > 0
    for request in requests[:complete]:
        answer = one.answer()
        assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, request.opaque)
    neighbour()


def test_clients_that_go_in_the_middle(client: Callable[[], Client], neighbour: Callable[[], None]):
    frame = encode_frame(RemotingCommand.create_request(RequestCode.GET_ALL_TOPIC_CONFIG))
    for cut in range(1, len(frame)):
        one = client()
        one.socket.sendall(frame * 3 + frame[:cut])
        # a reset in the place of a goodbye
        one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    neighbour()


FIELDS: dict[str, dict[str, str]] = {
    "no fields": {},
    "ones": dict.fromkeys(_NAMES, "1"),
    "the largest numbers": dict.fromkeys(_NAMES, str(2**63 - 1)),
    "wrong types": dict.fromkeys(_NAMES, "x y"),
    "negative numbers": dict.fromkeys(_NAMES, "-1"),
    "names that nothing has": dict.fromkeys(_NAMES, "%x/ \x00é"),
}
BODIES = (b"", b'{"a":', b"[]", b'{"clientID":1,"consumerDataSet":[{}],"mqSet":[{}]}', b"a=b\n=\xff")


@pytest.mark.parametrize("what", FIELDS)
def test_every_request_with_what_it_cannot_be(
    client: Callable[[], Client], neighbour: Callable[[], None], what: str
):
    """Each is answered, with words rather than a traceback."""
    one = client()
    for code in RequestCode:
        for body in BODIES:
            request = RemotingCommand.create_request(code, body=body)
            request.ext_fields = dict(FIELDS[what])
            one.socket.sendall(encode_frame(request))
            answer = one.answer()
            assert answer.opaque == request.opaque
            assert "Error:" not in (answer.remark or ""), f"{code.name}: {answer.remark}"
    neighbour()


def test_the_log_says_what_was_wrong(broker: MqlakeBroker):
    said = broker.log.read_text()
    assert "a header of 1000 bytes in a frame of 10" in said
    assert "Traceback" not in said
