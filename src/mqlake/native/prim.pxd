"""prim.h declared: see there. The names of types are those of annotations in the kernels."""

ctypedef const unsigned char *Bytes
ctypedef unsigned char *Room
ctypedef unsigned char u8
ctypedef long long i64
ctypedef int i32
ctypedef unsigned int u32
ctypedef unsigned long long u64
ctypedef const long long *Numbers

cdef extern from "prim.h" nogil:
    enum:
        CACHE_LINE
        OVERLAP
        NAME_VALUE_SEPARATOR
        PROPERTY_SEPARATOR
        PROP_CRC_NAME_LENGTH
        SPAN
    Bytes PROP_CRC_NAME

    i64 INT64_MAX

    i64 load16(Bytes p, i64 at)
    i64 load32(Bytes p, i64 at)
    i64 load64(Bytes p, i64 at)
    u64 load_word(Bytes p, i64 at)
    void store16(Room p, i64 at, i64 n)
    void store32(Room p, i64 at, i64 n)
    void store64(Room p, i64 at, i64 n)
    void store_word(Room p, i64 at, u64 n)
    u64 word(i64 n)
    i64 int64_of(u64 bits)
    i64 int32_of(u64 bits)
    i64 signed_byte(u8 byte)
    i64 trailing_zeros(u64 n)

    void release32(Room p, i64 at, i64 n)
    i64 acquire32(Bytes p, i64 at)
    void prefetch(Bytes p, i64 at)

    void copy(Room out, i64 at, Bytes p, i64 start, i64 length)
    i64 put(Room out, i64 at, Bytes p, i64 start, i64 length)
    void copy_text(Room out, i64 at, Bytes p, i64 start, i64 length, i64 size)
    bint same_bytes(Bytes a, i64 a_start, Bytes b, i64 b_start, i64 length)

    void use_crc32(u64 address)
    i64 crc32(Bytes p, i64 start, i64 length)

    u64 hash_bytes(Bytes p, i64 start, i64 length)
    u64 hash_pair(i64 a, i64 b)
    i64 slot_of(u64 code, i64 mask)

    i64 name_end(Bytes p, i64 at, i64 end)
    i64 value_end(Bytes p, i64 at, i64 end)
    void store_hex(Room out, i64 at, i64 n)

    u64 unlike_span(Bytes p, i64 at, i64 model)
    u64 equal_in_span(Bytes p, i64 at, i64 byte)
    u64 found_in_span(Bytes p, i64 at, i64 end, i64 size, i64 byte)
    i64 byte_end(Bytes p, i64 at, i64 end, i64 size, i64 byte)

    void use_hash_text()
    i64 hash_text(Bytes p, i64 start, i64 end, i64 before)
    i64 hash_after(i64 code, i64 character)


cdef inline Bytes bytes_of(const u8[::1] buf) noexcept:
    """Where the bytes of an array begin."""
    return &buf[0] if buf.shape[0] > 0 else NULL


cdef inline Room room_of(u8[::1] buf) noexcept:
    """The same of one that is written to."""
    return &buf[0] if buf.shape[0] > 0 else NULL


cdef inline i64 *i64s_of(i64[::1] numbers) noexcept:
    """Where the numbers of an array begin."""
    return &numbers[0] if numbers.shape[0] > 0 else NULL


cdef inline i32 *i32s_of(i32[::1] numbers) noexcept:
    """The same of smaller ones."""
    return &numbers[0] if numbers.shape[0] > 0 else NULL


cdef inline Numbers numbers_of(const i64[::1] numbers) noexcept:
    """The same of numbers that are only read."""
    return &numbers[0] if numbers.shape[0] > 0 else NULL


cdef inline i64 *pairs_of(i64[:, ::1] pairs) noexcept:
    """The same of pairs, one after the other."""
    return &pairs[0, 0] if pairs.shape[0] > 0 else NULL
