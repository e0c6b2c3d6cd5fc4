# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The signature of a request, compiled: base64(HmacSHA1(secret, values in the order of their names, then the body)).

    secret ─(once, states_of)─▶ SHA-1 after the inner and the outer block
    frame  ─ values to `text`, in order ─▶ SHA-1 of them and the body ─▶ SHA-1 of that ─▶ 28 characters, compared

SHA-1 runs on the processor's own instructions where it has them (four rounds in one), else in plain ones. The same as
auth.signature, which says what is right.
"""

from __future__ import annotations

import hashlib

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels import frames
from mqlake.compiled.kernels.primitives import copy, same_bytes, store32, store64

BLOCK = 64
STATE = 5
INNER, OUTER, RUNNING, NAME_LENGTH, CHECKED = 0, STATE, 2 * STATE, 3 * STATE, 3 * STATE + 1
SIGNER_SIZE = 3 * STATE + 2
"""Numbers of a signer: both states, room for a third, the length of the name, and whether requests are checked."""
SIGNATURE_LENGTH = 28
NEW_ROOM = 256
"""Bytes that a check needs after the values."""
START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)
ADDED = (0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6)
LONG_ORDER = np.array(sorted(range(len(frames.LONG_NAMES)), key=frames.LONG_NAMES.__getitem__), np.int64)
CHARACTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
).copy()

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_FOUR = ir.VectorType(_I32, 4)
HAS_SHA = bool(binding.get_host_cpu_features().get("sha"))


def _elements(context, builder, kind, value):
    """The first element's address, of an array or a pointer."""
    return context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value


def _word(value):
    return ir.Constant(_I32, value)


def _fast_block(builder, words, state):
    """Intel's and AMD's instructions: registers hold [d c b a], and four words of the message, the first one last."""
    module = builder.module

    def operation(name, *more):
        kind = ir.FunctionType(_FOUR, [_FOUR, _FOUR, *more])
        return module.declare_intrinsic(f"llvm.x86.{name}", (), kind)

    rounds, next_e = operation("sha1rnds4", _I8), operation("sha1nexte")
    message1, message2 = operation("sha1msg1"), operation("sha1msg2")

    def vector(lanes):
        made = ir.Constant(_FOUR, [0] * 4)
        for lane, value in enumerate(lanes):
            made = builder.insert_element(made, value, _word(lane))
        return made

    zero = _word(0)
    w = [vector(words[i : i + 4][::-1]) for i in range(0, 16, 4)]
    before = abcd = vector(state[:4][::-1])
    e = vector([zero, zero, zero, state[4]])
    previous = abcd
    for i in range(20):
        if i >= 4:
            mixed = builder.xor(builder.call(message1, [w[i - 4], w[i - 3]]), w[i - 2])
            w.append(builder.call(message2, [mixed, w[i - 1]]))
        added = builder.add(e, w[0]) if i == 0 else builder.call(next_e, [previous, w[i]])
        previous = abcd
        abcd = builder.call(rounds, [abcd, added, ir.Constant(_I8, i // 5)])
    last = builder.call(next_e, [previous, e])
    abcd = builder.add(abcd, before)
    result = [builder.extract_element(abcd, _word(lane)) for lane in (3, 2, 1, 0)]
    return [*result, builder.extract_element(last, _word(3))]


def _plain_block(builder, words, state):
    """FIPS 180-4, 80 rounds in a row."""
    shift = builder.module.declare_intrinsic("llvm.fshl", (_I32,), ir.FunctionType(_I32, [_I32] * 3))

    def rotated(value, count):
        return builder.call(shift, [value, value, _word(count)])

    w = list(words)
    a, b, c, d, e = state
    for i in range(80):
        if i >= 16:
            mixed = builder.xor(builder.xor(w[i - 3], w[i - 8]), builder.xor(w[i - 14], w[i - 16]))
            w.append(rotated(mixed, 1))
        if i < 20:
            f = builder.xor(d, builder.and_(b, builder.xor(c, d)))
        elif 40 <= i < 60:
            f = builder.or_(builder.and_(b, c), builder.and_(d, builder.or_(b, c)))
        else:
            f = builder.xor(builder.xor(b, c), d)
        total = builder.add(builder.add(rotated(a, 5), f), builder.add(e, w[i]))
        total = builder.add(total, _word(ADDED[i // 20]))
        a, b, c, d, e = total, a, rotated(b, 30), c, d
    return [builder.add(old, new) for old, new in zip(state, (a, b, c, d, e), strict=True)]


def _block_intrinsic(make_block):
    @intrinsic
    def block(_context, _state, _at, _data, _position):
        """Takes one block data[position:position + 64] into the state at state[at:at + 5]."""

        def generate(context, builder, signature, arguments):
            state_kind, _, data_kind, _ = signature.args
            state, at, data, position = arguments
            numbers = builder.gep(_elements(context, builder, state_kind, state), [at])
            octets = builder.gep(_elements(context, builder, data_kind, data), [position])
            swap = builder.module.declare_intrinsic("llvm.bswap", (_I32,), ir.FunctionType(_I32, [_I32]))
            places = [builder.gep(numbers, [ir.Constant(_I64, i)]) for i in range(STATE)]
            before = [builder.trunc(builder.load(place), _I32) for place in places]
            pointer32 = builder.bitcast(octets, _I32.as_pointer())
            words = []
            for i in range(16):
                loaded = builder.load(builder.gep(pointer32, [ir.Constant(_I64, i)]))
                loaded.align = 1
                words.append(builder.call(swap, [loaded]))
            for place, value in zip(places, make_block(builder, words, before), strict=True):
                builder.store(builder.zext(value, _I64), place)
            return context.get_dummy_value()

        return types.void(_state, types.int64, _data, types.int64), generate

    return block


plain_block = _block_intrinsic(_plain_block)
block = _block_intrinsic(_fast_block) if HAS_SHA else plain_block


@compiled
def finish(state, at, data, start, rest, length):
    """Takes the last data[start:start + rest] (less than a block) of `length` bytes, with what SHA-1 adds to it. Writes
    up to two blocks at `start`."""
    data[np.uint64(start + rest)] = np.uint8(0x80)
    end = start + BLOCK if rest < BLOCK - 8 else start + 2 * BLOCK
    for i in range(start + rest + 1, end - 8):
        data[np.uint64(i)] = np.uint8(0)
    store64(data, end - 8, length * 8)
    while start < end:
        block(state, at, data, np.int64(start))
        start += BLOCK


@compiled
def is_signed(text, at, data, body, stop, head, fields, signer, name):
    """True if the frame whose header was read is signed by the signer. `text` has room from `at` on for its values
    again, and NEW_ROOM."""
    key, given = fields[frames.ACCESS_KEY, 1], fields[frames.SIGNATURE, 1]
    if key < 1 or key != signer[NAME_LENGTH] or given != SIGNATURE_LENGTH:
        return False
    if not same_bytes(text, fields[frames.ACCESS_KEY, 0], name, 0, key):
        return False
    end = np.int64(at)
    for i in range(frames.ACCESS_KEY, frames.SECURITY_TOKEN + 1):
        if fields[i, 1] > 0:
            copy(text, end, text, fields[i, 0], fields[i, 1])
            end += fields[i, 1]
    if head[frames.HEAD_NAMES] == frames.LONG:
        for i in range(len(LONG_ORDER)):
            letter = LONG_ORDER[i]
            if fields[letter, 1] > 0:
                copy(text, end, text, fields[letter, 0], fields[letter, 1])
                end += fields[letter, 1]
    else:
        for letter in range(frames.SHORT_LETTERS):
            if fields[letter, 1] > 0:
                copy(text, end, text, fields[letter, 0], fields[letter, 1])
                end += fields[letter, 1]
    for i in range(STATE):
        signer[RUNNING + i] = signer[INNER + i]
    length = BLOCK + (end - at) + (stop - body)
    while end - at >= BLOCK:
        block(signer, np.int64(RUNNING), text, np.int64(at))
        at += BLOCK
    if end > at:  # a block that begins with the last values and ends with the first of the body
        more = min(BLOCK - (end - at), stop - body)
        copy(text, end, data, body, more)
        end += more
        body += more
        if end - at == BLOCK:
            block(signer, np.int64(RUNNING), text, np.int64(at))
            at = end
    while stop - body >= BLOCK:
        block(signer, np.int64(RUNNING), data, np.int64(body))
        body += BLOCK
    copy(text, end, data, body, stop - body)
    finish(signer, RUNNING, text, at, end - at + stop - body, length)
    for i in range(STATE):
        store32(text, at + 4 * i, signer[RUNNING + i])
        signer[RUNNING + i] = signer[OUTER + i]
    finish(signer, RUNNING, text, at, 4 * STATE, BLOCK + 4 * STATE)
    return is_base64(signer, text, fields[frames.SIGNATURE, 0])


@compiled
def is_base64(signer, text, start):
    """True if text[start:start + 28] is the running state in base64; it looks at all of it in any case."""
    different = np.int64(0)
    for i in range(SIGNATURE_LENGTH):
        bit = 6 * i
        value = np.int64(0)
        for j in range(6):  # bit by bit: 168 steps are little beside the hash
            place = bit + j
            one = np.int64(0)
            if place < 160:
                one = (signer[RUNNING + place // 32] >> (31 - place % 32)) & 1
            value = value * 2 + one
        expected = CHARACTERS[value] if bit < 160 else np.uint8(61)
        different |= np.int64(expected) ^ np.int64(text[np.uint64(start + i)])
    return different == 0


# --- not compiled ------------------------------------------------------------------------------------------------


def states_of(secret: bytes) -> np.ndarray:
    """SIGNER of a secret, without a name: the states of SHA-1 after each of HMAC's two keys."""
    signer = np.zeros(SIGNER_SIZE, np.int64)
    key = (hashlib.sha1(secret).digest() if len(secret) > BLOCK else secret).ljust(BLOCK, b"\0")
    for at, mask in ((INNER, 0x36), (OUTER, 0x5C)):
        signer[at : at + STATE] = START
        take_block(signer, at, np.frombuffer(bytes(byte ^ mask for byte in key), np.uint8).copy())
    return signer


@compiled
def take_block(state, at, data):
    block(state, np.int64(at), data, np.int64(0))
