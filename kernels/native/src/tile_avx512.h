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

static inline BFloat16Input bf16_input(uint32_t pair) { return pair; }
static inline Int8Input int8_input(uint32_t four) { return four; }

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

}  // namespace OCTAVO_ISA
}  // namespace octavo
