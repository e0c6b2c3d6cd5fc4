"""signatures: SHA-1 and HMAC as hashlib has them, and signed frames as auth.signature takes them."""

from __future__ import annotations

import hashlib
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.auth.signature import sign
from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels import frames
from mqlake.compiled.kernels import signatures as kernels
from mqlake.remoting.codec import encode_frame
from mqlake.remoting.codes import SerializeType
from mqlake.remoting.command import RemotingCommand

plain_block = kernels.plain_block


@compiled
def take_plain_block(state, at, data):  # type: ignore[no-untyped-def]
    plain_block(state, np.int64(at), data, np.int64(0))


@pytest.mark.parametrize("take", [kernels.take_block, take_plain_block])
@given(st.binary(min_size=64, max_size=64), st.binary(min_size=64, max_size=64))
def test_blocks_are_hashed_as_hashlib_does(take, first: bytes, second: bytes) -> None:  # type: ignore[no-untyped-def]
    state = np.array(kernels.START, np.int64)
    ending = b"\x80" + bytes(55) + (128 * 8).to_bytes(8, "big")
    for data in (first, second, ending):
        take(state, 0, np.frombuffer(data, np.uint8).copy())
    digest = b"".join(int(word).to_bytes(4, "big") for word in state)
    assert digest == hashlib.sha1(first + second).digest()


def is_signed(data: bytes, name: str, secret: str) -> bool:
    """What the kernel says of one frame."""
    head, fields = np.zeros(frames.HEAD_ROOM, np.int64), np.zeros((frames.LETTERS, 2), np.int64)
    text = np.zeros(2 * len(data) + kernels.NEW_ROOM, np.uint8)
    buf = np.frombuffer(data, np.uint8)
    stop, end = frames.read_frame(buf, 0, len(buf), head, fields, text, 0)
    assert stop == len(data), "a frame of this kind is read by the kernels"
    signer = kernels.states_of(secret.encode())
    signer[kernels.NAME_LENGTH] = len(name.encode())
    body = head[frames.HEAD_BODY_START]
    found = kernels.is_signed(
        text,
        end,
        buf.copy(),
        body,
        stop,
        head,
        fields,
        signer,
        np.frombuffer(name.encode() + b"-", np.uint8).copy(),
    )
    return bool(found)


VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90)
COMMANDS = st.builds(
    RemotingCommand,
    st.sampled_from([10, 310, 320, 37]),
    ext_fields=st.one_of(
        st.dictionaries(st.sampled_from(names), VALUES, max_size=8)
        for names in (string.ascii_lowercase, frames.LONG_NAMES)
    ),
    body=st.binary(max_size=300),
    serialize_type=st.sampled_from(SerializeType),
)


@given(COMMANDS, st.text(min_size=1, max_size=80), st.sampled_from(["", "token"]), st.integers(0, 10**6))
def test_a_frame_is_signed_for_the_kernel_as_it_is_for_the_slow_path(
    command: RemotingCommand, secret: str, token: str, flip: int
) -> None:
    sign(command, "alice", secret, token)
    data = encode_frame(command)
    assert is_signed(data, "alice", secret)
    assert not is_signed(data, "alice", secret + "x") and not is_signed(data, "alicf", secret)
    assert not is_signed(data, "alic", secret)
    body = command.body_bytes()
    if body:
        command.body = bytes([body[0] ^ 1]) + body[1:]
        assert not is_signed(encode_frame(command), "alice", secret)
        command.body = body
    given_signature = command.ext_fields["Signature"]
    at = flip % 27
    other = "A" if given_signature[at] != "A" else "B"
    command.ext_fields["Signature"] = given_signature[:at] + other + given_signature[at + 1 :]
    assert not is_signed(encode_frame(command), "alice", secret)
    del command.ext_fields["Signature"]
    assert not is_signed(encode_frame(command), "alice", secret)


@pytest.mark.parametrize("size", [*range(50, 70), *range(110, 135), 1000, 100_000])
def test_every_length_of_a_body(size: int) -> None:
    command = RemotingCommand(310, ext_fields={"b": "T"}, body=bytes(size))
    sign(command, "alice", "secret")
    assert is_signed(encode_frame(command), "alice", "secret")
