# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,no-any-return"
"""Bytes taken BLOCK at a time: compared, looked through for plain characters, copied.

A block is one register of the processor, or two of them; LLVM chooses. What takes blocks at addresses is for the
functions below alone, which have numba check the first and the last index of each where it checks indexes.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mqlake.compiled.cache import compiled
from mqlake.compiled.kernels.primitives import address, trailing_zeros

BLOCK = 32
ALL = np.uint64((1 << BLOCK) - 1)
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
def _move(_context, _to, _where):
    def generate(context, builder, _signature, arguments):
        to, where = arguments
        builder.store(_block(builder, where), _pointer(builder, to), 1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), generate


@compiled
def _look(data, first):
    return data[np.uint64(first)] | data[np.uint64(first + BLOCK - 1)]


@compiled
def unlike(a, a_start, b, b_start):
    """Which bytes of two blocks differ: the lowest bit for the first."""
    _look(a, a_start)
    _look(b, b_start)
    return _unlike(address(a, np.int64(a_start)), address(b, np.int64(b_start)))


@compiled
def plain_length(data, start):
    """How many bytes of a block, from the first on, are printable ASCII, and neither quote nor backslash."""
    _look(data, start)
    found = _unplain(address(data, np.int64(start)))
    return np.int64(BLOCK) if found == 0 else np.int64(trailing_zeros(found))


@compiled
def move(out, at, data, start):
    """Copies a block."""
    _look(out, at)
    _look(data, start)
    _move(address(out, np.int64(at)), address(data, np.int64(start)))


@compiled
def put_blocks(out, at, data, start, length):
    """As `put`, and up to a block less one byte more, of both."""
    done = np.int64(0)
    while done < length:
        move(out, at + done, data, start + done)
        done += BLOCK
    return at + length
