"""The client of the socket benches, and the loop that is their limit."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from bench.empty_loop import HEADER_SIZE_MAX
from bench.sockets import EmptyLoop, SocketLoad

from mqlake.remoting.codec import encode_frame
from mqlake.remoting.command import RemotingCommand
from tests.interop.brokers import MqlakeBroker


@pytest.mark.parametrize("compiled_by_numba", [False, True], ids=["C", "numba"])
@pytest.mark.parametrize(("connections", "in_flight", "frame"), [(1, 1, 20), (3, 700, 4), (2, 8, 70_000)])
def test_the_empty_loop_answers_each_frame(
    tmp_path: Path, compiled_by_numba: bool, connections: int, in_flight: int, frame: int
) -> None:
    """Frames that come whole, many in a read, and in parts; answers longer than a socket takes at once, the same each
    time or others in turn."""
    request, size, count = frame.to_bytes(4, "big") + bytes(frame), 50_000, 1_501
    answers = 900 if connections > 1 else 0
    with EmptyLoop(tmp_path, size, answers, compiled_by_numba=compiled_by_numba) as server:
        load = SocketLoad(
            server.address, [request], count, count, connections=connections, in_flight=in_flight
        )
        with contextlib.closing(load):
            assert [load.round()[1] for _ in range(2)] == [count * (size - 8 - HEADER_SIZE_MAX)] * 2


def test_a_refusal_ends_a_round(tmp_path: Path) -> None:
    with MqlakeBroker(tmp_path / "mqlake") as broker:
        unknown = encode_frame(RemotingCommand(9999, opaque=1))
        refused = pytest.raises(RuntimeError, match=r"a request was refused: .*9999")
        with contextlib.closing(SocketLoad(broker.address, [unknown], 1, 1)) as load, refused:
            load.round()
        broker.kill()
        with pytest.raises(OSError):
            SocketLoad(broker.address, [unknown], 1, 1)
