// Philox4x32-10 (Salmon et al., SC 2011) for sixty-four token ids at a time, and minus the Gumbel noise made from it.
// A number depends on seed, position, stream and token id alone (design 7.4).
#pragma once

#include "lanes.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int kIdsPerCall = 64;  // sixteen counters of four words
constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kPhiloxIncrement0 = 0x9E3779B9, kPhiloxIncrement1 = 0xBB67AE85;
constexpr int kPhiloxRounds = 10;

struct PhiloxKey {
  uint64_t seed;
  uint32_t position;
  uint32_t stream;
};

#if defined(__AVX512F__)

// One counter in each 64-bit lane. The upper halves of the words hold what the last product left; nothing reads them.
static inline void philox_eight(__m512i groups, const PhiloxKey& key, UintLanes out[2]) {
  const __m512i multiplier0 = _mm512_set1_epi64(kPhiloxMultiplier0);
  const __m512i multiplier1 = _mm512_set1_epi64(kPhiloxMultiplier1);
  __m512i c0 = groups, c1 = _mm512_set1_epi64(key.position), c2 = _mm512_set1_epi64(key.stream);
  __m512i c3 = _mm512_setzero_si512();
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; round++) {
    const __m512i product0 = _mm512_mul_epu32(c0, multiplier0), product1 = _mm512_mul_epu32(c2, multiplier1);
    const __m512i high0 = _mm512_srli_epi64(product0, 32), high1 = _mm512_srli_epi64(product1, 32);
    c0 = _mm512_ternarylogic_epi64(high1, c1, _mm512_set1_epi64(k0), 0x96);  // the xor of three
    c2 = _mm512_ternarylogic_epi64(high0, c3, _mm512_set1_epi64(k1), 0x96);
    c1 = product1, c3 = product0;
    k0 += kPhiloxIncrement0, k1 += kPhiloxIncrement1;
  }
  // Words 0 1 and 2 3 side by side, then the pairs of a counter: even 64-bit lanes to out[0], odd ones to out[1].
  const __m512i first = _mm512_mask_blend_epi32(0xAAAA, c0, _mm512_slli_epi64(c1, 32));
  const __m512i second = _mm512_mask_blend_epi32(0xAAAA, c2, _mm512_slli_epi64(c3, 32));
  out[0] = (UintLanes)_mm512_unpacklo_epi64(first, second);
  out[1] = (UintLanes)_mm512_unpackhi_epi64(first, second);
}

static inline void philox_words(uint32_t first_group, const PhiloxKey& key, UintLanes out[kIdsPerCall / kWidth]) {
  const __m512i groups = _mm512_add_epi64(_mm512_set1_epi64(first_group), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
  philox_eight(groups, key, out);
  philox_eight(_mm512_add_epi64(groups, _mm512_set1_epi64(8)), key, out + 2);
}

#elif defined(__AVX2__)

static inline void philox_four(__m256i groups, const PhiloxKey& key, UintLanes out[2]) {
  const __m256i multiplier0 = _mm256_set1_epi64x(kPhiloxMultiplier0);
  const __m256i multiplier1 = _mm256_set1_epi64x(kPhiloxMultiplier1);
  __m256i c0 = groups, c1 = _mm256_set1_epi64x(key.position), c2 = _mm256_set1_epi64x(key.stream);
  __m256i c3 = _mm256_setzero_si256();
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; round++) {
    const __m256i product0 = _mm256_mul_epu32(c0, multiplier0), product1 = _mm256_mul_epu32(c2, multiplier1);
    const __m256i high0 = _mm256_srli_epi64(product0, 32), high1 = _mm256_srli_epi64(product1, 32);
    c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi64x(k0));
    c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi64x(k1));
    c1 = product1, c3 = product0;
    k0 += kPhiloxIncrement0, k1 += kPhiloxIncrement1;
  }
  const __m256i first = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xAA);
  const __m256i second = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xAA);
  out[0] = (UintLanes)_mm256_unpacklo_epi64(first, second);
  out[1] = (UintLanes)_mm256_unpackhi_epi64(first, second);
}

static inline void philox_words(uint32_t first_group, const PhiloxKey& key, UintLanes out[kIdsPerCall / kWidth]) {
  for (int part = 0; part < 4; part++) {
    const __m256i groups = _mm256_add_epi64(_mm256_set1_epi64x(first_group + 4 * part), _mm256_setr_epi64x(0, 2, 1, 3));
    philox_four(groups, key, out + 2 * part);
  }
}

#else

static inline void philox_words(uint32_t first_group, const PhiloxKey& key, UintLanes out[kIdsPerCall / kWidth]) {
  for (int group = 0; group < kIdsPerCall / 4; group++) {
    uint32_t c0 = first_group + group, c1 = key.position, c2 = key.stream, c3 = 0;
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < kPhiloxRounds; round++) {
      const uint64_t product0 = uint64_t{c0} * kPhiloxMultiplier0, product1 = uint64_t{c2} * kPhiloxMultiplier1;
      c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
      c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(product1), c3 = static_cast<uint32_t>(product0);
      k0 += kPhiloxIncrement0, k1 += kPhiloxIncrement1;
    }
    const uint32_t result[4] = {c0, c1, c2, c3};
    std::memcpy(out + group, result, sizeof result);
  }
}

#endif

// ln E of h: E = -log1p(-(h + 1/2) 2^-32) below 2^31, else -ln((2^32 - h - 1/2) 2^-32). Both arguments are odd integers
// below 2^32 over 2^33; they are rounded once, to the nearest float.
static inline Lanes log_exponential(UintLanes h) {
  const IntLanes is_high = (IntLanes)h < 0;
  const UintLanes odd = ((h ^ (UintLanes)is_high) << 1) + 1;
  const IntLanes upper = (IntLanes)(odd >> 16), lower = (IntLanes)(odd & 0xFFFF);
  const Lanes rounded = __builtin_convertvector(upper, Lanes) * 65536.0f + __builtin_convertvector(lower, Lanes);
  const Lanes argument = rounded * 0x1p-33f;
  Lanes exponent, fraction;
  split_exponent(argument, &exponent, &fraction);
  const Lanes zero = {};
  return log(-log_of_parts(is_high ? exponent : zero, is_high ? fraction : -argument));
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
