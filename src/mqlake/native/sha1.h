/* SHA-1 of whole blocks (FIPS 180-4): by the processor's own instructions where it has them, else in plain ones. */
#ifndef MQLAKE_SHA1_H
#define MQLAKE_SHA1_H
#include "prim.h"
#define SHA1_BLOCK 64

static inline uint32_t mq_rotated(uint32_t value, int count) { return value << count | value >> (32 - count); }

static void mq_sha1_plain(uint32_t state[5], const uint8_t *data, mq_i64 count) {
    for (; count > 0; count--, data += SHA1_BLOCK) {
        uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
        for (int i = 0; i < 80; i++) {
            w[i] = i < 16 ? (uint32_t)load32(data, 4 * i) : mq_rotated(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
            uint32_t f, added;
            if (i < 20) f = d ^ (b & (c ^ d)), added = 0x5A827999;
            else if (i < 40) f = b ^ c ^ d, added = 0x6ED9EBA1;
            else if (i < 60) f = (b & c) | (d & (b | c)), added = 0x8F1BBCDC;
            else f = b ^ c ^ d, added = 0xCA62C1D6;
            uint32_t total = mq_rotated(a, 5) + f + e + w[i] + added;
            e = d, d = c, c = mq_rotated(b, 30), b = a, a = total;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
    }
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
/* Registers hold [d c b a], and four words of the message, the first one last. */
__attribute__((target("sha,sse4.1,ssse3"))) static void mq_sha1_fast(uint32_t state[5], const uint8_t *data, mq_i64 count) {
    const __m128i backwards = _mm_set_epi64x(0x0001020304050607LL, 0x08090A0B0C0D0E0FLL);
    __m128i before = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1B);
    __m128i e = _mm_set_epi32((int)state[4], 0, 0, 0);
    for (; count > 0; count--, data += SHA1_BLOCK) {
        __m128i w[20], abcd = before, previous = before;
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), backwards);
        for (int i = 4; i < 20; i++)
            w[i] = _mm_sha1msg2_epu32(_mm_xor_si128(_mm_sha1msg1_epu32(w[i - 4], w[i - 3]), w[i - 2]), w[i - 1]);
#define MQ_FOUR_ROUNDS(i) do { \
        __m128i added = i == 0 ? _mm_add_epi32(e, w[0]) : _mm_sha1nexte_epu32(previous, w[i]); \
        previous = abcd; \
        abcd = _mm_sha1rnds4_epu32(abcd, added, i / 5); \
    } while (0)
        MQ_FOUR_ROUNDS(0); MQ_FOUR_ROUNDS(1); MQ_FOUR_ROUNDS(2); MQ_FOUR_ROUNDS(3); MQ_FOUR_ROUNDS(4);
        MQ_FOUR_ROUNDS(5); MQ_FOUR_ROUNDS(6); MQ_FOUR_ROUNDS(7); MQ_FOUR_ROUNDS(8); MQ_FOUR_ROUNDS(9);
        MQ_FOUR_ROUNDS(10); MQ_FOUR_ROUNDS(11); MQ_FOUR_ROUNDS(12); MQ_FOUR_ROUNDS(13); MQ_FOUR_ROUNDS(14);
        MQ_FOUR_ROUNDS(15); MQ_FOUR_ROUNDS(16); MQ_FOUR_ROUNDS(17); MQ_FOUR_ROUNDS(18); MQ_FOUR_ROUNDS(19);
#undef MQ_FOUR_ROUNDS
        before = _mm_add_epi32(abcd, before);
        e = _mm_sha1nexte_epu32(previous, e);
    }
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(before, 0x1B));
    state[4] = (uint32_t)_mm_extract_epi32(e, 3);
}
static inline int mq_has_sha(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}
#else
#define mq_sha1_fast mq_sha1_plain
static inline int mq_has_sha(void) { return 0; }
#endif

typedef void (*mq_sha1_t)(uint32_t state[5], const uint8_t *data, mq_i64 count);
static mq_sha1_t mq_sha1 = mq_sha1_plain;
/* Called once by a module when it is imported. */
static inline void choose_sha1(void) { mq_sha1 = mq_has_sha() ? mq_sha1_fast : mq_sha1_plain; }

/* Takes `count` blocks from data[position] on into a state of five numbers. */
static inline void mq_sha1_with(mq_sha1_t way, mq_i64 *numbers, const uint8_t *data, mq_i64 position, mq_i64 count) {
    uint32_t state[5];
    for (int i = 0; i < 5; i++) state[i] = (uint32_t)numbers[i];
    way(state, data + position, count);
    for (int i = 0; i < 5; i++) numbers[i] = (mq_i64)state[i];
}
static inline void sha1_blocks(mq_i64 *numbers, const uint8_t *data, mq_i64 position, mq_i64 count) {
    mq_sha1_with(mq_sha1, numbers, data, position, count);
}
static inline void sha1_blocks_plain(mq_i64 *numbers, const uint8_t *data, mq_i64 position, mq_i64 count) {
    mq_sha1_with(mq_sha1_plain, numbers, data, position, count);
}
#endif
