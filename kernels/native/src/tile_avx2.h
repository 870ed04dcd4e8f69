// Register tiles of R rows by one panel (32 outputs, four vectors) with AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int kMaxTileRows = 3;

using FloatInput = float;
struct BFloat16Input {
  float even, odd;
};
struct Int8Input {
  int32_t even, odd;  // two 16-bit integers each: the first and third, the second and fourth
};

static inline BFloat16Input bf16_input(uint32_t pair) {
  return {from_bf16(static_cast<uint16_t>(pair)), from_bf16(static_cast<uint16_t>(pair >> 16))};
}
static inline Int8Input int8_input(uint32_t four) {
  const auto byte = [four](int i) { return static_cast<uint32_t>(static_cast<int8_t>(four >> (8 * i))); };
  return {static_cast<int32_t>((byte(0) & 0xFFFF) | byte(2) << 16),
          static_cast<int32_t>((byte(1) & 0xFFFF) | byte(3) << 16)};
}

template <int R>
static inline void store_tile(float* out, const __m256 (&acc)[R][4]) {
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 4; c++) _mm256_store_ps(out + r * kPanelLanes + 8 * c, acc[r][c]);
}

template <int R>
static void float_tile(const char* weight, const FloatInput* x, int64_t steps, float* out, Ahead ahead) {
  __m256 acc[R][4];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 4; c++) acc[r][c] = _mm256_setzero_ps();
  for (int64_t i = 0; i < steps; i++) {
    ahead.fetch<R>();
    const float* w = reinterpret_cast<const float*>(weight);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      const __m256 part = _mm256_load_ps(w + 8 * c);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) acc[r][c] = _mm256_fmadd_ps(part, _mm256_broadcast_ss(x + r), acc[r][c]);
    }
    weight += kPanelStepBytes;
    x += R;
  }
  store_tile<R>(out, acc);
}

template <int R>
static void bf16_tile(const char* weight, const BFloat16Input* x, int64_t steps, float* out, Ahead ahead) {
  __m256 acc[R][4];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 4; c++) acc[r][c] = _mm256_setzero_ps();
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  for (int64_t i = 0; i < steps; i++) {
    ahead.fetch<R>();
    const __m256i* w = reinterpret_cast<const __m256i*>(weight);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
      const __m256i pairs = _mm256_load_si256(w + c);
      const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
      const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) {
        acc[r][c] = _mm256_fmadd_ps(even, _mm256_broadcast_ss(&x[r].even), acc[r][c]);
        acc[r][c] = _mm256_fmadd_ps(odd, _mm256_broadcast_ss(&x[r].odd), acc[r][c]);
      }
    }
    weight += kPanelStepBytes;
    x += R;
  }
  store_tile<R>(out, acc);
}

// Bytes become 16 bits before they are multiplied: pmaddubsw would saturate.
template <int R>
static void int8_tile(const char* weight, const Int8Input* x, const GroupScales& groups, int64_t steps, float* out,
                      Ahead ahead) {
  __m256 sum[R][4];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < 4; c++) sum[r][c] = _mm256_setzero_ps();
  const float* scales = groups.scales;
  const int32_t* corrections = groups.corrections;
  const __m256i low = _mm256_set1_epi16(0x00FF);
  for (int64_t start = 0; start < steps; start += groups.steps) {
    const int64_t end = start + groups.steps < steps ? start + groups.steps : steps;
    __m256i acc[R][4];
    for (int r = 0; r < R; r++)
      for (int c = 0; c < 4; c++) acc[r][c] = _mm256_set1_epi32(corrections[r]);
    for (int64_t i = start; i < end; i++) {
      ahead.fetch<R>();
      const __m256i* w = reinterpret_cast<const __m256i*>(weight);
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) {
        const __m256i bytes = _mm256_load_si256(w + c);
        const __m256i even = _mm256_and_si256(bytes, low), odd = _mm256_srli_epi16(bytes, 8);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          acc[r][c] = _mm256_add_epi32(acc[r][c], _mm256_madd_epi16(even, _mm256_set1_epi32(x[r].even)));
          acc[r][c] = _mm256_add_epi32(acc[r][c], _mm256_madd_epi16(odd, _mm256_set1_epi32(x[r].odd)));
        }
      }
      weight += kPanelStepBytes;
      x += R;
    }
    for (int r = 0; r < R; r++) {
      const __m256 scale = _mm256_broadcast_ss(scales + r);
      for (int c = 0; c < 4; c++)
        sum[r][c] = _mm256_add_ps(sum[r][c], _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][c]), scale));
    }
    scales += R;
    corrections += R;
  }
  store_tile<R>(out, sum);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
