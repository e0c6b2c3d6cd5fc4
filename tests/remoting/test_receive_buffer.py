from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.remoting import receive_buffer
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.receive_buffer import (
    OWN_BUFFER_FROM,
    READ_MAX,
    SPARE_SIZE_MAX,
    SPARES_MAX,
    ReceiveBuffer,
    SpareBuffers,
    private_pages,
)

SCRATCH = 2 * OWN_BUFFER_FROM


def receive(
    buffer: ReceiveBuffer, data: bytes, sizes: list[int], *, keeps_views: bool = False
) -> list[bytes]:
    """The frames' bodies, when `data` comes in reads of these sizes (the last size again and again). A buffer of which
    somebody keeps views cannot grow where it is."""
    bodies, views = [], []
    position = 0
    for size in sizes:
        if position == len(data):
            break
        into = buffer.get_buffer()
        assert len(into) > 0
        count = min(size, len(into), len(data) - position)
        into[:count] = data[position : position + count]
        position += count
        view = buffer.commit(count)
        start = 0
        while stop := frame_end(view, start, len(view)):
            bodies.append(decode_frame(view, start, stop).body_bytes())
            start = stop
        buffer.keep(start)
        if keeps_views:
            views += [into, view]
        del into, view
    assert position == len(data)
    return bodies


def scratch() -> memoryview:
    return memoryview(bytearray(SCRATCH))


def test_frames_split_at_every_byte():
    frames = [encode_frame(RemotingCommand(1, body=body)) for body in (b"one", b"two", b"three")]
    data = b"".join(frames)
    for cut in range(1, len(data)):
        buffer = ReceiveBuffer(scratch(), SpareBuffers())
        assert receive(buffer, data, [cut, len(data)]) == [b"one", b"two", b"three"]
        assert buffer.held == 0
    assert receive(ReceiveBuffer(scratch(), SpareBuffers()), data, [1] * len(data)) == [
        b"one",
        b"two",
        b"three",
    ]


@given(
    st.lists(
        st.sampled_from([0, 1, 500, OWN_BUFFER_FROM - 200, OWN_BUFFER_FROM + 1, 5 * SCRATCH]), max_size=6
    ),
    st.lists(st.integers(1, 2 * SCRATCH), min_size=1, max_size=20),
    st.booleans(),
)
def test_frames_of_any_size_in_reads_of_any_size(lengths: list[int], sizes: list[int], keeps_views: bool):
    bodies = [bytes([i + 1]) * length for i, length in enumerate(lengths)]
    data = b"".join(encode_frame(RemotingCommand(1, body=body)) for body in bodies)
    spares = SpareBuffers()
    for _ in range(2):  # the second with what the first left
        buffer = ReceiveBuffer(scratch(), spares)
        assert receive(buffer, data, sizes + [SCRATCH] * 400, keeps_views=keeps_views) == bodies


def test_nothing_is_lost_when_another_connection_reads_in_between():
    shared = scratch()
    spares = SpareBuffers()
    one, other = ReceiveBuffer(shared, spares), ReceiveBuffer(shared, spares)
    frame = encode_frame(RemotingCommand(1, body=b"one"))
    assert receive(one, frame[:20], [20]) == []
    assert receive(other, encode_frame(RemotingCommand(1, body=b"x" * 9000)), [10_000]) == [b"x" * 9000]
    one.get_buffer()  # and no bytes came
    assert receive(other, encode_frame(RemotingCommand(1, body=b"y" * 9000)), [10_000]) == [b"y" * 9000]
    assert receive(one, frame[20:], [1000]) == [b"one"]


def test_a_length_alone_allocates_little():
    buffer = ReceiveBuffer(scratch(), SpareBuffers())
    receive(buffer, (16_000_000).to_bytes(4, "big"), [4])
    assert buffer.held == 4
    assert len(buffer.get_buffer()) < OWN_BUFFER_FROM


def test_a_long_frame_is_never_read_beyond():
    frame = encode_frame(RemotingCommand(1, body=bytes(300_000)))
    buffer = ReceiveBuffer(scratch(), SpareBuffers())
    receive(buffer, frame[:200_000], [SCRATCH] * 10)
    left = len(frame) - 200_000
    while buffer.held:
        into = buffer.get_buffer()
        assert len(into) <= left
        view = buffer.commit(len(into))
        left -= len(into)
        buffer.keep(frame_end(view, 0, len(view)))
    assert left == 0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the buffers that are made."""
    made: list[int] = []
    monkeypatch.setattr(
        receive_buffer, "private_pages", lambda size, new=private_pages: made.append(size) or new(size)
    )
    return made


def test_a_long_frame_grows_where_it_is(made: list[int]):
    body = bytes(range(256)) * 20_000
    data = encode_frame(RemotingCommand(1, body=body))
    buffer, position = ReceiveBuffer(scratch(), SpareBuffers()), 0
    while position < len(data):
        into = buffer.get_buffer()
        assert len(into) <= READ_MAX
        count = min(len(into), len(data) - position)
        into[:count] = data[position : position + count]
        del into
        position += count
        view = buffer.commit(count)
        stop = frame_end(view, 0, len(view))
        assert bool(stop) == (position == len(data))
        if stop:
            assert decode_frame(view, 0, stop).body_bytes() == body
        buffer.keep(stop)
        del view
    assert len(made) == 1 and made[0] < len(data)


def receive_in_turn(buffers: list[ReceiveBuffer], size: int) -> None:
    """A frame with a body of `size` bytes for each, of which all begin before the first one ends."""
    frames = [encode_frame(RemotingCommand(1, body=bytes([n]) * size)) for n in range(len(buffers))]
    for buffer, frame in zip(buffers, frames, strict=True):
        assert receive(buffer, frame[:SCRATCH], [SCRATCH]) == []
    for n, (buffer, frame) in enumerate(zip(buffers, frames, strict=True)):
        assert receive(buffer, frame[SCRATCH:], [READ_MAX] * 20) == [bytes([n]) * size]
        assert buffer.held == 0


def test_a_buffer_is_used_again_by_the_next_long_frame_of_any_connection(made: list[int]):
    spares = SpareBuffers()
    one, other = (ReceiveBuffer(scratch(), spares) for _ in range(2))
    for size in (2 * SCRATCH, 4 * SCRATCH, SCRATCH + 1):
        receive_in_turn([one], size)
        receive_in_turn([other], size)
    assert len(made) == 1
    receive_in_turn([one, other], 2 * SCRATCH)  # both at once
    receive_in_turn([other, one], 2 * SCRATCH)
    assert len(made) == 2


def test_no_more_buffers_are_kept_than_a_few(made: list[int]):
    spares = SpareBuffers()
    buffers = [ReceiveBuffer(scratch(), spares) for _ in range(SPARES_MAX + 3)]
    receive_in_turn(buffers, 2 * SCRATCH)
    made.clear()
    receive_in_turn(buffers, 2 * SCRATCH)
    assert len(made) == 3


def test_a_very_long_buffer_is_not_kept(made: list[int]):
    buffer = ReceiveBuffer(scratch(), SpareBuffers())
    for _ in range(2):
        receive_in_turn([buffer], SPARE_SIZE_MAX)
    assert len(made) == 2


def test_a_buffer_that_is_too_small_for_what_is_there_is_not_kept(made: list[int]):
    """Else a few small ones would be in the way of all that are longer."""
    spares = SpareBuffers()
    spares.give(private_pages(OWN_BUFFER_FROM))
    buffer = ReceiveBuffer(scratch(), spares)
    for _ in range(2):
        receive_in_turn([buffer], 2 * SCRATCH)
    assert len(made) == 1


def test_what_had_to_wait_is_given_again():
    frames = b"".join(encode_frame(RemotingCommand(1, body=bytes([i]))) for i in range(3))
    buffer = ReceiveBuffer(scratch(), SpareBuffers())
    into = buffer.get_buffer()
    into[: len(frames)] = frames
    view = buffer.commit(len(frames))
    first = frame_end(view, 0, len(view))
    buffer.keep(first)
    assert bytes(buffer.take_back()) == frames[first:]
    buffer.keep(first)
    assert bytes(buffer.take_back()) == frames[2 * first :]
    buffer.keep(first)
    assert buffer.held == 0
    assert len(buffer.get_buffer()) == SCRATCH
