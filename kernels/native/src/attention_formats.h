// What differs between KV formats: how keys, values and weights are loaded and multiplied.
//
// A step of scores is a pair of dimensions (float32: one dimension) of sixteen tokens; a step of values a pair of
// tokens of sixteen columns. Either is kParts vectors. `Float32` and `Pairs` take float32 queries and weights.
#pragma once

#include "attention_simd.h"
#include "kv_layout.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int kTile = 64;  // tokens
constexpr int kTileUnits = kTile / kUnit;

struct TwoVectors {
  F first, second;
};

static inline TwoVectors two_weights(const float* weights, int pair) {
  return {all(weights[2 * pair]), all(weights[2 * pair + 1])};
}

static inline F add_weighted(F sum, TwoVectors weights, TwoVectors values) {
  return multiply_add(weights.second, values.second, multiply_add(weights.first, values.first, sum));
}

static inline TwoVectors keep_one(TwoVectors values, bool is_second) {
  return is_second ? TwoVectors{all(0.0f), values.second} : TwoVectors{values.first, all(0.0f)};
}

// Where a row's 64 weights are kept between the softmax and the values; there is room for 64 float32.
struct FloatWeights {
  static inline void put(float* weights, int lane, F v) { store_f(weights + lane, v); }
};

struct Float32 {
  typedef float Query;
  typedef FloatWeights Weights;
  static constexpr int kMostRows = kMostFloatRows, kMostUnits = kMostFloatUnits;
  static constexpr int64_t kDtype = kFloat32;
  static constexpr int kStepBytes = 64;  // of keys
  static constexpr int kStepSize = 1;
  static constexpr int kItemBytes = 4;

  static inline F load_keys(const char* p) { return load_f(p); }
  static inline F load_query(const float* q, int64_t step) { return all(q[step]); }
  static inline F multiply_keys(F sum, F query, F keys) { return multiply_add(query, keys, sum); }

  // `pair` begins the pair's two rows of `row_size` columns.
  static inline TwoVectors load_values(const char* pair, int64_t column, int64_t row_size) {
    const float* row = reinterpret_cast<const float*>(pair) + column;
    return {load_f(row), load_f(row + row_size)};
  }
  static inline TwoVectors keep(TwoVectors values, bool is_second) { return keep_one(values, is_second); }
  static inline TwoVectors load_weights(const float* weights, int pair) { return two_weights(weights, pair); }
  static inline F multiply_weights(F sum, TwoVectors weights, TwoVectors values) {
    return add_weighted(sum, weights, values);
  }
};

// Pairs of bfloat16 or int8, converted.
template <int64_t kCacheDtype>
struct Pairs {
  typedef float Query;
  typedef FloatWeights Weights;
  static constexpr int kMostRows = kMostFloatRows, kMostUnits = kMostFloatUnits;
  static constexpr int64_t kDtype = kCacheDtype;
  static constexpr int kStepBytes = kCacheDtype == kBFloat16 ? 64 : 32;
  static constexpr int kStepSize = 2;
  static constexpr int kItemBytes = kCacheDtype == kBFloat16 ? 2 : 1;

  static inline TwoVectors load_pairs(const char* p) {
    if (kCacheDtype == kBFloat16) {
      const I pairs = load_i(p);
      return {first_of_pairs(pairs), second_of_pairs(pairs)};
    }
    typedef int16_t Shorts __attribute__((vector_size(2 * kWidth)));
    Shorts packed;
    std::memcpy(&packed, p, sizeof packed);
    const I pairs = __builtin_convertvector(packed, I);
    return {__builtin_convertvector(pairs << 24 >> 24, F), __builtin_convertvector(pairs >> 8, F)};
  }
  static inline TwoVectors load_keys(const char* p) { return load_pairs(p); }
  static inline TwoVectors load_query(const float* q, int64_t step) { return {all(q[2 * step]), all(q[2 * step + 1])}; }
  static inline F multiply_keys(F sum, TwoVectors query, TwoVectors keys) {
    return multiply_add(query.second, keys.second, multiply_add(query.first, keys.first, sum));
  }

  static inline TwoVectors load_values(const char* pair, int64_t column, int64_t) {
    return load_pairs(pair + 2 * kItemBytes * column);
  }
  static inline TwoVectors keep(TwoVectors values, bool is_second) { return keep_one(values, is_second); }
  static inline TwoVectors load_weights(const float* weights, int pair) { return two_weights(weights, pair); }
  static inline F multiply_weights(F sum, TwoVectors weights, TwoVectors values) {
    return add_weighted(sum, weights, values);
  }
};

#if defined(__AVX512BF16__)

// A weight as the sum of two bfloat16, exact to 2^-17 of itself.
struct SplitWeights {
  static inline void put(float* weights, int lane, F v) {
    uint16_t* high = reinterpret_cast<uint16_t*>(weights) + lane;
    const __m512i upper = _mm512_and_si512((__m512i)v, _mm512_set1_epi32(static_cast<int32_t>(0xFFFF0000)));
    const __m512 rest = _mm512_sub_ps((__m512)v, _mm512_castsi512_ps(upper));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high), _mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high + kTile), (__m256i)_mm512_cvtneps_pbh(rest));
  }
};

// Pairs of bfloat16 (int8 becomes that, exactly) multiplied as such, with bfloat16 queries.
template <int64_t kCacheDtype>
struct DotPairs {
  typedef uint16_t Query;
  typedef SplitWeights Weights;
  static constexpr int kMostRows = kCacheDtype == kBFloat16 ? 6 : 4, kMostUnits = 4;  // registers for the sums
  static constexpr int64_t kDtype = kCacheDtype;
  static constexpr int kStepBytes = kCacheDtype == kBFloat16 ? 64 : 32;
  static constexpr int kStepSize = 2;
  static constexpr int kItemBytes = kCacheDtype == kBFloat16 ? 2 : 1;

  struct SplitWeight {
    __m512bh high, low;
  };

  static inline __m512bh load_pairs(const char* p) {
    if (kCacheDtype == kBFloat16) return (__m512bh)_mm512_loadu_si512(p);
    const __m512i pairs = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512 first = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16));
    const __m512 second = _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16));
    return (__m512bh)_mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(_mm512_castps_si512(first), 16),
                                             _mm512_castps_si512(second));
  }
  static inline __m512bh broadcast(const uint16_t* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }

  static inline __m512bh load_keys(const char* p) { return load_pairs(p); }
  static inline __m512bh load_query(const uint16_t* q, int64_t step) { return broadcast(q + 2 * step); }
  static inline F multiply_keys(F sum, __m512bh query, __m512bh keys) {
    return (F)_mm512_dpbf16_ps((__m512)sum, keys, query);
  }

  static inline __m512bh load_values(const char* pair, int64_t column, int64_t) {
    return load_pairs(pair + 2 * kItemBytes * column);
  }
  static inline SplitWeight load_weights(const float* weights, int pair) {
    const uint16_t* high = reinterpret_cast<const uint16_t*>(weights);
    return {broadcast(high + 2 * pair), broadcast(high + kTile + 2 * pair)};
  }
  static inline __m512bh keep(__m512bh values, bool is_second) {
    return (__m512bh)_mm512_maskz_mov_epi16(is_second ? 0xAAAAAAAA : 0x55555555, (__m512i)values);
  }
  static inline F multiply_weights(F sum, SplitWeight weight, __m512bh values) {
    return (F)_mm512_dpbf16_ps(_mm512_dpbf16_ps((__m512)sum, values, weight.high), values, weight.low);
  }
};

#endif

}  // namespace OCTAVO_ISA
}  // namespace octavo
