"""h2spec, a program of HTTP/2's rules: the connection with a handler that answers anything, and the gRPC endpoint."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mqlake.proxy.http2 import Headers, Http2Connection
from mqlake.remoting.loop import run
from tests.interop.go_programs import installed
from tests.proxy.test_http2 import serving

H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"

_LATE = "nghttp2 ignores frames of a stream that is closed: they may have been on their way"
_PRIORITY = "nghttp2 ignores priorities, which RFC 9113 has taken out"
OF_NGHTTP2 = {
    "http2/5.1: closed: Sends a DATA frame after sending RST_STREAM frame": _LATE,
    "http2/5.1: closed: Sends a HEADERS frame after sending RST_STREAM frame": _LATE,
    "http2/5.1: closed: Sends a DATA frame": _LATE,
    "http2/5.1: closed: Sends a HEADERS frame": _LATE,
    "http2/5.1.1: Sends stream identifier that is numerically smaller than previous": _LATE,
    "http2/5.3.1: Sends PRIORITY frame that depend on itself": _PRIORITY,
    "http2/6.3: Sends a PRIORITY frame with 0x0 stream identifier": _PRIORITY,
    "http2/6.9.1: Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream": (
        "nghttp2 ends the connection, and not the stream alone"
    ),
}
_NO_BODY = "what is no POST gets the status 405 alone, without DATA"
_AT_ONCE = "what is no POST is answered before the rest comes: its stream may be closed by then"
OF_GRPC = {
    "generic/2: Sends a WINDOW_UPDATE frame on half-closed (remote) stream": _NO_BODY,
    "generic/2: Sends a PRIORITY frame on half-closed (remote) stream": _NO_BODY,
    "http2/5.1: half closed (remote): Sends a DATA frame": _AT_ONCE,
    "http2/5.1: half closed (remote): Sends a HEADERS frame": _AT_ONCE,
    "http2/5.1.2: Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded": _AT_ONCE,
    "http2/6.1: Sends a DATA frame with invalid pad length": _AT_ONCE,
    "http2/6.9: Sends a WINDOW_UPDATE frame with a flow control window increment of 0 on a stream": _AT_ONCE,
    "http2/8.1: Sends a second HEADERS frame without the END_STREAM flag": _AT_ONCE,
    "http2/8.1.2.1: Sends a HEADERS frame that contains a pseudo-header field as trailers": _AT_ONCE,
    'http2/8.1.2.6: Sends a HEADERS frame with the "content-length" header field which does not equal the DATA frame '
    "payload length": _AT_ONCE,
    'http2/8.1.2.6: Sends a HEADERS frame with the "content-length" header field which does not equal the sum of the '
    "multiple DATA frames payload length": _AT_ONCE,
}
CASES_MIN = 140
OPEN_S = 0.5


class Plain:
    """A StreamHandler that answers a request when it has ended."""

    def __init__(self, connection: Http2Connection, stream: int, headers: Headers, ended: bool) -> None:
        self.connection, self.stream = connection, stream
        if ended:
            connection.loop.call_soon(self.answer)

    def answer(self) -> None:
        self.connection.respond(self.stream, [(b":status", b"200")])
        self.connection.send(self.stream, b"plain")
        # a case sends what is wrong on a stream that is still there
        self.connection.loop.call_later(OPEN_S, self.connection.finish, self.stream, [(b"end", b"1")])

    def received(self, data: bytes, *, ended: bool) -> None:
        self.connection.acknowledge(self.stream, len(data))
        if ended:
            self.answer()

    def lost(self) -> None:
        pass

    def waits_since(self) -> None:
        return None

    def stalled(self) -> None:
        pass


@pytest.fixture(scope="module")
def h2spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(H2SPEC, tmp_path_factory.mktemp("h2spec"))


def failures(h2spec: Path, port: int, directory: Path) -> set[str]:
    """The names of the cases that failed."""
    report = directory / "report.xml"
    command = [h2spec, "--port", str(port), "--junit-report", report]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert report.exists(), said.stdout + said.stderr
    cases = list(ElementTree.parse(report).iter("testcase"))
    assert len(cases) >= CASES_MIN, said.stdout
    return {
        f"{case.get('package')}: {case.get('classname')}"
        for case in cases
        if case.find("error") is not None or case.find("failure") is not None
    }


@pytest.mark.nightly
def test_of_http2_only_the_named_cases_fail(h2spec: Path, tmp_path: Path):
    """And each of them does, or its reason is gone."""
    assert run(found_at(h2spec, tmp_path, plain=True)) == {*OF_NGHTTP2}


@pytest.mark.nightly
def test_the_grpc_endpoint_may_also_fail_what_it_answers_at_once(h2spec: Path, tmp_path: Path):
    """h2spec asks by GET."""
    found = run(found_at(h2spec, tmp_path, plain=False))
    assert {*OF_NGHTTP2} <= found <= {*OF_NGHTTP2, *OF_GRPC}


async def found_at(h2spec: Path, directory: Path, *, plain: bool) -> set[str]:
    async with asyncio.timeout(300), serving() as it:
        if plain:
            it.server._accept = Plain  # type: ignore[assignment]
        found = await asyncio.to_thread(failures, h2spec, it.port, directory)
        assert not [one for one in it.server.connections if one.held]
    return found
