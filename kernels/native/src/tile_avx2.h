// Register tiles of R rows by one panel (32 outputs, four vectors) with AVX2 and FMA.
//
// Sixteen registers hold three rows of a whole panel, or six of half of one. A broadcast costs as much as a load, so
// wide tiles are narrow in rows only where there are few rows: more of them go over the panel's halves in turn, a
// stretch of steps at a time that stays in the nearest cache.
#pragma once

#include <immintrin.h>

#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int kMaxTileRows = 6;
constexpr int64_t kStretch = 64;  // steps: 8 KiB of weights

// Vectors of a panel that R rows take at a time.
template <int R>
constexpr int kVectors = R <= 3 ? 4 : 2;

using FloatInput = float;
struct BFloat16Input {
  float even, odd;
};
struct Int8Input {
  int32_t even, odd;  // two 16-bit integers each: the first and third, the second and fourth
};
struct Uint4Input {
  int32_t part[2];  // four 8-bit integers each
};

static inline BFloat16Input bf16_input(uint32_t pair) {
  return {from_bf16(static_cast<uint16_t>(pair)), from_bf16(static_cast<uint16_t>(pair >> 16))};
}
static inline Int8Input int8_input(uint32_t four) {
  const auto byte = [four](int i) { return static_cast<uint32_t>(static_cast<int8_t>(four >> (8 * i))); };
  return {static_cast<int32_t>((byte(0) & 0xFFFF) | byte(2) << 16),
          static_cast<int32_t>((byte(1) & 0xFFFF) | byte(3) << 16)};
}

static inline Uint4Input uint4_input(uint32_t first, uint32_t second) {
  return {{static_cast<int32_t>(first), static_cast<int32_t>(second)}};
}

// sum += a * b. Written out because GCC else keeps the sum in another operand's register and spills to make room.
static inline __attribute__((always_inline)) void multiply_add(__m256* sum, __m256 a, __m256 b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}

// Four vectors of sums a row, of which a part is in registers at a time.
template <int R>
struct Sums {
  static constexpr int V = kVectors<R>;
  __m256 v[R][V];

  inline __attribute__((always_inline)) void load(const float* out) {
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < V; c++) v[r][c] = _mm256_load_ps(out + r * kPanelLanes + 8 * c);
  }
  inline __attribute__((always_inline)) void store(float* out) const {
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
      for (int c = 0; c < V; c++) _mm256_store_ps(out + r * kPanelLanes + 8 * c, v[r][c]);
  }
};

static inline void clear(float* out, int rows) {
  for (int i = 0; i < rows * kPanelLanes; i += 8) _mm256_store_ps(out + i, _mm256_setzero_ps());
}

struct FloatProducts {
  using Input = FloatInput;

  template <int R>
  static inline __attribute__((always_inline)) void add(Sums<R>& sums, const char* weight, const Input* x) {
    constexpr int V = kVectors<R>;
    const float* w = reinterpret_cast<const float*>(weight);
    __m256 part[V];
#pragma GCC unroll 4
    for (int c = 0; c < V; c++) part[c] = _mm256_load_ps(w + 8 * c);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      const __m256 b = _mm256_broadcast_ss(x + r);
#pragma GCC unroll 4
      for (int c = 0; c < V; c++) multiply_add(&sums.v[r][c], part[c], b);
    }
  }
};

struct BFloat16Products {
  using Input = BFloat16Input;

  template <int R>
  static inline __attribute__((always_inline)) void add(Sums<R>& sums, const char* weight, const Input* x) {
    constexpr int V = kVectors<R>;
    const __m256i* w = reinterpret_cast<const __m256i*>(weight);
    __m256 part[V];
#pragma GCC unroll 4
    for (int c = 0; c < V; c++) part[c] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_load_si256(w + c), 16));
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      const __m256 b = _mm256_broadcast_ss(&x[r].even);
#pragma GCC unroll 4
      for (int c = 0; c < V; c++) multiply_add(&sums.v[r][c], part[c], b);
    }
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
#pragma GCC unroll 4
    for (int c = 0; c < V; c++) part[c] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_load_si256(w + c), upper));
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      const __m256 b = _mm256_broadcast_ss(&x[r].odd);
#pragma GCC unroll 4
      for (int c = 0; c < V; c++) multiply_add(&sums.v[r][c], part[c], b);
    }
  }
};

template <typename Products, int R>
static inline __attribute__((always_inline)) void add_steps(const char* weight, const typename Products::Input* x,
                                                            int64_t steps, float* out, Ahead ahead) {
  Sums<R> sums;
  sums.load(out);
  for (int64_t i = 0; i < steps; i++) {
    ahead.fetch<R>();
    Products::template add<R>(sums, weight, x);
    weight += kPanelStepBytes;
    x += R;
  }
  sums.store(out);
}

template <typename Products, int R>
static inline void float_tile_of(const char* weight, const typename Products::Input* x, int64_t steps, float* out,
                                 Ahead ahead) {
  constexpr int V = kVectors<R>;
  clear(out, R);
  for (int64_t start = 0; start < steps; start += kStretch) {
    const int64_t count = steps - start < kStretch ? steps - start : kStretch;
    for (int c = 0; c < 4; c += V) {
      const Ahead part = {ahead.next + start * ahead.stride, c == 0 ? ahead.stride : 0};
      add_steps<Products, R>(weight + start * kPanelStepBytes + c * 32, x + start * R, count, out + 8 * c, part);
    }
  }
}

template <int R>
static void float_tile(const char* weight, const FloatInput* x, int64_t steps, float* out, Ahead ahead) {
  float_tile_of<FloatProducts, R>(weight, x, steps, out, ahead);
}

template <int R>
static void bf16_tile(const char* weight, const BFloat16Input* x, int64_t steps, float* out, Ahead ahead) {
  float_tile_of<BFloat16Products, R>(weight, x, steps, out, ahead);
}

// The products of one half of the inputs, with bytes that became 16 bits: pmaddubsw would saturate.
template <int R>
static inline __attribute__((always_inline)) void add_products(__m256i (&acc)[R][kVectors<R>],
                                                               const __m256i (&part)[kVectors<R>], int r, int32_t x) {
  const __m256i b = _mm256_set1_epi32(x);
#pragma GCC unroll 4
  for (int c = 0; c < kVectors<R>; c++) {
    const __m256i products = _mm256_madd_epi16(part[c], b);
    asm("vpaddd %1, %0, %0" : "+x"(acc[r][c]) : "x"(products));
  }
}

// One group: exact integer sums, scaled and added to the float32 sums in `out`.
template <int R>
static inline __attribute__((always_inline)) void int8_group(const char* weight, const Int8Input* x, int64_t steps,
                                                             const float* scales, const int32_t* corrections,
                                                             float* out, Ahead ahead) {
  constexpr int V = kVectors<R>;
  const __m256i low = _mm256_set1_epi16(0x00FF);
  __m256i acc[R][V];
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < V; c++) acc[r][c] = _mm256_set1_epi32(corrections[r]);
  for (int64_t i = 0; i < steps; i++) {
    ahead.fetch<R>();
    const __m256i* w = reinterpret_cast<const __m256i*>(weight);
    __m256i part[V];
#pragma GCC unroll 4
    for (int c = 0; c < V; c++) part[c] = _mm256_and_si256(_mm256_load_si256(w + c), low);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) add_products<R>(acc, part, r, x[r].even);
#pragma GCC unroll 4
    for (int c = 0; c < V; c++) part[c] = _mm256_srli_epi16(_mm256_load_si256(w + c), 8);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) add_products<R>(acc, part, r, x[r].odd);
    weight += kPanelStepBytes;
    x += R;
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++) {
    const __m256 scale = _mm256_broadcast_ss(scales + r);
    float* sum = out + r * kPanelLanes;
#pragma GCC unroll 4
    for (int c = 0; c < V; c++) {
      const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][c]), scale);
      _mm256_store_ps(sum + 8 * c, _mm256_add_ps(_mm256_load_ps(sum + 8 * c), scaled));
    }
  }
}

template <int R>
static void int8_tile(const char* weight, const Int8Input* x, const GroupScales& groups, int64_t steps, float* out,
                      Ahead ahead) {
  constexpr int V = kVectors<R>;
  const float* scales = groups.scales;
  const int32_t* corrections = groups.corrections;
  clear(out, R);
  for (int64_t start = 0; start < steps; start += groups.steps, scales += R, corrections += R) {
    const int64_t count = steps - start < groups.steps ? steps - start : groups.steps;
    for (int c = 0; c < 4; c += V) {
      const Ahead part = {ahead.next + start * ahead.stride, c == 0 ? ahead.stride : 0};
      int8_group<R>(weight + start * kPanelStepBytes + c * 32, x + start * R, count, scales, corrections, out + 8 * c,
                    part);
    }
  }
}

// sum += the products of unsigned and signed bytes, in pairs. With weights of four bits a group's sums, of at most
// 16 * 15 * 127, fit in 16 bits: here pmaddubsw does not saturate.
static inline __attribute__((always_inline)) void add_pairs(__m256i* sum, __m256i w, int32_t x) {
  const __m256i products = _mm256_maddubs_epi16(w, _mm256_set1_epi32(x));
  asm("vpaddw %1, %0, %0" : "+x"(*sum) : "x"(products));
}

// `first`: of the part's lanes, of which there are 8 a vector.
template <int R>
static inline __attribute__((always_inline)) void uint4_group(const char* weight, int first, const Uint4Input* x,
                                                              const float* scales, const int32_t* corrections,
                                                              float* out, Ahead ahead) {
  constexpr int V = kVectors<R>;
  const __m256i low = _mm256_set1_epi8(0x0F);
  __m256i acc[R][V];
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int c = 0; c < V; c++) acc[r][c] = _mm256_setzero_si256();
  for (int i = 0; i < kUint4Steps; i++) {
    ahead.fetch<R>();
    const __m256i* w = reinterpret_cast<const __m256i*>(weight + i * kPanelStepBytes + first * 4);
#pragma GCC unroll 4
    for (int c = 0; c < V; c++) {
      const __m256i part[2] = {_mm256_and_si256(_mm256_load_si256(w + c), low),
                               _mm256_and_si256(_mm256_srli_epi16(_mm256_load_si256(w + c), 4), low)};
#pragma GCC unroll 6
      for (int r = 0; r < R; r++) {
        add_pairs(&acc[r][c], part[0], x[i * R + r].part[0]);
        add_pairs(&acc[r][c], part[1], x[i * R + r].part[1]);
      }
    }
  }
  const char* factors = weight + kUint4Steps * kPanelStepBytes + first * 2;
#pragma GCC unroll 4
  for (int c = 0; c < V; c++) {
    const __m256i packed = _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(factors) + c));
    const __m256i zeros = _mm256_and_si256(packed, _mm256_set1_epi32(0x0F));
    const __m256 factor = _mm256_cvtepi32_ps(_mm256_srli_epi32(packed, 4));
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      const __m256i correction = _mm256_madd_epi16(zeros, _mm256_set1_epi32(corrections[r]));
      const __m256i total = _mm256_add_epi32(_mm256_madd_epi16(acc[r][c], _mm256_set1_epi16(1)), correction);
      const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(total), factor);
      float* sum = out + r * kPanelLanes + first + 8 * c;
      const __m256 part = _mm256_mul_ps(scaled, _mm256_broadcast_ss(scales + r));
      _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), part));
    }
  }
}

template <int R>
static void uint4_tile(const char* weight, const Uint4Input* x, const GroupScales& groups, int64_t steps, float* out,
                       Ahead ahead) {
  constexpr int V = kVectors<R>;
  const float* scales = groups.scales;
  const int32_t* corrections = groups.corrections;
  clear(out, R);
  for (int64_t i = 0; i < steps; i += kUint4Steps, scales += R, corrections += R) {
    for (int c = 0; c < 4; c += V) {
      const Ahead part = {ahead.next, c == 0 ? ahead.stride : 0};
      uint4_group<R>(weight, c * 8, x + i * R, scales, corrections, out, part);
    }
    ahead.next += ahead.stride * kUint4Steps;
    ahead.fetch_factors();
    weight += kUint4GroupBytes;
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
