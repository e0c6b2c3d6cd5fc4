"""text.h declared: see there."""

from mqlake.native.prim cimport *

cdef extern from "text.h" nogil:
    enum:
        BLOCK

    bint equals(Bytes p, i64 start, i64 length, const char *text)

    i64 put_text(Room out, i64 at, const char *text)

    i64 few_digits(u64 word, i64 *digits)
    i64 read_digits(Bytes p, i64 at, i64 end, i64 *number)
    i64 read_character(Bytes p, i64 at, i64 end, i64 *length)

    i64 write_number(Room out, i64 at, i64 value)
    i64 write_hex(Room out, i64 at, i64 value)

    u64 unlike(Bytes a, i64 a_start, Bytes b, i64 b_start)
    i64 plain_length(Bytes p, i64 start)
    void move(Room out, i64 at, Bytes p, i64 start)
    i64 put_blocks(Room out, i64 at, Bytes p, i64 start, i64 length)

    void finish_frame(Room out, i64 start, i64 end, i64 kind)
