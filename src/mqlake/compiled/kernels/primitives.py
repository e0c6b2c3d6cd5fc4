# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""The building blocks of all compiled code: numbers loaded and stored, bytes copied, checksums.

    big-endian field ─load32─▶ number ─store32─▶ big-endian field      copy, crc32: C, called by address

These trust their callers, who have compared every length with what is left before they use it. Positions are then
used as unsigned indexes, which lets LLVM turn a big-endian field into one load and one byte swap.

The checksum is called through the symbol `mqlake_crc32`. A symbol, unlike a ctypes pointer, leaves the callers
cacheable, and what it names (ISA-L where its wheel is, else the tables below) may change without compiling them again.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from llvmlite import binding, ir
from numba import carray, cfunc, config, types
from numba.core import cgutils, imputils
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled, inlined

CACHE_LINE = 64
CRC_MASK = 0x7FFFFFFF
CRC_SLICES = 16


def crc_tables() -> np.ndarray:
    """Table k maps a byte to its remainder after k more zero bytes (reflected polynomial 0xEDB88320)."""
    tables = np.zeros((CRC_SLICES, 256), np.uint32)
    remainder = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        remainder = np.where(remainder & 1, (remainder >> 1) ^ np.uint32(0xEDB88320), remainder >> 1)
    tables[0] = remainder
    for k in range(1, CRC_SLICES):
        tables[k] = (tables[k - 1] >> 8) ^ remainder[tables[k - 1] & 0xFF]
    return tables


def table_crc32():
    """Sixteen bytes a step through sixteen tables: what is used where ISA-L has no wheel."""
    tables = crc_tables()

    @cfunc(types.uint32(types.uint32, types.CPointer(types.uint8), types.uint64))
    def crc32(seed, pointer, length):
        data = carray(pointer, (length,))
        crc = np.uint32(~seed)
        i = np.uint64(0)
        while i + np.uint64(CRC_SLICES) <= length:
            step = np.uint32(0)
            for k in range(CRC_SLICES):
                byte = data[i + np.uint64(k)]
                if k < 4:
                    byte ^= np.uint8(crc >> np.uint32(8 * k))
                step ^= tables[CRC_SLICES - 1 - k, byte]
            crc = step
            i += np.uint64(CRC_SLICES)
        while i < length:
            crc = np.uint32(tables[0, np.uint8(crc) ^ data[i]] ^ (crc >> np.uint32(8)))
            i += np.uint64(1)
        return np.uint32(~crc)

    return crc32


def bind_crc32():
    """Names the fastest checksum at hand `mqlake_crc32`; returns what must stay alive while it is called."""
    try:
        import isal.isal_zlib

        library = ctypes.CDLL(isal.isal_zlib.__file__)
        address = ctypes.cast(library.crc32_gzip_refl, ctypes.c_void_p).value
        keep = library
    except (ImportError, OSError, AttributeError):
        keep = table_crc32()
        address = keep.address
    binding.add_symbol("mqlake_crc32", address)
    return keep


_crc32_owner = bind_crc32()
# Addresses as numbers: a pointer into an array is a slice to numba, which it counts references of, for 20 ns a call.
_crc32 = types.ExternalFunction("mqlake_crc32", types.uint32(types.uint32, types.uintp, types.uint64))
_memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uint64))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))

CLOCK_REALTIME, CLOCK_MONOTONIC = 0, 1
SECOND_NS = 1_000_000_000

U1, U3 = np.uint64(1), np.uint64(3)


def element(context, builder, signature, arguments):
    """A pointer to items[position], of bytes in an array or at a pointer."""
    items, position = arguments
    if isinstance(signature.args[0], types.Array):
        items = context.make_array(signature.args[0])(context, builder, items).data
    return builder.gep(items, [position])


def _swapped(builder, number, *, big_endian):
    return builder.bswap(number) if big_endian == (sys.byteorder == "little") else number


def _number(kind, *, big_endian):
    """An intrinsic that loads a number from where items[position] lies, at once: of a loop over bytes LLVM makes one
    load only where nothing else is done with them."""

    @intrinsic
    def load(_context, items, _position):
        def generate(context, builder, signature, arguments):
            number = ir.IntType(kind.bitwidth)
            at = builder.bitcast(element(context, builder, signature, arguments), number.as_pointer())
            return _swapped(builder, builder.load(at, align=1), big_endian=big_endian)

        return kind(items, types.int64), generate

    return load


def _put_number(kind, *, big_endian):
    """An intrinsic that stores a number to where items[position] lies, at once, as for loads."""

    @intrinsic
    def store(_context, items, _position, _value):
        def generate(context, builder, signature, arguments):
            *place, value = arguments
            where = element(context, builder, signature, place)
            at = builder.bitcast(where, ir.IntType(kind.bitwidth).as_pointer())
            builder.store(_swapped(builder, value, big_endian=big_endian), at, align=1)
            return context.get_dummy_value()

        return types.void(items, types.int64, kind), generate

    return store


_load16, _load32, _load64 = (
    _number(kind, big_endian=True) for kind in (types.int16, types.int32, types.int64)
)
_store16, _store32, _store64 = (
    _put_number(kind, big_endian=True) for kind in (types.int16, types.int32, types.int64)
)
_load_word = _number(types.uint64, big_endian=False)
_store_word = _put_number(types.uint64, big_endian=False)


@compiled
def touch(buf, first, last):
    """Where numba checks indexes, checks these two: it does not see what is read between them at once."""
    return buf[np.uint64(first)] | buf[np.uint64(last)]


@compiled
def load16(buf, position):
    touch(buf, position, position + 1)
    return _load16(buf, position)


@compiled
def load32(buf, position):
    touch(buf, position, position + 3)
    return _load32(buf, position)


@compiled
def load64(buf, position):
    touch(buf, position, position + 7)
    return _load64(buf, position)


@compiled
def load_word(buf, position):
    """Eight bytes, the first one lowest."""
    touch(buf, position, position + 7)
    return _load_word(buf, position)


@compiled
def store16(buf, position, value):
    touch(buf, position, position + 1)
    _store16(buf, position, value)


@compiled
def store32(buf, position, value):
    touch(buf, position, position + 3)
    _store32(buf, position, value)


@compiled
def store64(buf, position, value):
    touch(buf, position, position + 7)
    _store64(buf, position, value)


@compiled
def store_word(buf, position, word):
    """Eight bytes, the lowest one first."""
    touch(buf, position, position + 7)
    _store_word(buf, position, word)


@intrinsic
def pointer(_context, array):
    """The elements of an array, for functions that are called often: with an array they count its references, which
    takes longer than what they do. Good as long as the caller has the array. Where numba checks indexes it stays one.
    """
    if config.BOUNDSCHECK:
        return array(array), lambda context, builder, signature, arguments: imputils.impl_ret_borrowed(
            context, builder, array, arguments[0]
        )

    def generate(context, builder, signature, arguments):
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def borrowed(_context, array):
    """The same array without a count of its references, which takes several ns at every call that it is handed to.
    Good as long as the caller has the array."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = context.get_constant_null(types.MemInfoPointer(types.voidptr))
        view.parent = context.get_constant_null(types.pyobject)
        return view._getvalue()

    return array(array), generate


@intrinsic
def address(_context, items, _position):
    """Where items[position] lies, of bytes in an array or at a pointer."""

    def generate(context, builder, signature, arguments):
        at = element(context, builder, signature, arguments)
        return builder.ptrtoint(at, context.get_value_type(types.uintp))

    return types.uintp(items, types.int64), generate


@intrinsic
def prefetch(_context, items, _position):
    """Begins to fetch what lies around items[position], and does not wait for it; any position is allowed."""

    def generate(context, builder, signature, arguments):
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        reading, near, of_data = (ir.Constant(i32, number) for number in (0, 3, 1))
        builder.call(function, [element(context, builder, signature, arguments), reading, near, of_data])
        return context.get_dummy_value()

    return types.void(items, types.int64), generate


@intrinsic
def keep_order(_context):
    """What is written before this is written before what comes after it, for other threads and after a kill."""

    def generate(context, builder, _signature, _arguments):
        builder.fence("release")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def trailing_zeros(_context, _word):
    """The number of zero bits below the lowest one of a number that is not 0."""

    def generate(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@compiled
def crc32(buf, start, length):
    return np.int32(_crc32(np.uint32(0), address(buf, start), np.uint64(length)) & np.uint32(CRC_MASK))


@compiled
def copy(out, at, buf, start, length):
    if length > 0:
        _memcpy(address(out, at), address(buf, start), np.uint64(length))


@compiled
def put(out, at, data, start, length):
    """Copies, and returns the position after the copy."""
    copy(out, at, data, start, length)
    return at + length


OVERLAP = 16
"""Bytes of room after a text that copy_text needs."""


@compiled
def copy_text(out, at, data, start, length, size):
    """A memcpy of a few of the `size` bytes of data: up to OVERLAP of those after them come along."""
    if start + length + OVERLAP <= size:
        store64(out, at, load64(data, start))
        store64(out, at + 8, load64(data, start + 8))
        done = np.int64(16)
        while done < length:
            store64(out, at + done, load64(data, start + done))
            done += 8
    else:
        for i in range(length):
            out[np.uint64(at + i)] = data[np.uint64(start + i)]


@compiled
def same_bytes(a, a_start, b, b_start, length):
    done = np.int64(0)
    while done + 8 <= length:  # LLVM makes no words of a loop over bytes that ends early
        if load64(a, a_start + done) != load64(b, b_start + done):
            return False
        done += 8
    for i in range(done, length):  # noqa: SIM110 - numba compiles no generators
        if a[np.uint64(a_start + i)] != b[np.uint64(b_start + i)]:
            return False
    return True


@compiled
def clock(which, room, at):
    """The time of one of the system's clocks, in nanoseconds; it has two numbers of `room` to come in."""
    _clock_gettime(np.int32(which), address(room, np.int64(at)))
    return room[at] * SECOND_NS + room[at + 1]


# --- hash tables ---------------------------------------------------------------------------------------------

HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@compiled
def hash_bytes(data, start, length):
    """Eight bytes a step, the first one lowest; the last step's are filled up with zeros."""
    code = np.uint64(length)
    position, end = start, start + length
    while position + 8 <= end:
        code = (code ^ load_word(data, position)) * HASH_FACTOR
        code ^= code >> np.uint64(32)
        position += 8
    word = np.uint64(0)
    for i in range(end - 1, position - 1, -1):
        word = word << np.uint64(8) | np.uint64(data[np.uint64(i)])
    code = (code ^ word) * HASH_FACTOR
    return code ^ (code >> np.uint64(32))


@inlined
def find(slots, mask, code, is_it, key):
    """(number, its slot) of what has this hash and of which is_it(number, key) is true; (-1, the free slot where it
    belongs) when the table does not have it.

    An open-addressing table: each of the mask + 1 `slots`, a power of two, is 0 while it is free, else a number + 1.
    The caller sees to it that some stay free.
    """
    slot = (code ^ (code >> np.uint64(32))) & mask
    while slots[slot] != 0:
        number = np.int64(slots[slot]) - 1
        if is_it(number, key):
            return number, np.int64(slot)
        slot = (slot + U1) & mask
    return np.int64(-1), np.int64(slot)


# --- text ----------------------------------------------------------------------------------------------------

ZERO = 48
TENTH_OF_MAX = np.int64(0x7FFFFFFFFFFFFFFF // 10)
EIGHT_DIGITS = np.int64(10**8)
ZEROS, NO_DIGITS, TOPS = (np.uint64(0x0101010101010101 * code) for code in (ZERO, 0x7F - 57, 0x80))
PAIRS, MILLION, TEN_THOUSAND = (
    np.uint64(number) for number in (0x000000FF000000FF, 100 + (1_000_000 << 32), 1 + (10_000 << 32))
)


@compiled
def read_character(buf, position, end):
    """(code point, bytes) of the UTF-8 character at `position`.

    Malformed: -1, and how many bytes could have begun a character, at least one. A decoder puts one U+FFFD in their
    place.
    """
    lead = np.int64(buf[np.uint64(position)])
    if lead < 0x80:
        return lead, np.int64(1)
    low, high = np.int64(0x80), np.int64(0xBF)
    if 0xC2 <= lead <= 0xDF:  # C0 and C1 would be overlong forms of ASCII
        length, point = 2, lead & 0x1F
    elif 0xE0 <= lead <= 0xEF:
        length, point = 3, lead & 0x0F
        if lead == 0xE0:  # overlong below
            low = np.int64(0xA0)
        elif lead == 0xED:  # surrogates above
            high = np.int64(0x9F)
    elif 0xF0 <= lead <= 0xF4:
        length, point = 4, lead & 0x07
        if lead == 0xF0:  # overlong below
            low = np.int64(0x90)
        elif lead == 0xF4:  # beyond U+10FFFF above
            high = np.int64(0x8F)
    else:
        return np.int64(-1), np.int64(1)
    for i in range(1, length):
        if position + i >= end:
            return np.int64(-1), np.int64(i)
        following = np.int64(buf[np.uint64(position + i)])
        if following < low or following > high:
            return np.int64(-1), np.int64(i)
        point = point << 6 | following & 0x3F
        low, high = np.int64(0x80), np.int64(0xBF)
    return point, np.int64(length)


@compiled
def read_digits(buf, position, end):
    """(number, position after it) of the decimal digits from `position` on; position -1 when 63 bits do not hold it."""
    value = np.int64(0)
    while position + 8 <= end and value < EIGHT_DIGITS:
        word = load_word(buf, position)
        if (word - ZEROS | word + NO_DIGITS) & TOPS:
            break
        word -= ZEROS
        word = word * np.uint64(10) + (word >> np.uint64(8))  # pairs, then fours, then all eight
        word = (word & PAIRS) * MILLION + (word >> np.uint64(16) & PAIRS) * TEN_THOUSAND
        value = value * EIGHT_DIGITS + np.int64(word >> np.uint64(32))
        position += 8
    while position < end:
        digit = np.int64(buf[np.uint64(position)]) - ZERO
        if digit < 0 or digit > 9:
            break
        if value > TENTH_OF_MAX or (value == TENTH_OF_MAX and digit > 7):
            return np.int64(0), np.int64(-1)
        value = value * 10 + digit
        position += 1
    return value, np.int64(position)


# --- properties ----------------------------------------------------------------------------------------------
# NAME \1 VALUE \2 NAME \1 VALUE \2, the last \2 may be missing. From each `start` take `parting` = name_end() and
# `stop` = value_end() after it. The pair counts if start < parting and parting + 1 < stop: a name, a \1 and a value.

NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR = 1, 2
EACH = np.uint64(0x0101010101010101)
EACH_2 = EACH * np.uint64(PROPERTY_SEPARATOR)


@compiled
def zero_bytes(word):
    """The top bit of each byte of the word that is zero."""
    low = np.uint64(0x7F7F7F7F7F7F7F7F)
    return ~(((word & low) + low) | word | low)


@compiled
def name_end(data, start, end):
    """Where the first \\1 or \\2 from `start` on is, else `end`."""
    position = start
    while position + 8 <= end:
        word = load_word(data, position)
        found = zero_bytes(word ^ EACH) | zero_bytes(word ^ EACH_2)
        if found:
            return position + np.int64(trailing_zeros(found) >> U3)
        position += 8
    while position < end and data[np.uint64(position)] not in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR):
        position += 1
    return position


@compiled
def value_end(data, position, end):
    """Where the next \\2 is before `end`, else `end`."""
    while position + 8 <= end:
        found = zero_bytes(load_word(data, position) ^ EACH_2)
        if found:
            return position + np.int64(trailing_zeros(found) >> U3)
        position += 8
    while position < end and data[np.uint64(position)] != PROPERTY_SEPARATOR:
        position += 1
    return position
