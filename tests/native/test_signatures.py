"""signatures: SHA-1 and HMAC as hashlib has them, and signed frames as auth.signature takes them."""

from __future__ import annotations

import hashlib
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake import native
from mqlake.auth.signature import sign
from mqlake.native import frame_layout as frames
from mqlake.native.send_layout import (
    ACCESS_SIZE,
    ALLOWED_SLOTS,
    NAME_LENGTH,
    NAME_START,
    NEW_ROOM,
    QUEUES_MAX,
    SIGNER_SIZE,
    SIGNER_SLOTS_MAX,
    SIGNERS_MAX,
)
from mqlake.remoting.codec import encode_frame
from mqlake.remoting.codes import SerializeType
from mqlake.remoting.command import RemotingCommand

reader, kernels = native.module("frames"), native.module("signatures")
START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)


@pytest.mark.parametrize("plain", [False, True])
@given(st.binary(min_size=256, max_size=256), st.integers(1, 4))
def test_blocks_are_hashed_as_hashlib_does(plain: bool, data: bytes, first: int) -> None:
    state = np.array(START, np.int64)
    ending = b"\x80" + bytes(55) + (256 * 8).to_bytes(8, "big")
    for part in (data[: 64 * first], data[64 * first :] + ending):
        kernels.take_blocks(state, part, plain)
    digest = b"".join(int(word).to_bytes(4, "big") for word in state)
    assert digest == hashlib.sha1(data).digest()


def is_signed(data: bytes, name: str, secret: str) -> bool:
    """What the kernel says of one frame."""
    head, fields = np.zeros(frames.HEAD_ROOM, np.int64), np.zeros((frames.LETTERS, 2), np.int64)
    text = np.zeros(2 * len(data) + NEW_ROOM, np.uint8)
    buf = np.frombuffer(data, np.uint8)
    shapes = np.zeros(frames.SHAPES_SIZE, np.uint8)
    stop, end = reader.read(buf, head, fields, text, shapes)
    assert stop == len(data), "a frame of this kind is read by the kernels"
    known = name.encode()
    signers, slots = np.zeros(2 * SIGNER_SIZE, np.int64), np.zeros(SIGNER_SLOTS_MAX, np.int64)
    signers[SIGNER_SIZE:] = kernels.states_of(secret.encode())  # the second one, after another
    signers[SIGNER_SIZE + NAME_START], signers[SIGNER_SIZE + NAME_LENGTH] = 1, len(known)
    names = np.frombuffer(b"-" + known + b"-", np.uint8).copy()
    kernels.add_signer(1, signers, slots, names)
    access = np.zeros(ACCESS_SIZE, np.int64)
    return bool(kernels.signs(buf, head, fields, text, end, signers, slots, names, access))


VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90)
COMMANDS = st.builds(
    RemotingCommand,
    st.sampled_from([10, 310, 320, 37]),
    ext_fields=st.one_of(
        st.dictionaries(st.sampled_from([*names, "OnsChannel"]), VALUES, max_size=8)
        for names in ([*string.ascii_lowercase.replace("t", ""), "bname"], frames.LONG_NAMES)
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


PERMITS = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(0, SIGNERS_MAX - 1), st.integers(0, QUEUES_MAX - 1)
)


@given(st.lists(PERMITS, max_size=200), st.lists(PERMITS, max_size=50), st.integers(0, 65535))
def test_permits_are_a_set(
    given: list[tuple[int, int, int]], others: list[tuple[int, int, int]], port: int
) -> None:
    allowed = np.zeros(ALLOWED_SLOTS, np.int64)

    def host_of(address: int) -> int:
        return int.from_bytes((address << 32 | port).to_bytes(8, "big"), "big", signed=True)

    for address, signer, queue in given:
        kernels.add_permit(host_of(address), signer, queue, allowed)
    for address, signer, queue in [*given, *others]:
        known = kernels.is_permitted(host_of(address), signer, queue, allowed)
        assert known == ((address, signer, queue) in given)
