/* Text of frames: decimal and hexadecimal numbers, UTF-8, and blocks of bytes that are compared, looked through or
 * copied at once. text.pxd declares it.
 *
 * Nothing here checks a position: callers have compared every length with what is left before they use it. */
#ifndef MQLAKE_TEXT_H
#define MQLAKE_TEXT_H
#include "prim.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define MQ_ZEROS 0x3030303030303030u
#define MQ_NO_DIGITS 0x4646464646464646u
#define MQ_TOPS 0x8080808080808080u
#define MQ_PAIRS 0x000000FF000000FFu
#define MQ_MILLION (100 + ((mq_u64)1000000 << 32))
#define MQ_TEN_THOUSAND (1 + ((mq_u64)10000 << 32))

/* Whether p[start:start + length] is a text. */
static inline int equals(const uint8_t *p, mq_i64 start, mq_i64 length, const char *text) {
    return length == (mq_i64)strlen(text) && memcmp(p + start, text, strlen(text)) == 0;
}

/* Copies a text; the position after it. */
static inline mq_i64 put_text(uint8_t *out, mq_i64 at, const char *text) {
    __builtin_memcpy(out + at, text, strlen(text));
    return at + (mq_i64)strlen(text);
}

/* --- numbers read ---------------------------------------------------------------------------------------- */

static inline mq_u64 mq_eight_digits_of(mq_u64 word) { /* pairs, then fours, then all eight */
    word = word * 10 + (word >> 8);
    return ((word & MQ_PAIRS) * MQ_MILLION + (word >> 16 & MQ_PAIRS) * MQ_TEN_THOUSAND) >> 32;
}
/* The number that the first of eight bytes are in decimal; how many of them. */
static inline mq_i64 few_digits(mq_u64 word, mq_i64 *digits) {
    mq_u64 others = ((word - MQ_ZEROS) | (word + MQ_NO_DIGITS)) & MQ_TOPS; /* after the first one it may be wrong */
    mq_u64 count = others ? (mq_u64)__builtin_ctzll(others) >> 3 : 8;
    *digits = (mq_i64)count;
    return count ? (mq_i64)mq_eight_digits_of((word - MQ_ZEROS) << (64 - (count << 3))) : 0;
}
/* The position after the decimal digits from `at` on, -1 when 63 bits do not hold their number. */
static inline mq_i64 read_digits(const uint8_t *p, mq_i64 at, mq_i64 end, mq_i64 *number) {
    mq_i64 value = 0;
    while (at + 8 <= end && value < 100000000) {
        mq_u64 word = load_word(p, at);
        if (((word - MQ_ZEROS) | (word + MQ_NO_DIGITS)) & MQ_TOPS) break;
        value = value * 100000000 + (mq_i64)mq_eight_digits_of(word - MQ_ZEROS);
        at += 8;
    }
    for (; at < end; at++) {
        mq_i64 digit = (mq_i64)p[at] - '0';
        if (digit < 0 || digit > 9) break;
        if (value > INT64_MAX / 10 || (value == INT64_MAX / 10 && digit > 7)) {
            *number = 0;
            return -1;
        }
        value = value * 10 + digit;
    }
    *number = value;
    return at;
}

/* The code point of the UTF-8 character at a position, and its bytes. Malformed: -1, and how many bytes could have
 * begun a character, at least one. */
static inline mq_i64 read_character(const uint8_t *p, mq_i64 at, mq_i64 end, mq_i64 *length) {
    mq_i64 lead = p[at], low = 0x80, high = 0xBF, count, point;
    *length = 1;
    if (lead < 0x80) return lead;
    if (lead >= 0xC2 && lead <= 0xDF) { /* C0 and C1 would be overlong forms of ASCII */
        count = 2;
        point = lead & 0x1F;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        count = 3;
        point = lead & 0x0F;
        if (lead == 0xE0) low = 0xA0;       /* overlong below */
        else if (lead == 0xED) high = 0x9F; /* surrogates above */
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        count = 4;
        point = lead & 0x07;
        if (lead == 0xF0) low = 0x90;       /* overlong below */
        else if (lead == 0xF4) high = 0x8F; /* beyond U+10FFFF above */
    } else {
        return -1;
    }
    for (mq_i64 i = 1; i < count; i++) {
        *length = i;
        if (at + i >= end || p[at + i] < low || p[at + i] > high) return -1;
        point = point << 6 | (p[at + i] & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    *length = count;
    return point;
}

/* --- numbers written ------------------------------------------------------------------------------------- */

/* The digits of a number below 10 ** 8, each in a byte, the first one lowest. */
static inline mq_u64 mq_digits(mq_u64 value) {
    mq_u64 high = value / 10000, halves = high | (value - high * 10000) << 32;
    mq_u64 hundreds = halves * 10486 >> 20 & 0x0000007F0000007Fu; /* 10486 of 2 ** 20: a hundredth */
    mq_u64 pairs = hundreds | (halves - hundreds * 100) << 16;
    mq_u64 tens = pairs * 103 >> 10 & 0x000F000F000F000Fu; /* 103 of 2 ** 10: a tenth */
    return tens | (pairs - tens * 10) << 8;
}
/* Writes a number that is not negative in decimal, and up to seven zeros after it; the position after it. */
static inline mq_i64 write_number(uint8_t *out, mq_i64 at, mq_i64 value) {
    mq_u64 first = (mq_u64)value;
    int groups = 0;
    for (; first >= 100000000; groups++) first /= 100000000;
    mq_u64 digits = mq_digits(first), absent = (mq_u64)__builtin_ctzll(digits | (mq_u64)1 << 56) >> 3;
    store_word(out, at, (digits + MQ_ZEROS) >> (absent << 3));
    at += 8 - (mq_i64)absent;
    while (groups-- > 0) {
        mq_u64 rest = groups ? (mq_u64)value / 100000000 : (mq_u64)value;
        store_word(out, at, mq_digits(rest % 100000000) + MQ_ZEROS);
        at += 8;
    }
    return at;
}
/* Writes the 16 upper case hexadecimal digits of a 64-bit number; the position after them. */
static inline mq_i64 write_hex(uint8_t *out, mq_i64 at, mq_i64 value) {
    for (int half = 0; half < 2; half++) { /* eight digits at once, each in a byte */
        mq_u64 w = (mq_u64)value >> (32 - 32 * half) & 0xFFFFFFFFu;
        w = (w | w << 16) & 0x0000FFFF0000FFFFu;
        w = (w | w << 8) & 0x00FF00FF00FF00FFu;
        w = (w | w << 4) & 0x0F0F0F0F0F0F0F0Fu;
        mq_u64 letters = (w + 6 * MQ_EACH) >> 4 & MQ_EACH;
        store64(out, at + 8 * half, (mq_i64)(w + MQ_ZEROS + letters * 7));
    }
    return at + 16;
}

/* --- blocks ---------------------------------------------------------------------------------------------- */

#define BLOCK 32

/* Which bytes of two blocks differ: the lowest bit for the first. */
static inline mq_u64 unlike(const uint8_t *a, mq_i64 a_start, const uint8_t *b, mq_i64 b_start) {
    mq_u64 found = 0;
#if defined(__SSE2__)
    for (int i = 0; i < BLOCK; i += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)(a + a_start + i));
        __m128i y = _mm_loadu_si128((const __m128i *)(b + b_start + i));
        found |= (mq_u64)(~_mm_movemask_epi8(_mm_cmpeq_epi8(x, y)) & 0xFFFF) << i;
    }
#else
    for (int i = 0; i < BLOCK; i++) found |= (mq_u64)(a[a_start + i] != b[b_start + i]) << i;
#endif
    return found;
}
/* How many bytes of a block, from the first on, are printable ASCII, and neither quote nor backslash. */
static inline mq_i64 plain_length(const uint8_t *p, mq_i64 start) {
#if defined(__SSE2__)
    for (int i = 0; i < BLOCK; i += 16) {
        __m128i x = _mm_loadu_si128((const __m128i *)(p + start + i));
        __m128i printable = _mm_and_si128(_mm_cmpgt_epi8(x, _mm_set1_epi8(0x1F)), _mm_cmplt_epi8(x, _mm_set1_epi8(0x7F)));
        __m128i marks = _mm_or_si128(_mm_cmpeq_epi8(x, _mm_set1_epi8('"')), _mm_cmpeq_epi8(x, _mm_set1_epi8('\\')));
        int others = ~_mm_movemask_epi8(_mm_andnot_si128(marks, printable)) & 0xFFFF;
        if (others) return i + __builtin_ctz((unsigned)others);
    }
    return BLOCK;
#else
    mq_i64 i = 0;
    while (i < BLOCK && p[start + i] >= 0x20 && p[start + i] < 0x7F && p[start + i] != '"' && p[start + i] != '\\') i++;
    return i;
#endif
}
/* Copies a block. */
static inline void move(uint8_t *out, mq_i64 at, const uint8_t *p, mq_i64 start) {
#if defined(__SSE2__)
    __m128i first = _mm_loadu_si128((const __m128i *)(p + start));
    __m128i second = _mm_loadu_si128((const __m128i *)(p + start + 16));
    _mm_storeu_si128((__m128i *)(out + at), first);
    _mm_storeu_si128((__m128i *)(out + at + 16), second);
#else
    uint8_t block[BLOCK];
    __builtin_memcpy(block, p + start, BLOCK);
    __builtin_memcpy(out + at, block, BLOCK);
#endif
}
/* As `put`, and up to a block less one byte more, of both. */
static inline mq_i64 put_blocks(uint8_t *out, mq_i64 at, const uint8_t *p, mq_i64 start, mq_i64 length) {
    for (mq_i64 done = 0; done < length; done += BLOCK) move(out, at + done, p, start + done);
    return at + length;
}

/* Writes the lengths of a frame without a body that fills out[start:end]. */
static inline void finish_frame(uint8_t *out, mq_i64 start, mq_i64 end, mq_i64 kind) {
    store32(out, start, end - start - 4);
    store32(out, start + 4, kind << 24 | (end - start - 8));
}
#endif
