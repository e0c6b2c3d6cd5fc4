/* What neither Python nor Cython says plainly: numbers loaded and stored, bytes copied, compared and looked through,
 * checksums, fences. prim.pxd declares it, prim.py is its twin in Python.
 *
 * Nothing here checks a position: callers have compared every length with what is left before they use it. */
#ifndef MQLAKE_PRIM_H
#define MQLAKE_PRIM_H
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef long long mq_i64;
typedef unsigned long long mq_u64;

/* --- numbers, big-endian as in the log ------------------------------------------------------------------- */

static inline short load16(const uint8_t *p, mq_i64 at) {
    uint16_t v;
    __builtin_memcpy(&v, p + at, 2);
    return (short)__builtin_bswap16(v);
}
static inline int load32(const uint8_t *p, mq_i64 at) {
    uint32_t v;
    __builtin_memcpy(&v, p + at, 4);
    return (int)__builtin_bswap32(v);
}
static inline mq_i64 load64(const uint8_t *p, mq_i64 at) {
    uint64_t v;
    __builtin_memcpy(&v, p + at, 8);
    return (mq_i64)__builtin_bswap64(v);
}
static inline void store16(uint8_t *p, mq_i64 at, mq_i64 n) {
    uint16_t v = __builtin_bswap16((uint16_t)n);
    __builtin_memcpy(p + at, &v, 2);
}
static inline void store32(uint8_t *p, mq_i64 at, mq_i64 n) {
    uint32_t v = __builtin_bswap32((uint32_t)n);
    __builtin_memcpy(p + at, &v, 4);
}
static inline void store64(uint8_t *p, mq_i64 at, mq_i64 n) {
    uint64_t v = __builtin_bswap64((uint64_t)n);
    __builtin_memcpy(p + at, &v, 8);
}
/* Eight bytes, the first one lowest. */
static inline mq_u64 load_word(const uint8_t *p, mq_i64 at) {
    uint64_t v;
    __builtin_memcpy(&v, p + at, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}
static inline void store_word(uint8_t *p, mq_i64 at, mq_u64 n) {
    uint64_t v = n;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    __builtin_memcpy(p + at, &v, 8);
}
/* The same 64 bits as a number without a sign; the 32 lowest with one. */
static inline mq_u64 word(mq_i64 n) { return (mq_u64)n; }
static inline mq_i64 int64_of(mq_u64 bits) { return (mq_i64)bits; }
static inline mq_i64 int32_of(mq_u64 bits) { return (int32_t)(uint32_t)bits; }
static inline mq_i64 signed_byte(uint8_t byte) { return (int8_t)byte; }
static inline mq_i64 trailing_zeros(mq_u64 n) { return __builtin_ctzll(n); }

/* --- order ----------------------------------------------------------------------------------------------- */

/* A record's size is written last, and read first: who sees it sees the bytes that were written before it, in any thread
 * or process, on any processor. On x86-64 both are plain instructions. A size at an odd address is no atomic object of
 * C's, so there is a fence beside it. */
static inline void release32(uint8_t *p, mq_i64 at, mq_i64 n) {
    __atomic_thread_fence(__ATOMIC_RELEASE);
    store32(p, at, n);
}
static inline int acquire32(const uint8_t *p, mq_i64 at) {
    int n = load32(p, at);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return n;
}

#define CACHE_LINE 64
/* Begins to fetch what lies around a position, and does not wait for it; any position is allowed. */
static inline void prefetch(const uint8_t *p, mq_i64 at) {
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)at), 0, 3);
}

/* --- bytes ----------------------------------------------------------------------------------------------- */

static inline void copy(uint8_t *out, mq_i64 at, const uint8_t *p, mq_i64 start, mq_i64 length) {
    if (length > 0) memcpy(out + at, p + start, (size_t)length);
}
/* Copies, and returns the position after the copy. */
static inline mq_i64 put(uint8_t *out, mq_i64 at, const uint8_t *p, mq_i64 start, mq_i64 length) {
    copy(out, at, p, start, length);
    return at + length;
}
/* A memcpy of a few of the `size` bytes of p: up to OVERLAP of those after them come along, so that many bytes of room
 * are needed after the text. */
#define OVERLAP 16
static inline void copy_text(uint8_t *out, mq_i64 at, const uint8_t *p, mq_i64 start, mq_i64 length, mq_i64 size) {
    if (start + length + OVERLAP <= size) {
        __builtin_memcpy(out + at, p + start, 16);
        for (mq_i64 done = 16; done < length; done += 8)
            __builtin_memcpy(out + at + done, p + start + done, 8);
    } else {
        copy(out, at, p, start, length);
    }
}
static inline int same_bytes(const uint8_t *a, mq_i64 a_start, const uint8_t *b, mq_i64 b_start, mq_i64 length) {
    mq_i64 i = 0;
    for (; i + 8 <= length; i += 8)
        if (load_word(a, a_start + i) != load_word(b, b_start + i)) return 0;
    for (; i < length; i++)
        if (a[a_start + i] != b[b_start + i]) return 0;
    return 1;
}

/* --- checksums ------------------------------------------------------------------------------------------- */

/* ISA-L's crc32_gzip_refl where its wheel is, else the tables below: sixteen bytes a step through sixteen tables. */
typedef uint32_t (*mq_crc32_t)(uint32_t, const uint8_t *, uint64_t);
static uint32_t mq_crc32_tables[16][256];
static uint32_t mq_crc32_by_tables(uint32_t seed, const uint8_t *p, uint64_t length) {
    uint32_t crc = ~seed;
    uint64_t i = 0;
    for (; i + 16 <= length; i += 16) {
        uint32_t step = 0;
        for (int k = 0; k < 16; k++) {
            uint8_t byte = p[i + k];
            if (k < 4) byte ^= (uint8_t)(crc >> 8 * k);
            step ^= mq_crc32_tables[15 - k][byte];
        }
        crc = step;
    }
    for (; i < length; i++) crc = mq_crc32_tables[0][(uint8_t)crc ^ p[i]] ^ crc >> 8;
    return ~crc;
}
static mq_crc32_t mq_crc32 = mq_crc32_by_tables;
#if defined(__x86_64__)
static int mq_has_avx;
/* ISA-L leaves the upper halves of registers as it used them: then each instruction of SSE waits for the one before. */
static inline void mq_forget_upper_halves(void) {
    if (mq_has_avx) __asm__ volatile("vzeroupper");
}
#else
static inline void mq_forget_upper_halves(void) {}
#endif
/* Called once by each module when it is imported; 0 stands for the tables. */
static inline void use_crc32(mq_u64 address) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    mq_has_avx = __builtin_cpu_supports("avx");
#endif
    if (address) {
        mq_crc32 = (mq_crc32_t)(uintptr_t)address;
        return;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        mq_crc32_tables[0][byte] = crc;
    }
    for (int k = 1; k < 16; k++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = mq_crc32_tables[k - 1][byte];
            mq_crc32_tables[k][byte] = before >> 8 ^ mq_crc32_tables[0][before & 0xFF];
        }
}
static inline int crc32(const uint8_t *p, mq_i64 start, mq_i64 length) {
    uint32_t found = mq_crc32(0, p + start, (uint64_t)length);
    mq_forget_upper_halves();
    return (int)(found & 0x7FFFFFFF);
}

/* The name of the property that has a record's checksum, and the \1 after it. */
#define PROP_CRC_NAME_LENGTH 9
static const uint8_t PROP_CRC_NAME[] = "__CRC32#\1";

/* --- hash tables ----------------------------------------------------------------------------------------- */

#define MQ_HASH_FACTOR 0x9E3779B97F4A7C15u
/* Eight bytes a step, the first one lowest; the last step's are filled up with zeros. */
static inline mq_u64 hash_bytes(const uint8_t *p, mq_i64 start, mq_i64 length) {
    mq_u64 code = (mq_u64)length, last = 0;
    mq_i64 i = start, end = start + length;
    for (; i + 8 <= end; i += 8) {
        code = (code ^ load_word(p, i)) * MQ_HASH_FACTOR;
        code ^= code >> 32;
    }
    for (mq_i64 j = end - 1; j >= i; j--) last = last << 8 | p[j];
    code = (code ^ last) * MQ_HASH_FACTOR;
    return code ^ code >> 32;
}
/* Of two numbers. */
static inline mq_u64 hash_pair(mq_i64 a, mq_i64 b) { return ((mq_u64)a << 32 | (uint32_t)b) * MQ_HASH_FACTOR; }
/* Where a hash belongs in an open-addressing table of mask + 1 slots, a power of two. */
static inline mq_i64 slot_of(mq_u64 code, mq_i64 mask) { return (mq_i64)((code ^ code >> 32) & (mq_u64)mask); }

/* --- text ------------------------------------------------------------------------------------------------ */

#define MQ_EACH 0x0101010101010101u
/* The top bit of each byte of the word that is zero. */
static inline mq_u64 mq_zero_bytes(mq_u64 w) {
    const mq_u64 low = 0x7F7F7F7F7F7F7F7Fu;
    return ~(((w & low) + low) | w | low);
}
/* Properties are NAME \1 VALUE \2 NAME \1 VALUE \2; the last \2 may be missing. From each start take
 * parting = name_end() and stop = value_end() after it: the pair counts if start < parting and parting + 1 < stop. */
#define NAME_VALUE_SEPARATOR 1
#define PROPERTY_SEPARATOR 2
/* Where the first \1 or \2 from `at` on is, else `end`. */
static inline mq_i64 name_end(const uint8_t *p, mq_i64 at, mq_i64 end) {
    for (; at + 8 <= end; at += 8) {
        mq_u64 w = load_word(p, at), found = mq_zero_bytes(w ^ MQ_EACH) | mq_zero_bytes(w ^ 2 * MQ_EACH);
        if (found) return at + (__builtin_ctzll(found) >> 3);
    }
    while (at < end && p[at] != 1 && p[at] != 2) at++;
    return at;
}
/* Where the next \2 is before `end`, else `end`. */
static inline mq_i64 value_end(const uint8_t *p, mq_i64 at, mq_i64 end) {
    for (; at + 8 <= end; at += 8) {
        mq_u64 found = mq_zero_bytes(load_word(p, at) ^ 2 * MQ_EACH);
        if (found) return at + (__builtin_ctzll(found) >> 3);
    }
    while (at < end && p[at] != 2) at++;
    return at;
}

/* The UTF-8 character at `at`: its code point and how many bytes it has. Malformed: -1, and how many bytes could have
 * begun a character, at least one; a decoder puts one U+FFFD in their place. */
typedef struct {
    mq_i64 f0, f1;
} mq_pair;
static inline mq_pair mq_character(mq_i64 point, mq_i64 length) {
    mq_pair found = {point, length};
    return found;
}
static inline mq_pair mq_read_character(const uint8_t *p, mq_i64 at, mq_i64 end) {
    mq_i64 lead = p[at], low = 0x80, high = 0xBF, length, point;
    if (lead < 0x80) return mq_character(lead, 1);
    if (0xC2 <= lead && lead <= 0xDF) { /* C0 and C1 would be overlong forms of ASCII */
        length = 2, point = lead & 0x1F;
    } else if (0xE0 <= lead && lead <= 0xEF) {
        length = 3, point = lead & 0x0F;
        if (lead == 0xE0) low = 0xA0;  /* overlong below */
        if (lead == 0xED) high = 0x9F; /* surrogates above */
    } else if (0xF0 <= lead && lead <= 0xF4) {
        length = 4, point = lead & 0x07;
        if (lead == 0xF0) low = 0x90;  /* overlong below */
        if (lead == 0xF4) high = 0x8F; /* beyond U+10FFFF above */
    } else {
        return mq_character(-1, 1);
    }
    for (mq_i64 i = 1; i < length; i++) {
        if (at + i >= end || p[at + i] < low || p[at + i] > high) return mq_character(-1, i);
        point = point << 6 | (p[at + i] & 0x3F);
        low = 0x80, high = 0xBF;
    }
    return mq_character(point, length);
}
/* The 8 hexadecimal digits of a number's 32 lowest bits, four bits spread to a byte each and then made digits. */
static inline void store_hex(uint8_t *out, mq_i64 at, mq_i64 n) {
    mq_u64 spread = (uint32_t)n;
    spread = (spread | spread << 16) & 0x0000FFFF0000FFFFu;
    spread = (spread | spread << 8) & 0x00FF00FF00FF00FFu;
    spread = (spread | spread << 4) & 0x0F0F0F0F0F0F0F0Fu;
    mq_u64 is_letter = (spread + MQ_EACH * 6) >> 4 & MQ_EACH;
    store64(out, at, (mq_i64)(spread + MQ_EACH * '0' + is_letter * 7));
}

/* --- many bytes at a time -------------------------------------------------------------------------------- */

#define MQ_BLOCK 32
#define SPAN 64
#if defined(__SSE2__)
static inline __m128i mq_16(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline mq_u64 mq_bits(__m128i flags) { return (uint16_t)_mm_movemask_epi8(flags); }
static inline mq_u64 mq_equal_16(const uint8_t *p, __m128i each) { return mq_bits(_mm_cmpeq_epi8(mq_16(p), each)); }
/* Which of the SPAN bytes are `byte`: the lowest bit for the first. */
static inline mq_u64 mq_equal_bytes(const uint8_t *p, mq_i64 byte) {
    __m128i each = _mm_set1_epi8((char)byte);
    return mq_equal_16(p, each) | mq_equal_16(p + 16, each) << 16 | mq_equal_16(p + 32, each) << 32 |
           mq_equal_16(p + 48, each) << 48;
}
static inline mq_u64 mq_same_16(const uint8_t *a, const uint8_t *b) { return mq_equal_16(a, mq_16(b)); }
static inline mq_u64 mq_same_block(const uint8_t *a, const uint8_t *b) {
    return mq_same_16(a, b) | mq_same_16(a + 16, b + 16) << 16;
}
#else
/* The top bit of each byte of a word, moved together. */
static inline mq_u64 mq_tops(mq_u64 w) { return (w >> 7 & MQ_EACH) * 0x0102040810204080u >> 56; }
static inline mq_u64 mq_equal_bytes(const uint8_t *p, mq_i64 byte) {
    mq_u64 found = 0;
    for (int i = 0; i < SPAN; i += 8)
        found |= mq_tops(mq_zero_bytes(load_word(p, i) ^ MQ_EACH * (uint8_t)byte)) << i;
    return found;
}
static inline mq_u64 mq_same_block(const uint8_t *a, const uint8_t *b) {
    mq_u64 found = 0;
    for (int i = 0; i < MQ_BLOCK; i += 8) found |= mq_tops(mq_zero_bytes(load_word(a, i) ^ load_word(b, i))) << i;
    return found;
}
#endif
/* Which of SPAN bytes are those at `model`: the lowest bit for the first. */
static inline mq_u64 unlike_span(const uint8_t *p, mq_i64 at, mq_i64 model) {
    return ~(mq_same_block(p + at, p + model) | mq_same_block(p + at + MQ_BLOCK, p + model + MQ_BLOCK) << MQ_BLOCK);
}
static inline mq_u64 equal_in_span(const uint8_t *p, mq_i64 at, mq_i64 byte) { return mq_equal_bytes(p + at, byte); }
/* Which of the first SPAN bytes of p[at:end] are `byte`: the lowest bit for the first. There are `size` bytes, `end` at
 * most, of which others may be read too. */
static inline mq_u64 found_in_span(const uint8_t *p, mq_i64 at, mq_i64 end, mq_i64 size, mq_i64 byte) {
    if (at >= end) return 0;
    mq_i64 left = end - at < SPAN ? end - at : SPAN;
    if (size < SPAN) {
        mq_u64 found = 0;
        for (mq_i64 i = 0; i < left; i++) found |= (mq_u64)(p[at + i] == byte) << i;
        return found;
    }
    mq_i64 from = at < size - SPAN ? at : size - SPAN;
    return mq_equal_bytes(p + from, byte) >> (at - from) & ~(mq_u64)0 >> (SPAN - left);
}
/* Where the first such byte from `at` on is, else `end`; as found_in_span(). */
static inline mq_i64 byte_end(const uint8_t *p, mq_i64 at, mq_i64 end, mq_i64 size, mq_i64 byte) {
    for (; at < end; at += SPAN) {
        mq_u64 found = found_in_span(p, at, end, size, byte);
        if (found) return at + trailing_zeros(found);
    }
    return end;
}

/* --- Java's String.hashCode ------------------------------------------------------------------------------ */

#define MQ_STEP 32 /* characters that are hashed at once */
static uint32_t mq_powers[MQ_STEP + 1]; /* of 31, the highest first, filled by use_hash_text */
static const uint8_t mq_last_bytes[2 * MQ_STEP] = {[MQ_STEP... 2 * MQ_STEP - 1] = 0xFF};
/* Called once by each module that hashes texts, when it is imported. */
static inline void use_hash_text(void) {
    uint32_t power = 1;
    for (int i = MQ_STEP; i >= 0; i--, power *= 31) mq_powers[i] = power;
}
static inline uint32_t mq_hash_characters(const uint8_t *p, mq_i64 at, mq_i64 end, uint32_t code) {
    while (at < end) {
        mq_pair found = mq_read_character(p, at, end);
        mq_i64 point = found.f0 < 0 ? 0xFFFD : found.f0;
        at += found.f1;
        if (point > 0xFFFF) { /* Java hashes UTF-16: two surrogates */
            point -= 0x10000;
            code = code * 31 + (uint32_t)(0xD800 | point >> 10);
            point = 0xDC00 | (point & 0x3FF);
        }
        code = code * 31 + (uint32_t)point;
    }
    return code;
}
/* The hash of the UTF-8 text p[start:end], going on from `code`, in [0, 2^32). Malformed bytes count as U+FFFD, as
 * bytes.decode("utf-8", "replace") makes of them. What is before the text may be read with it. */
static inline mq_i64 hash_text(const uint8_t *p, mq_i64 start, mq_i64 end, mq_i64 before) {
    uint32_t code = (uint32_t)before;
    if (start < MQ_STEP) return mq_hash_characters(p, start, end, code);
    if (start >= end) return code;
    mq_i64 length = (end - start - 1) % MQ_STEP + 1;
    for (mq_i64 stop = start + length; stop <= end; stop += MQ_STEP, length = MQ_STEP) {
        uint8_t text[MQ_STEP], tops = 0;
        uint32_t sum = 0;
        for (int i = 0; i < MQ_STEP; i++) text[i] = p[stop - MQ_STEP + i] & mq_last_bytes[length + i];
        for (int i = 0; i < MQ_STEP; i++) tops |= text[i];
        if (tops & 0x80) return mq_hash_characters(p, stop - length, end, code);
        for (int i = 0; i < MQ_STEP; i++) sum += text[i] * mq_powers[i + 1];
        code = code * mq_powers[MQ_STEP - length] + sum;
    }
    return code;
}
/* Going on with one character below 128. */
static inline mq_i64 hash_after(mq_i64 code, mq_i64 character) { return (uint32_t)code * 31 + (uint32_t)character; }
#endif
