# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The signature of a request, compiled: base64(HmacSHA1(secret, values in the order of their names, then the body)).

    secret ─(once, states_of)─▶ SHA-1 after the inner and the outer block, kept in SIGNERS
    frame  ─ its AccessKey ─▶ signer
           └ values to `text`, in order ─▶ SHA-1 of them and the body ─▶ SHA-1 of that ─▶ 28 characters, compared

SHA-1 runs on the processor's own instructions where it has them (four rounds in one), else in plain ones. The same as
auth.signature, which says what is right.

ALLOWED is a set of (address, signer, queue) in one number each (`permit`).
"""

from __future__ import annotations

import hashlib

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels import frames
from mqlake.compiled.kernels.primitives import copy, find, hash_bytes, pointer, same_bytes, store32, store64
from mqlake.compiled.kernels.send_layout import (
    ALLOWED_SLOTS,
    INNER,
    NAME_LENGTH,
    NAME_START,
    OUTER,
    QUEUES_MAX,
    RUNNING,
    SIGNER_SIZE,
    SIGNER_SLOTS_MAX,
    SIGNERS_MAX,
)

BLOCK = 64
STATE = 5
SIGNATURE_LENGTH = 28
SIGNING = frames.SIGNATURE - frames.ACCESS_KEY
"""Fields that sign a request and are signed themselves."""
NEW_ROOM = 256
"""Bytes that a check needs after the values."""
START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)
ADDED = (0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6)
LONG_ORDER = np.array(sorted(range(len(frames.LONG_NAMES)), key=frames.LONG_NAMES.__getitem__), np.int64)
SHORT_NAMES = ["bname" if n == frames.BNAME else chr(ord("a") + n) for n in range(frames.SHORT_LETTERS)]
SHORT_ORDER = np.array(sorted(range(len(SHORT_NAMES)), key=SHORT_NAMES.__getitem__), np.int64)
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


class _Fast:
    """Intel's and AMD's instructions: registers hold [d c b a], and four words of the message, the first one last."""

    @staticmethod
    def loaded(builder, words):
        made = [ir.Constant(_FOUR, [0] * 4)] * 2
        for lane, word in enumerate(words[3::-1]):
            made[0] = builder.insert_element(made[0], word, _word(lane))
        made[1] = builder.insert_element(made[1], words[4], _word(3))
        return made

    @staticmethod
    def words(builder, state):
        lanes = [builder.extract_element(state[0], _word(lane)) for lane in (3, 2, 1, 0)]
        return [*lanes, builder.extract_element(state[1], _word(3))]

    @staticmethod
    def block(builder, octets, state):
        def operation(name, *more):
            kind = ir.FunctionType(_FOUR, [_FOUR, _FOUR, *more])
            return builder.module.declare_intrinsic(f"llvm.x86.{name}", (), kind)

        rounds, next_e = operation("sha1rnds4", _I8), operation("sha1nexte")
        message1, message2 = operation("sha1msg1"), operation("sha1msg2")
        sixteen = ir.VectorType(_I8, 16)
        backwards = ir.Constant(ir.VectorType(_I32, 16), list(range(15, -1, -1)))
        w = []
        for i in range(4):
            place = builder.bitcast(builder.gep(octets, [ir.Constant(_I64, 16 * i)]), sixteen.as_pointer())
            given = builder.load(place)
            given.align = 1
            w.append(builder.bitcast(builder.shuffle_vector(given, given, backwards), _FOUR))
        before, e = state
        abcd = previous = before
        for i in range(20):
            if i >= 4:
                mixed = builder.xor(builder.call(message1, [w[i - 4], w[i - 3]]), w[i - 2])
                w.append(builder.call(message2, [mixed, w[i - 1]]))
            added = builder.add(e, w[0]) if i == 0 else builder.call(next_e, [previous, w[i]])
            previous = abcd
            abcd = builder.call(rounds, [abcd, added, ir.Constant(_I8, i // 5)])
        return [builder.add(abcd, before), builder.call(next_e, [previous, e])]


class _Plain:
    """FIPS 180-4, 80 rounds in a row."""

    @staticmethod
    def loaded(_builder, words):
        return words

    @staticmethod
    def words(_builder, state):
        return state

    @staticmethod
    def block(builder, octets, state):
        shift = builder.module.declare_intrinsic("llvm.fshl", (_I32,), ir.FunctionType(_I32, [_I32] * 3))
        swap = builder.module.declare_intrinsic("llvm.bswap", (_I32,), ir.FunctionType(_I32, [_I32]))

        def rotated(value, count):
            return builder.call(shift, [value, value, _word(count)])

        words = builder.bitcast(octets, _I32.as_pointer())
        w = []
        a, b, c, d, e = state
        for i in range(80):
            if i < 16:
                given = builder.load(builder.gep(words, [ir.Constant(_I64, i)]))
                given.align = 1
                w.append(builder.call(swap, [given]))
            else:
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


def _blocks_intrinsic(kind):
    @intrinsic
    def blocks(_context, _state, _at, _data, _position, _count):
        """Takes `count` blocks from data[position] on into the state at state[at:at + 5]; at least one."""

        def generate(context, builder, signature, arguments):
            state_kind, _, data_kind, _, _ = signature.args
            state, at, data, position, count = arguments
            numbers = builder.gep(_elements(context, builder, state_kind, state), [at])
            octets = builder.gep(_elements(context, builder, data_kind, data), [position])
            places = [builder.gep(numbers, [ir.Constant(_I64, i)]) for i in range(STATE)]
            before = kind.loaded(builder, [builder.trunc(builder.load(place), _I32) for place in places])
            entry = builder.block
            loop, done = builder.append_basic_block("blocks"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            number = builder.phi(_I64)
            number.add_incoming(ir.Constant(_I64, 0), entry)
            carried = [builder.phi(each.type) for each in before]
            for each, first in zip(carried, before, strict=True):
                each.add_incoming(first, entry)
            offset = builder.mul(number, ir.Constant(_I64, BLOCK))
            after = kind.block(builder, builder.gep(octets, [offset]), carried)
            following = builder.add(number, ir.Constant(_I64, 1))
            number.add_incoming(following, builder.block)
            for each, value in zip(carried, after, strict=True):
                each.add_incoming(value, builder.block)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
            builder.position_at_end(done)
            for place, value in zip(places, kind.words(builder, after), strict=True):
                builder.store(builder.zext(value, _I64), place)
            return context.get_dummy_value()

        return types.void(_state, types.int64, _data, types.int64, types.int64), generate

    return blocks


plain_blocks = _blocks_intrinsic(_Plain)
blocks = _blocks_intrinsic(_Fast) if HAS_SHA else plain_blocks


@compiled
def finish(state, at, data, start, rest, length):
    """Takes the last data[start:start + rest] (less than a block) of `length` bytes, with what SHA-1 adds to it. Writes
    up to two blocks at `start`."""
    data[np.uint64(start + rest)] = np.uint8(0x80)
    count = 1 if rest < BLOCK - 8 else 2
    end = start + count * BLOCK
    for i in range(start + rest + 1, end - 8):
        data[np.uint64(i)] = np.uint8(0)
    store64(data, end - 8, length * 8)
    blocks(state, at, data, start, np.int64(count))


@compiled
def put_fields(text, end, head, fields):
    """Copies the values of all fields but the signature to text[end:], in the order of their names; the end of them."""
    is_long = head[frames.HEAD_NAMES] == frames.LONG
    start = stop = np.int64(
        0
    )  # of values that stand in `text` as they are signed: clients send most of them so
    for i in range(SIGNING + (len(LONG_ORDER) if is_long else frames.SHORT_LETTERS)):
        if i < SIGNING:
            letter = np.int64(frames.ACCESS_KEY + i)
        else:
            letter = LONG_ORDER[i - SIGNING] if is_long else SHORT_ORDER[i - SIGNING]
        length = fields[letter, 1]
        if length > 0:
            if fields[letter, 0] != stop:
                copy(text, end, text, start, stop - start)
                end += stop - start
                start = stop = fields[letter, 0]
            stop += length
    copy(text, end, text, start, stop - start)
    return end + stop - start


@compiled
def is_signed(text, at, data, body, stop, head, fields, signers, signer, access):
    """True if the frame whose header was read is signed by that one of SIGNERS. `text` has room from `at` on
    for the header's values again, and NEW_ROOM."""
    if fields[frames.SIGNATURE, 1] != SIGNATURE_LENGTH:
        return False
    running, states = np.int64(RUNNING), signer * SIGNER_SIZE
    end = put_fields(text, np.int64(at), head, fields)
    for i in range(STATE):
        access[RUNNING + i] = signers[states + INNER + i]
    length = BLOCK + (end - at) + (stop - body)
    whole = (end - at) // BLOCK
    if whole:
        blocks(access, running, text, at, whole)
        at += whole * BLOCK
    if end > at:  # a block that begins with the last values and ends with the first of the body
        more = min(BLOCK - (end - at), stop - body)
        copy(text, end, data, body, more)
        end += more
        body += more
        if end - at == BLOCK:
            blocks(access, running, text, at, np.int64(1))
            at = end
    whole = (stop - body) // BLOCK
    if whole:
        blocks(access, running, data, body, whole)
        body += whole * BLOCK
    copy(text, end, data, body, stop - body)
    finish(access, running, text, at, end - at + stop - body, length)
    for i in range(STATE):
        store32(text, at + 4 * i, access[RUNNING + i])
        access[RUNNING + i] = signers[states + OUTER + i]
    finish(access, running, text, at, np.int64(4 * STATE), BLOCK + 4 * STATE)
    for i in range(STATE):
        store32(text, at + 4 * i, access[RUNNING + i])
    text[np.uint64(at + 4 * STATE)] = 0
    return is_base64(text, at, fields[frames.SIGNATURE, 0])


@compiled
def is_base64(text, digest, start):
    """True if text[start:start + 28] is text[digest:digest + 20] in base64; a zero byte comes after that. It looks at
    all of it in any case."""
    different = np.uint8(0)
    for i in range(SIGNATURE_LENGTH // 4):
        at = digest + 3 * i
        three = np.int64(text[np.uint64(at)]) << 16
        three |= np.int64(text[np.uint64(at + 1)]) << 8
        if i < 6:
            three |= np.int64(text[np.uint64(at + 2)])
        for j in range(4):
            expected = CHARACTERS[three >> (18 - 6 * j) & 63]
            if i == 6 and j == 3:
                expected = np.uint8(61)
            different |= expected ^ text[np.uint64(start + 4 * i + j)]
    return different == 0


@compiled
def is_signer(number, key):
    text, start, length, signers, names = key
    row = number * SIGNER_SIZE
    return signers[row + NAME_LENGTH] == length and same_bytes(
        names, signers[row + NAME_START], text, start, length
    )


@compiled
def find_signer(text, start, length, signers, slots, names):
    """(number of the signer of that name, -1 if it is not known; the slot where it is or belongs)."""
    key = text, start, length, signers, names
    return find(slots, np.uint64(SIGNER_SLOTS_MAX - 1), hash_bytes(text, start, length), is_signer, key)


@compiled
def add_signer(number, signers, slots, names):
    """Makes the signer known whose row is in `signers` and whose name in `names`; it is not yet."""
    row = number * SIGNER_SIZE
    _, slot = find_signer(
        pointer(names),
        signers[row + NAME_START],
        signers[row + NAME_LENGTH],
        pointer(signers),
        pointer(slots),
        pointer(names),
    )
    slots[slot] = number + 1


@compiled
def permit(host, signer, queue):
    """What stands in ALLOWED for it; `host`: address and port in eight bytes, of which the address counts."""
    return ((host >> 32 & 0xFFFFFFFF) * SIGNERS_MAX + signer) * QUEUES_MAX + queue + 1


@compiled
def permit_slot(allowed, number):
    """The slot where a permit is, or a free one where it belongs."""
    mask = np.uint64(ALLOWED_SLOTS - 1)
    slot = (np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32) & mask
    while allowed[slot] != 0 and allowed[slot] != number:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@compiled
def add_permit(host, signer, queue, allowed):
    number = permit(host, signer, queue)
    allowed[permit_slot(pointer(allowed), number)] = number


# --- not compiled ------------------------------------------------------------------------------------------------


def states_of(secret: bytes) -> np.ndarray:
    """A row of SIGNERS without a name: the states of SHA-1 after each of HMAC's two keys."""
    signer = np.zeros(SIGNER_SIZE, np.int64)
    key = (hashlib.sha1(secret).digest() if len(secret) > BLOCK else secret).ljust(BLOCK, b"\0")
    for at, mask in ((INNER, 0x36), (OUTER, 0x5C)):
        signer[at : at + STATE] = START
        take_blocks(signer, at, np.frombuffer(bytes(byte ^ mask for byte in key), np.uint8).copy())
    return signer


@compiled
def take_blocks(state, at, data):
    """All of `data`, whole blocks, into the state at state[at:at + 5]."""
    blocks(state, np.int64(at), data, np.int64(0), np.int64(len(data) // BLOCK))
