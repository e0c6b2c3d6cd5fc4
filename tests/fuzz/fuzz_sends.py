"""Whatever a producer may send, given to two brokers, one with the compiled way and one without: the same answers.

python -m tests.fuzz.fuzz_sends sends|loop [libFuzzer's options and corpus]

`sends`: as one read of a connection; `loop`: by a socket of the compiled loop, in two reads. The other broker gets the
same reads: what has not been answered when damaged bytes close the connection never is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import atheris

with atheris.instrument_imports(include=["mqlake"], enable_loader_override=False):
    from mqlake.remoting.codes import SerializeType
    from tests.fuzz.two_brokers import TwoBrokers, draw_alike

from tests.broker.fast.test_fast_send import batch, item, own, send
from tests.fuzz.fuzz_frames import fuzz

RUNS_A_DIRECTORY = 5000
KINDS = list(SerializeType)


def _brokers(running: list[TwoBrokers] = []) -> TwoBrokers:  # noqa: B006 - made once
    if running and running[0].runs >= RUNS_A_DIRECTORY:
        running.pop().close()
    if not running:
        running.append(TwoBrokers())
    return running[0]


def _frames(data: bytes) -> bytes:
    """The first byte says what the others are: frames, or the body of a batch between two sends."""
    if data[:1] != b"f":
        kind = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
        return b"".join((send(opaque=1, kind=kind), batch(data[1:], opaque=2, kind=kind), send(opaque=3)))
    return data[1:]


def sends(data: bytes) -> None:
    """The same answers."""
    _brokers().run(_frames(data))


def loop(data: bytes) -> None:
    """The same answers; the last byte says where the first read ends."""
    frames = _frames(data)
    _brokers().run(frames, len(frames) * (data[-1] if data else 0) // 255)


TARGETS: dict[str, Callable[[bytes], None]] = {sends.__name__: sends, loop.__name__: loop}


def seeds(_name: str) -> Iterator[bytes]:
    for kind in KINDS:
        yield bytes([kind]) + item()
        yield bytes([kind]) + b"".join(item(bytes(n), own(n), flag=n) for n in range(8))
        yield b"f" + send(kind=kind) + batch(item(), item(), kind=kind)
        yield b"f" + send(code=10, long_names=True, kind=kind)
        yield b"f" + 2 * send(properties="KEYS\1k\2", kind=kind)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    draw_alike()
    fuzz(TARGETS, seeds)
