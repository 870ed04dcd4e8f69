// Register tiles of R rows by one panel (32 outputs, two vectors) with AVX512, its BF16 and its VNNI.
#pragma once

#include <immintrin.h>

#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int kMaxTileRows = 14;

using FloatInput = float;
using BFloat16Input = uint32_t;  // a pair
using Int8Input = uint32_t;      // four
struct Uint4Input {
  uint32_t part[2];  // four each
};

static inline BFloat16Input bf16_input(uint32_t pair) { return pair; }
static inline Int8Input int8_input(uint32_t four) { return four; }
static inline Uint4Input uint4_input(uint32_t first, uint32_t second) { return {{first, second}}; }

template <int R>
static inline void store_tile(float* out, const __m512 (&acc)[R][2]) {
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) {
    _mm512_store_ps(out + r * kPanelLanes, acc[r][0]);
    _mm512_store_ps(out + r * kPanelLanes + 16, acc[r][1]);
  }
}

template <int R>
static void float_tile(const char* weight, const FloatInput* x, int64_t steps, float* out, Ahead ahead) {
  __m512 acc[R][2];
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < steps; i++) {
    const __m512 w0 = _mm512_load_ps(weight), w1 = _mm512_load_ps(weight + 64);
    ahead.fetch<R>();
#pragma GCC unroll 14
    for (int r = 0; r < R; r++) {
      const __m512 b = _mm512_set1_ps(x[r]);
      acc[r][0] = _mm512_fmadd_ps(w0, b, acc[r][0]);
      acc[r][1] = _mm512_fmadd_ps(w1, b, acc[r][1]);
    }
    weight += kPanelStepBytes;
    x += R;
  }
  store_tile<R>(out, acc);
}

template <int R>
static void bf16_tile(const char* weight, const BFloat16Input* x, int64_t steps, float* out, Ahead ahead) {
  __m512 acc[R][2];
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < steps; i++) {
    const __m512bh w0 = (__m512bh)_mm512_load_si512(weight), w1 = (__m512bh)_mm512_load_si512(weight + 64);
    ahead.fetch<R>();
#pragma GCC unroll 14
    for (int r = 0; r < R; r++) {
      const __m512bh b = (__m512bh)_mm512_set1_epi32(static_cast<int>(x[r]));
      acc[r][0] = _mm512_dpbf16_ps(acc[r][0], w0, b);
      acc[r][1] = _mm512_dpbf16_ps(acc[r][1], w1, b);
    }
    weight += kPanelStepBytes;
    x += R;
  }
  store_tile<R>(out, acc);
}

// acc += the four unsigned bytes of w times the four signed bytes of x. Written out because GCC copies accumulators
// to and fro when more than a few of these meet in a loop.
static inline __attribute__((always_inline)) void add_products(__m512i* acc, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(w), "v"(x));
}

// One group: exact integer sums, scaled and added to the float32 sums in `out`. (With those in registers too there
// would be too few for the integers.)
template <int R>
static inline __attribute__((always_inline)) void int8_group(const char* weight, const Int8Input* x, int64_t steps,
                                                             const float* scales, const int32_t* corrections,
                                                             float* out, Ahead* ahead) {
  __m512i acc[R][2];
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = _mm512_set1_epi32(corrections[r]);
  for (int64_t i = 0; i < steps; i++) {
    const __m512i w0 = _mm512_load_si512(weight + i * kPanelStepBytes);
    const __m512i w1 = _mm512_load_si512(weight + i * kPanelStepBytes + 64);
    ahead->fetch<R>();
#pragma GCC unroll 14
    for (int r = 0; r < R; r++) {
      const __m512i b = _mm512_set1_epi32(static_cast<int>(x[i * R + r]));
      add_products(&acc[r][0], w0, b);
      add_products(&acc[r][1], w1, b);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) {
    const __m512 scale = _mm512_set1_ps(scales[r]);
    float* sum = out + r * kPanelLanes;
    const __m512 part0 = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][0]), scale);
    const __m512 part1 = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][1]), scale);
    _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), part0));
    _mm512_store_ps(sum + 16, _mm512_add_ps(_mm512_load_ps(sum + 16), part1));
  }
}

template <int R>
static void int8_tile(const char* weight, const Int8Input* x, const GroupScales& groups, int64_t steps, float* out,
                      Ahead ahead) {
  const float* scales = groups.scales;
  const int32_t* corrections = groups.corrections;
  for (int i = 0; i < R * 2; i++) _mm512_store_ps(out + 16 * i, _mm512_setzero_ps());
  for (int64_t start = 0; start < steps; start += groups.steps, scales += R, corrections += R) {
    const int64_t count = start + groups.steps < steps ? groups.steps : steps - start;
    int8_group<R>(weight + start * kPanelStepBytes, x + start * R, count, scales, corrections, out, &ahead);
  }
}

// The same with the inputs broadcast from where they lie: no register is left for them.
static inline __attribute__((always_inline)) void add_products(__m512i* acc, __m512i w, const uint32_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*acc) : "v"(w), "m"(*x));
}

template <int R>
static inline __attribute__((always_inline)) void uint4_group(const char* weight, const Uint4Input* x,
                                                              const float* scales, const int32_t* corrections,
                                                              float* out, Ahead* ahead) {
  const __m512i low = _mm512_set1_epi8(0x0F);
  const char* factors = weight + kUint4Steps * kPanelStepBytes;
  __m512i acc[R][2];
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    const __m256i* packed = reinterpret_cast<const __m256i*>(factors) + half;
    const __m512i zeros = _mm512_and_si512(_mm512_cvtepu16_epi32(_mm256_load_si256(packed)), _mm512_set1_epi32(0x0F));
#pragma GCC unroll 14
    for (int r = 0; r < R; r++) acc[r][half] = _mm512_madd_epi16(zeros, _mm512_set1_epi32(corrections[r]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < kUint4Steps; i++) {
    ahead->fetch<R>();
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const __m512i w = _mm512_load_si512(weight + i * kPanelStepBytes + half * 64);
      const __m512i first = _mm512_and_si512(w, low), second = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
#pragma GCC unroll 14
      for (int r = 0; r < R; r++) add_products(&acc[r][half], first, &x[i * R + r].part[0]);
#pragma GCC unroll 14
      for (int r = 0; r < R; r++) add_products(&acc[r][half], second, &x[i * R + r].part[1]);
    }
  }
  ahead->fetch_factors();
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    const __m256i packed = _mm256_load_si256(reinterpret_cast<const __m256i*>(factors) + half);
    const __m512 factor = _mm512_cvtepi32_ps(_mm512_srli_epi32(_mm512_cvtepu16_epi32(packed), 4));
#pragma GCC unroll 14
    for (int r = 0; r < R; r++) {
      float* sum = out + r * kPanelLanes + half * 16;
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][half]), factor);
      const __m512 part = _mm512_mul_ps(scaled, _mm512_set1_ps(scales[r]));
      _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), part));
    }
  }
}

template <int R>
static void uint4_tile(const char* weight, const Uint4Input* x, const GroupScales& groups, int64_t steps, float* out,
                       Ahead ahead) {
  const float* scales = groups.scales;
  const int32_t* corrections = groups.corrections;
  for (int i = 0; i < R * 2; i++) _mm512_store_ps(out + 16 * i, _mm512_setzero_ps());
  for (int64_t i = 0; i < steps; i += kUint4Steps, scales += R, corrections += R) {
    uint4_group<R>(weight, x + i * R, scales, corrections, out, &ahead);
    weight += kUint4GroupBytes;
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
