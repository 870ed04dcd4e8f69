// Vectors as wide as a register, and their lanes as bits of a mask: comparisons, appending chosen lanes, the largest
// lane. Intrinsics where they pay; every path gives the same values.
#pragma once

#include <cmath>

#include "vec.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace octavo {
namespace OCTAVO_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kWidth = kVectorBytes / 4;

typedef float Lanes __attribute__((vector_size(kVectorBytes)));
typedef int32_t IntLanes __attribute__((vector_size(kVectorBytes)));
typedef uint32_t UintLanes __attribute__((vector_size(kVectorBytes)));
typedef uint32_t Mask;  // bit i: lane i

constexpr Mask kAllLanes = (1u << kWidth) - 1;

// Subtracting 0 changes no float, so no instruction does.
static inline Lanes all(float x) { return x - Lanes{}; }

// A vector at any address.
template <typename V>
static inline V load_vector(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline void store_vector(float* p, Lanes v) { std::memcpy(p, &v, sizeof v); }

// A vector from x + i on; lanes at `size` and beyond are -inf.
static inline Lanes load_at(const float* x, int64_t i, int64_t size) {
  if (size - i >= kWidth) return load_vector<Lanes>(x + i);
  Lanes v = all(-INFINITY);
  for (int lane = 0; lane < size - i; lane++) v[lane] = x[i + lane];
  return v;
}

static inline Mask first_lanes(int64_t n) { return n >= kWidth ? kAllLanes : (1u << n) - 1; }

#if defined(__AVX512F__)

static inline Mask at_least(Lanes a, Lanes b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
static inline Mask less(Lanes a, Lanes b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
static inline Mask equal(Lanes a, Lanes b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ); }
static inline Lanes choose(Mask mask, Lanes yes, Lanes no) {
  return (Lanes)_mm512_mask_blend_ps(static_cast<__mmask16>(mask), (__m512)no, (__m512)yes);
}

// a > b ? a : b, so b where a is NaN.
static inline Lanes larger(Lanes a, Lanes b) { return (Lanes)_mm512_max_ps((__m512)a, (__m512)b); }
static inline Lanes smaller(Lanes a, Lanes b) { return (Lanes)_mm512_min_ps((__m512)a, (__m512)b); }

// Puts the masked lanes at `out` in order and returns their end. What follows it in `out`, for one vector, is lost.
static inline float* append(float* out, Lanes v, Mask mask) {
  // Compressing into a register: the form that writes memory is many times slower on some processors.
  store_vector(out, (Lanes)_mm512_maskz_compress_ps(static_cast<__mmask16>(mask), (__m512)v));
  return out + __builtin_popcount(mask);
}

static inline float largest_lane(Lanes v) { return _mm512_reduce_max_ps((__m512)v); }
static inline float smallest_lane(Lanes v) { return _mm512_reduce_min_ps((__m512)v); }

#else

#if defined(__AVX2__)
static inline Mask lane_bits(IntLanes comparison) { return static_cast<Mask>(_mm256_movemask_ps((__m256)comparison)); }
static inline Lanes larger(Lanes a, Lanes b) { return (Lanes)_mm256_max_ps((__m256)a, (__m256)b); }
static inline Lanes smaller(Lanes a, Lanes b) { return (Lanes)_mm256_min_ps((__m256)a, (__m256)b); }
#elif defined(__SSE2__)
static inline Mask lane_bits(IntLanes comparison) { return static_cast<Mask>(_mm_movemask_ps((__m128)comparison)); }
static inline Lanes larger(Lanes a, Lanes b) { return (Lanes)_mm_max_ps((__m128)a, (__m128)b); }
static inline Lanes smaller(Lanes a, Lanes b) { return (Lanes)_mm_min_ps((__m128)a, (__m128)b); }
#else
static inline Mask lane_bits(IntLanes comparison) {
  Mask mask = 0;
  for (int lane = 0; lane < kWidth; lane++) mask |= (static_cast<Mask>(comparison[lane]) & 1) << lane;
  return mask;
}
static inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
static inline Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }
#endif

static inline Mask at_least(Lanes a, Lanes b) { return lane_bits(a >= b); }
static inline Mask less(Lanes a, Lanes b) { return lane_bits(a < b); }
static inline Mask equal(Lanes a, Lanes b) { return lane_bits(a == b); }
static inline Lanes choose(Mask mask, Lanes yes, Lanes no) {
  IntLanes bits;
  for (int lane = 0; lane < kWidth; lane++) bits[lane] = 1 << lane;
  return (bits & static_cast<int32_t>(mask)) != 0 ? yes : no;
}

static inline float* append(float* out, Lanes v, Mask mask) {
  if (mask == kAllLanes) {
    store_vector(out, v);
    return out + kWidth;
  }
  for (; mask; mask &= mask - 1) *out++ = v[__builtin_ctz(mask)];
  return out;
}

static inline float largest_lane(Lanes v) {
  float result = v[0];
  for (int lane = 1; lane < kWidth; lane++) result = v[lane] > result ? v[lane] : result;
  return result;
}
static inline float smallest_lane(Lanes v) {
  float result = v[0];
  for (int lane = 1; lane < kWidth; lane++) result = v[lane] < result ? v[lane] : result;
  return result;
}

#endif

}  // namespace OCTAVO_ISA
}  // namespace octavo
