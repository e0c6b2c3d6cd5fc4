# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Bytes taken many at a time: BLOCK of them compared, looked through for plain characters or copied, or SPAN of them
looked through for one byte.

Either is one register of the processor, or some of them; LLVM chooses. What takes them at addresses is for the
functions below alone, which have numba check the first and the last index of each where it checks indexes.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import address, element, touch, trailing_zeros

BLOCK = 32
BLOCK_MASK = np.uint64((1 << BLOCK) - 1)
SPAN = 64
"""As many as a word has bits."""
SPAN_MASK = np.uint64(0xFFFFFFFFFFFFFFFF)
_BYTES = ir.VectorType(ir.IntType(8), BLOCK)


def _pointer(builder, where):
    return builder.inttoptr(where, _BYTES.as_pointer())


def _block(builder, where):
    return builder.load(_pointer(builder, where), align=1)


def _each(code):
    return ir.Constant(_BYTES, [code] * BLOCK)


def _bits(builder, flags):
    """A bit for each byte, the lowest one for the first."""
    return builder.zext(builder.bitcast(flags, ir.IntType(BLOCK)), ir.IntType(64))


@intrinsic
def _unlike(_context, _a, _b):
    def generate(_context, builder, _signature, arguments):
        a, b = (_block(builder, where) for where in arguments)
        return _bits(builder, builder.icmp_unsigned("!=", a, b))

    return types.uint64(types.uintp, types.uintp), generate


@intrinsic
def _unplain(_context, _where):
    def generate(_context, builder, _signature, arguments):
        block = _block(builder, arguments[0])
        beyond = builder.icmp_unsigned(">", builder.sub(block, _each(0x20)), _each(0x7E - 0x20))
        quote = builder.icmp_unsigned("==", block, _each(ord('"')))
        backslash = builder.icmp_unsigned("==", block, _each(ord("\\")))
        return _bits(builder, builder.or_(beyond, builder.or_(quote, backslash)))

    return types.uint64(types.uintp), generate


@intrinsic
def _equal_bytes(_context, items, _position, _byte):
    """Which of the SPAN bytes from items[position] on are `byte`: a bit for each, the lowest for the first."""

    def generate(_context, builder, signature, arguments):
        vector = ir.VectorType(ir.IntType(8), SPAN)
        at = builder.bitcast(element(_context, builder, signature, arguments[:2]), vector.as_pointer())
        byte = builder.trunc(arguments[2], ir.IntType(8))
        first = builder.insert_element(
            ir.Constant(vector, ir.Undefined), byte, ir.Constant(ir.IntType(32), 0)
        )
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), SPAN), [0] * SPAN)
        same = builder.icmp_unsigned(
            "==", builder.load(at, align=1), builder.shuffle_vector(first, first, lanes)
        )
        return builder.bitcast(same, ir.IntType(SPAN))

    return types.uint64(items, types.int64, types.int64), generate


@intrinsic
def _unequal_bytes(_context, items, _a, _b):
    """Which of the SPAN bytes from items[a] on differ from those from items[b] on: a bit for each, the lowest for the
    first."""

    def generate(context, builder, signature, arguments):
        items, *positions = arguments
        vector = ir.VectorType(ir.IntType(8), SPAN)
        a, b = (
            builder.load(
                builder.bitcast(element(context, builder, signature, [items, at]), vector.as_pointer()),
                align=1,
            )
            for at in positions
        )
        return builder.bitcast(builder.icmp_unsigned("!=", a, b), ir.IntType(SPAN))

    return types.uint64(items, types.int64, types.int64), generate


@intrinsic
def _move(_context, _to, _where):
    def generate(context, builder, _signature, arguments):
        to, where = arguments
        builder.store(_block(builder, where), _pointer(builder, to), 1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), generate


@compiled
def unlike(a, a_start, b, b_start):
    """Which bytes of two blocks differ: the lowest bit for the first."""
    touch(a, a_start, a_start + BLOCK - 1)
    touch(b, b_start, b_start + BLOCK - 1)
    return _unlike(address(a, np.int64(a_start)), address(b, np.int64(b_start)))


@compiled
def plain_length(data, start):
    """How many bytes of a block, from the first on, are printable ASCII, and neither quote nor backslash."""
    touch(data, start, start + BLOCK - 1)
    found = _unplain(address(data, np.int64(start)))
    return np.int64(BLOCK) if found == 0 else np.int64(trailing_zeros(found))


@compiled
def move(out, at, data, start):
    """Copies a block."""
    touch(out, at, at + BLOCK - 1)
    touch(data, start, start + BLOCK - 1)
    _move(address(out, np.int64(at)), address(data, np.int64(start)))


@compiled
def put_blocks(out, at, data, start, length):
    """As `put`, and up to a block less one byte more, of both."""
    done = np.int64(0)
    while done < length:
        move(out, at + done, data, start + done)
        done += BLOCK
    return at + length


# --- one byte ------------------------------------------------------------------------------------------------


@compiled
def found_in_span(data, position, end, size, byte):
    """Which of the first SPAN bytes of data[position:end] are `byte`: the lowest bit for the first. `data` has `size`
    bytes, `end` at most, of which others may be read too."""
    if position >= end:
        return np.uint64(0)
    left = min(end - position, np.int64(SPAN))
    if size < SPAN:
        found = np.uint64(0)
        for i in range(left):
            found |= np.uint64(data[np.uint64(position + i)] == byte) << np.uint64(i)
        return found
    at = min(position, size - SPAN)
    touch(data, at, at + SPAN - 1)
    return _equal_bytes(data, at, byte) >> np.uint64(position - at) & SPAN_MASK >> np.uint64(SPAN - left)


@compiled
def unlike_model(data, position, model, byte):
    """(which of SPAN bytes differ from those at `model`, which of them are `byte`): the lowest bits for the first."""
    touch(data, position, position + SPAN - 1)
    touch(data, model, model + SPAN - 1)
    return _unequal_bytes(data, position, model), _equal_bytes(data, position, byte)


@compiled
def byte_end(data, position, end, size, byte):
    """Where the first such byte from `position` on is, else `end`; as found_in_span()."""
    while position < end:
        found = found_in_span(data, position, end, size, byte)
        if found:
            return position + np.int64(trailing_zeros(found))
        position += SPAN
    return end
