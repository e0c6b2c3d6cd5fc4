# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""The signature of a request: base64(HmacSHA1(secret, values in the order of their names, then the body)).

    secret ─(once, states_of)─▶ SHA-1 after the inner and the outer block, kept in SIGNERS
    frame  ─ its AccessKey ─▶ signer
           └ values to `text`, in order ─▶ SHA-1 of them and the body ─▶ SHA-1 of that ─▶ 28 characters, compared

The same as auth.signature, which says what is right. ALLOWED is a set of (address, signer, queue) in one number each
(`permit`).
"""

from mqlake.native.frame_layout cimport ACCESS_KEY, HEAD_BODY_START, HEAD_NAMES, LONG, SHORT_LETTERS, SIGNATURE
from mqlake.native.frames cimport Pair
from mqlake.native.prim cimport *
from mqlake.native.send_layout cimport (
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

import hashlib

import numpy as np

from mqlake.native import frame_layout as _frames
from mqlake.native import send_layout as _sends

cdef extern from "sha1.h" nogil:
    enum:
        SHA1_BLOCK
    void choose_sha1()
    void sha1_blocks(i64 *state, Bytes data, i64 position, i64 count)
    void sha1_blocks_plain(i64 *state, Bytes data, i64 position, i64 count)

cdef enum:
    STATE = 5
    SIGNATURE_LENGTH = 28
    SIGNING = SIGNATURE - ACCESS_KEY  # fields that sign a request and are signed themselves
    LETTERS_MAX = 32

_START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)
cdef Bytes CHARACTERS = <Bytes>b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
cdef i64 LONG_ORDER[LETTERS_MAX]
cdef i64 SHORT_ORDER[LETTERS_MAX]
cdef i64 LONG_LETTERS = len(_frames.LONG_NAMES)
_short_names = ["bname" if n == _frames.BNAME else chr(ord("a") + n) for n in range(_frames.SHORT_LETTERS)]
for _i, _letter in enumerate(sorted(range(len(_frames.LONG_NAMES)), key=_frames.LONG_NAMES.__getitem__)):
    LONG_ORDER[_i] = _letter
for _i, _letter in enumerate(sorted(range(len(_short_names)), key=_short_names.__getitem__)):
    SHORT_ORDER[_i] = _letter

choose_sha1()


cdef void finish(i64 *state, Room data, i64 start, i64 rest, i64 length) noexcept nogil:
    """Takes the last data[start:start + rest] (less than a block) of `length` bytes, with what SHA-1 adds to it. Writes
    up to two blocks at `start`."""
    data[start + rest] = 0x80
    count = 1 if rest < SHA1_BLOCK - 8 else 2
    end = start + count * SHA1_BLOCK
    for i in range(start + rest + 1, end - 8):
        data[i] = 0
    store64(data, end - 8, length * 8)
    sha1_blocks(state, data, start, count)


cdef i64 put_fields(Room text, i64 end, i64 *head, Pair *fields) noexcept nogil:
    """Copies the values of all fields but the signature to text[end:], in the order of their names; the end of them."""
    cdef bint is_long = head[HEAD_NAMES] == LONG
    # of values that stand in `text` as they are signed: clients send most of them so
    cdef i64 start = 0, stop = 0, letter, length
    for i in range(SIGNING + (LONG_LETTERS if is_long else SHORT_LETTERS)):
        if i < SIGNING:
            letter = ACCESS_KEY + i
        else:
            letter = LONG_ORDER[i - SIGNING] if is_long else SHORT_ORDER[i - SIGNING]
        length = fields[letter][1]
        if length > 0:
            if fields[letter][0] != stop:
                copy(text, end, text, start, stop - start)
                end += stop - start
                start = stop = fields[letter][0]
            stop += length
    copy(text, end, text, start, stop - start)
    return end + stop - start


cdef bint is_signed(
    Room text, i64 at, Bytes data, i64 body, i64 stop, i64 *head, Pair *fields, i64 *signers, i64 signer, i64 *access,
) noexcept nogil:
    """True if the frame whose header was read is signed by that one of SIGNERS. `text` has room from `at` on
    for the header's values again, and NEW_ROOM."""
    if fields[SIGNATURE][1] != SIGNATURE_LENGTH:
        return False
    running, states = access + RUNNING, signers + signer * SIGNER_SIZE
    end = put_fields(text, at, head, fields)
    for i in range(STATE):
        running[i] = states[INNER + i]
    length = SHA1_BLOCK + (end - at) + (stop - body)
    whole = (end - at) // SHA1_BLOCK
    if whole:
        sha1_blocks(running, text, at, whole)
        at += whole * SHA1_BLOCK
    if end > at:  # a block that begins with the last values and ends with the first of the body
        more = min(SHA1_BLOCK - (end - at), stop - body)
        copy(text, end, data, body, more)
        end += more
        body += more
        if end - at == SHA1_BLOCK:
            sha1_blocks(running, text, at, 1)
            at = end
    whole = (stop - body) // SHA1_BLOCK
    if whole:
        sha1_blocks(running, data, body, whole)
        body += whole * SHA1_BLOCK
    copy(text, end, data, body, stop - body)
    finish(running, text, at, end - at + stop - body, length)
    for i in range(STATE):
        store32(text, at + 4 * i, running[i])
        running[i] = states[OUTER + i]
    finish(running, text, at, 4 * STATE, SHA1_BLOCK + 4 * STATE)
    for i in range(STATE):
        store32(text, at + 4 * i, running[i])
    text[at + 4 * STATE] = 0
    return is_base64(text, at, fields[SIGNATURE][0])


cdef bint is_base64(Bytes text, i64 digest, i64 start) noexcept nogil:
    """True if text[start:start + 28] is text[digest:digest + 20] in base64; a zero byte comes after that. It looks at
    all of it in any case."""
    cdef u8 different = 0, expected
    cdef i64 at, three
    for i in range(SIGNATURE_LENGTH // 4):
        at = digest + 3 * i
        three = <i64>text[at] << 16 | <i64>text[at + 1] << 8
        if i < 6:
            three |= text[at + 2]
        for j in range(4):
            expected = CHARACTERS[three >> (18 - 6 * j) & 63]
            if i == 6 and j == 3:
                expected = 61
            different |= expected ^ text[start + 4 * i + j]
    return different == 0


cdef i64 signer_slot(Bytes text, i64 start, i64 length, i64 *signers, i64 *slots, Bytes names) noexcept nogil:
    """The slot where the signer of that name is, or a free one where it belongs."""
    slot = slot_of(hash_bytes(text, start, length), SIGNER_SLOTS_MAX - 1)
    while slots[slot] != 0:
        row = signers + (slots[slot] - 1) * SIGNER_SIZE
        if row[NAME_LENGTH] == length and same_bytes(names, row[NAME_START], text, start, length):
            break
        slot = (slot + 1) & (SIGNER_SLOTS_MAX - 1)
    return slot


cdef i64 find_signer(Bytes text, i64 start, i64 length, i64 *signers, i64 *slots, Bytes names) noexcept nogil:
    """The number of the signer of that name, -1 if it is not known."""
    return slots[signer_slot(text, start, length, signers, slots, names)] - 1


cdef i64 permit(i64 host, i64 signer, i64 queue) noexcept nogil:
    """What stands in ALLOWED for it; `host`: address and port in eight bytes, of which the address counts."""
    return ((host >> 32 & 0xFFFFFFFFLL) * SIGNERS_MAX + signer) * QUEUES_MAX + queue + 1


cdef i64 permit_slot(i64 *allowed, i64 number) noexcept nogil:
    """The slot where a permit is, or a free one where it belongs."""
    cdef i64 slot = <i64>((<u64>number * <u64>0x9E3779B97F4A7C15) >> 32 & (ALLOWED_SLOTS - 1))
    while allowed[slot] != 0 and allowed[slot] != number:
        slot = (slot + 1) & (ALLOWED_SLOTS - 1)
    return slot


# --- for Python --------------------------------------------------------------------------------------------------


def add_signer(i64 number, i64[::1] signers, i64[::1] slots, const u8[::1] names):
    """Makes the signer known whose row is in `signers` and whose name in `names`; it is not yet."""
    cdef i64 *row = &signers[number * SIGNER_SIZE]
    slots[signer_slot(&names[0], row[NAME_START], row[NAME_LENGTH], &signers[0], &slots[0], &names[0])] = number + 1


def add_permit(i64 host, i64 signer, i64 queue, i64[::1] allowed):
    """The signer may send to the queue from the address."""
    number = permit(host, signer, queue)
    allowed[permit_slot(&allowed[0], number)] = number


def states_of(secret):
    """A row of SIGNERS without a name: the states of SHA-1 after each of HMAC's two keys."""
    signer = np.zeros(_sends.SIGNER_SIZE, np.int64)
    key = (hashlib.sha1(secret).digest() if len(secret) > SHA1_BLOCK else secret).ljust(SHA1_BLOCK, b"\0")
    for at, mask in ((_sends.INNER, 0x36), (_sends.OUTER, 0x5C)):
        signer[at : at + STATE] = _START
        take_blocks(signer[at : at + STATE], bytes([byte ^ mask for byte in key]))
    return signer


def take_blocks(i64[::1] state, const u8[::1] data, bint plain=False):
    """All of `data`, whole blocks, into a state of SHA-1; with `plain` instructions alone."""
    if state.shape[0] != STATE or data.shape[0] % SHA1_BLOCK:
        raise ValueError(f"{state.shape[0]} numbers, {data.shape[0]} bytes")
    if data.shape[0] > 0 and plain:
        sha1_blocks_plain(&state[0], &data[0], 0, data.shape[0] // SHA1_BLOCK)
    elif data.shape[0] > 0:
        sha1_blocks(&state[0], &data[0], 0, data.shape[0] // SHA1_BLOCK)


# --- for tests ---------------------------------------------------------------------------------------------------


def signs(
    const u8[::1] buf, i64[::1] head, i64[:, ::1] fields, u8[::1] text, i64 end, i64[::1] signers, i64[::1] slots,
    const u8[::1] names, i64[::1] access,
):
    """Whether the frame that fills `buf`, whose header was read to text[:end], is signed by one of the signers."""
    name, length = fields[ACCESS_KEY, 0], fields[ACCESS_KEY, 1]
    signer = find_signer(&text[0], name, length, &signers[0], &slots[0], &names[0])
    return signer >= 0 and is_signed(
        &text[0], end, &buf[0], head[HEAD_BODY_START], buf.shape[0], &head[0], <Pair *>&fields[0, 0], &signers[0],
        signer, &access[0],
    )


def is_permitted(i64 host, i64 signer, i64 queue, i64[::1] allowed):
    """Whether add_permit has been called with the same."""
    number = permit(host, signer, queue)
    return allowed[permit_slot(&allowed[0], number)] == number
