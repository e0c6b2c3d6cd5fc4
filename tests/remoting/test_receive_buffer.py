from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.remoting import receive_buffer
from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.receive_buffer import OWN_BUFFER_FROM, READ_MAX, ReceiveBuffer, _pages

SCRATCH = 2 * OWN_BUFFER_FROM


def receive(buffer: ReceiveBuffer, data: bytes, sizes: list[int]) -> list[bytes]:
    """The frames' bodies, when `data` comes in reads of these sizes (the last size again and again)."""
    bodies = []
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
    assert position == len(data)
    return bodies


def scratch() -> memoryview:
    return memoryview(bytearray(SCRATCH))


def test_frames_split_at_every_byte():
    frames = [encode_frame(RemotingCommand(1, body=body)) for body in (b"one", b"two", b"three")]
    data = b"".join(frames)
    for cut in range(1, len(data)):
        buffer = ReceiveBuffer(scratch())
        assert receive(buffer, data, [cut, len(data)]) == [b"one", b"two", b"three"]
        assert buffer.held == 0
    assert receive(ReceiveBuffer(scratch()), data, [1] * len(data)) == [b"one", b"two", b"three"]


@given(
    st.lists(
        st.sampled_from([0, 1, 500, OWN_BUFFER_FROM - 200, OWN_BUFFER_FROM + 1, 5 * SCRATCH]), max_size=6
    ),
    st.lists(st.integers(1, 2 * SCRATCH), min_size=1, max_size=20),
)
def test_frames_of_any_size_in_reads_of_any_size(lengths: list[int], sizes: list[int]):
    bodies = [bytes([i + 1]) * length for i, length in enumerate(lengths)]
    data = b"".join(encode_frame(RemotingCommand(1, body=body)) for body in bodies)
    assert receive(ReceiveBuffer(scratch()), data, sizes + [SCRATCH] * 400) == bodies


def test_nothing_is_lost_when_another_connection_reads_in_between():
    shared = scratch()
    one, other = ReceiveBuffer(shared), ReceiveBuffer(shared)
    frame = encode_frame(RemotingCommand(1, body=b"one"))
    assert receive(one, frame[:20], [20]) == []
    assert receive(other, encode_frame(RemotingCommand(1, body=b"x" * 9000)), [10_000]) == [b"x" * 9000]
    one.get_buffer()  # and no bytes came
    assert receive(other, encode_frame(RemotingCommand(1, body=b"y" * 9000)), [10_000]) == [b"y" * 9000]
    assert receive(one, frame[20:], [1000]) == [b"one"]


def test_a_length_alone_allocates_little():
    buffer = ReceiveBuffer(scratch())
    receive(buffer, (16_000_000).to_bytes(4, "big"), [4])
    assert buffer.held == 4
    assert len(buffer.get_buffer()) < OWN_BUFFER_FROM


def test_a_long_frame_is_never_read_beyond():
    frame = encode_frame(RemotingCommand(1, body=bytes(300_000)))
    buffer = ReceiveBuffer(scratch())
    receive(buffer, frame[:200_000], [SCRATCH] * 10)
    left = len(frame) - 200_000
    while buffer.held:
        into = buffer.get_buffer()
        assert len(into) <= left
        view = buffer.commit(len(into))
        left -= len(into)
        buffer.keep(frame_end(view, 0, len(view)))
    assert left == 0


def test_a_long_frame_grows_where_it_is(monkeypatch: pytest.MonkeyPatch):
    made = []
    monkeypatch.setattr(receive_buffer, "_pages", lambda size, new=_pages: made.append(size) or new(size))
    body = bytes(range(256)) * 20_000
    data = encode_frame(RemotingCommand(1, body=body))
    buffer, position = ReceiveBuffer(scratch()), 0
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


def test_what_had_to_wait_is_given_again():
    frames = b"".join(encode_frame(RemotingCommand(1, body=bytes([i]))) for i in range(3))
    buffer = ReceiveBuffer(scratch())
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
