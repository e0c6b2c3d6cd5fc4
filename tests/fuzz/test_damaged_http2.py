"""Connections of the gRPC endpoint whose frames are damaged leave nothing behind: no exception, task, call or byte."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mqlake.proxy import http2
from mqlake.proxy.grpc_call import GrpcCall
from mqlake.proxy.http2 import Http2Connection
from tests.fuzz.damaged_http2 import Driver, run
from tests.proxy.frames import END_STREAM, GOAWAY, HEADERS


@pytest.fixture(autouse=True)
def _its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "HELD_MAX", http2.HELD_MAX)


def frames(written: bytes) -> Iterator[tuple[int, int]]:
    """Kind and flags of each."""
    start = 0
    while start < len(written):
        yield written[start + 3], written[start + 4]
        start += 9 + int.from_bytes(written[start : start + 3], "big")


def test_some_thousand_damaged_frames():
    assert run(3000) > 1000


@pytest.mark.nightly
def test_a_million_damaged_frames():
    run(1_000_000, seed=1 << 20)


def test_sessions_are_answered_before_they_are_damaged():
    """Else the connection would be closed by the first frame, and nothing of it be tested."""

    async def main() -> None:
        driver = Driver()
        ended = 0
        for seed in range(100):
            found = list(frames(bytes(await driver.session(seed, whole=True))))
            assert GOAWAY not in [kind for kind, _ in found], seed
            ended += sum(kind == HEADERS and flags & END_STREAM for kind, flags in found)
        assert ended > 100

    asyncio.run(main())


@pytest.mark.parametrize(
    ("owner", "method"),
    [(Http2Connection, "_drop_streams"), (GrpcCall, "_let_go")],
    ids=["calls of a closed connection", "held bytes"],
)
def test_what_is_left_is_found(owner: type, method: str, monkeypatch: pytest.MonkeyPatch):
    """The canary; it names the seed."""
    monkeypatch.setattr(owner, method, lambda self: None)
    with pytest.raises(AssertionError, match=r"seed [0-9]+: "):
        run(3000)
