// Vectors of the width that the registers have, and exp2 on them. Unlike vec.h this may differ in bits from one
// instruction set to another: attention uses fused multiply-adds where there are any.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

// Before a loop of constant length over registers: unrolled late, the array they form would live in memory.
#define OCTAVO_UNROLL _Pragma("GCC unroll 8")
// A function of its own, with all registers to itself.
#define OCTAVO_ALONE __attribute__((noinline))

namespace octavo {
namespace OCTAVO_ISA {

#if defined(__AVX512F__)
constexpr int kWidth = 16;  // lanes
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int kParts = 16 / kWidth;  // vectors in sixteen lanes
// The register tile of float32 products: rows x units of tokens, or x sixteens of columns.
constexpr int kMostFloatRows = kWidth == 4 ? 2 : 4;
constexpr int kMostFloatUnits = kWidth == 16 ? 2 : 1;

typedef float F __attribute__((vector_size(4 * kWidth)));
typedef int32_t I __attribute__((vector_size(4 * kWidth)));

static inline F all(float x) { return x - F{}; }  // x + 0 would not be x for -0
static inline F load_f(const void* p) {
  F v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline I load_i(const void* p) {
  I v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline void store_f(void* p, F v) { std::memcpy(p, &v, sizeof v); }

static inline I lane_numbers() {
  I v;
  for (int i = 0; i < kWidth; i++) v[i] = i;
  return v;
}

// Two bfloat16 in each lane, the first in the lower half.
static inline F first_of_pairs(I pairs) { return (F)(pairs << 16); }
static inline F second_of_pairs(I pairs) { return (F)(pairs & static_cast<int32_t>(0xFFFF0000)); }

#if defined(__AVX512F__)
static inline F multiply_add(F a, F b, F c) { return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
// a > b ? a : b, so b where either is NaN.
static inline F larger(F a, F b) { return (F)_mm512_max_ps((__m512)a, (__m512)b); }
static inline float largest_lane(F v) { return _mm512_reduce_max_ps((__m512)v); }
// Lanes first <= i < end of v, `rest` in the others.
static inline F within(F v, int first, int end, F rest) {
  const uint32_t before_end = end >= 16 ? 0xFFFF : end <= 0 ? 0 : (1u << end) - 1;
  const uint32_t before_first = first >= 16 ? 0xFFFF : first <= 0 ? 0 : (1u << first) - 1;
  return (F)_mm512_mask_blend_ps(static_cast<__mmask16>(before_end & ~before_first), (__m512)rest, (__m512)v);
}
#else
#if defined(__AVX2__)
static inline F multiply_add(F a, F b, F c) { return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
static inline F larger(F a, F b) { return (F)_mm256_max_ps((__m256)a, (__m256)b); }
#else
static inline F multiply_add(F a, F b, F c) { return a * b + c; }
static inline F larger(F a, F b) { return a > b ? a : b; }
#endif
static inline float largest_lane(F v) {
  float result = v[0];
  for (int i = 1; i < kWidth; i++) result = v[i] > result ? v[i] : result;
  return result;
}
static inline F within(F v, int first, int end, F rest) {
  const I lanes = lane_numbers();
  const I mask = (lanes >= first) & (lanes < end);
  return (F)((mask & (I)v) | (~mask & (I)rest));
}
#endif

// 2^x within 2 ulp for x < 128; 0 below -126.5 (-inf included), exactly 1 at 0, NaN stays NaN.
// 2^x = 2^n 2^r, n the integer nearest to x; 2^r = 1 + r q(r) is a minimax fit made for this file.
static inline F exp2_of(F x) {
  x = larger(all(-127.0f), x);
  // The low bits of the sum are n + 127: the exponent field of 2^n.
  const F shifted = x + all(12582912.0f + 127.0f);
  const F scale = (F)((I)shifted << 23);
  const F r = x - (shifted - all(12582912.0f + 127.0f));
  F p = all(0.0013274508528411388f);
  p = multiply_add(p, r, all(0.009672068990767002f));
  p = multiply_add(p, r, all(0.05550679564476013f));
  p = multiply_add(p, r, all(0.24022233486175537f));
  p = multiply_add(p, r, all(0.6931470632553101f));
  p = multiply_add(p, r, all(1.0f));
  return p * scale;
}

// tanh, within 2^-22 (not ulp: near 0 digits cancel); NaN stays NaN. tanh|x| = (1 - e) / (1 + e), e = exp(-2|x|).
static inline F tanh_of(F x) {
  const I sign = (I)x & INT32_MIN;
  const F e = exp2_of((F)((I)x | INT32_MIN) * all(2.885390081777927f));
  return (F)((I)((all(1.0f) - e) / (all(1.0f) + e)) | sign);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
