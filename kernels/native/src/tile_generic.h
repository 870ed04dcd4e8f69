// Register tiles in vectors of four, which every machine has: multiply, then add.
#pragma once

#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

typedef float Four __attribute__((vector_size(16)));
typedef int32_t IntFour __attribute__((vector_size(16)));
typedef uint32_t UintFour __attribute__((vector_size(16)));

constexpr int kFours = kPanelLanes / 4;
#if defined(__aarch64__)
constexpr int kMaxTileRows = 2;  // 32 registers
#else
constexpr int kMaxTileRows = 1;
#endif

using FloatInput = float;
struct BFloat16Input {
  float even, odd;
};
struct Int8Input {
  int32_t part[4];
};
struct Uint4Input {
  Int8Input part[2];
};

static inline BFloat16Input bf16_input(uint32_t pair) {
  return {from_bf16(static_cast<uint16_t>(pair)), from_bf16(static_cast<uint16_t>(pair >> 16))};
}
static inline Int8Input int8_input(uint32_t four) {
  const auto byte = [four](int i) { return static_cast<int32_t>(static_cast<int8_t>(four >> (8 * i))); };
  return {{byte(0), byte(1), byte(2), byte(3)}};
}
static inline Uint4Input uint4_input(uint32_t first, uint32_t second) {
  return {{int8_input(first), int8_input(second)}};
}

template <int R>
static inline void store_tile(float* out, const Four (&acc)[R][kFours]) {
  std::memcpy(out, acc, sizeof acc);
}

template <int R>
static void float_tile(const char* weight, const FloatInput* x, int64_t steps, float* out, Ahead ahead) {
  Four acc[R][kFours] = {};
  for (int64_t i = 0; i < steps; i++) {
    ahead.fetch<R>();
    const Four* w = reinterpret_cast<const Four*>(weight);
#pragma GCC unroll 8
    for (int c = 0; c < kFours; c++)
#pragma GCC unroll 2
      for (int r = 0; r < R; r++) acc[r][c] = acc[r][c] + w[c] * x[r];
    weight += kPanelStepBytes;
    x += R;
  }
  store_tile<R>(out, acc);
}

template <int R>
static void bf16_tile(const char* weight, const BFloat16Input* x, int64_t steps, float* out, Ahead ahead) {
  Four acc[R][kFours] = {};
  for (int64_t i = 0; i < steps; i++) {
    ahead.fetch<R>();
    const UintFour* w = reinterpret_cast<const UintFour*>(weight);
#pragma GCC unroll 8
    for (int c = 0; c < kFours; c++) {
      const Four even = (Four)(w[c] << 16), odd = (Four)(w[c] & 0xFFFF0000u);
#pragma GCC unroll 2
      for (int r = 0; r < R; r++) {
        acc[r][c] = acc[r][c] + even * x[r].even;
        acc[r][c] = acc[r][c] + odd * x[r].odd;
      }
    }
    weight += kPanelStepBytes;
    x += R;
  }
  store_tile<R>(out, acc);
}

template <int R>
static void int8_tile(const char* weight, const Int8Input* x, const GroupScales& groups, int64_t steps, float* out,
                      Ahead ahead) {
  Four sum[R][kFours] = {};
  const float* scales = groups.scales;
  const int32_t* corrections = groups.corrections;
  for (int64_t start = 0; start < steps; start += groups.steps) {
    const int64_t end = start + groups.steps < steps ? start + groups.steps : steps;
    IntFour acc[R][kFours];
    for (int r = 0; r < R; r++)
      for (int c = 0; c < kFours; c++) acc[r][c] = IntFour{} + corrections[r];
    for (int64_t i = start; i < end; i++) {
      ahead.fetch<R>();
      const IntFour* w = reinterpret_cast<const IntFour*>(weight);
#pragma GCC unroll 8
      for (int c = 0; c < kFours; c++)
        for (int r = 0; r < R; r++)
          for (int part = 0; part < 4; part++) acc[r][c] += (w[c] >> (8 * part) & 0xFF) * x[r].part[part];
      weight += kPanelStepBytes;
      x += R;
    }
    for (int r = 0; r < R; r++)
      for (int c = 0; c < kFours; c++)
        sum[r][c] = sum[r][c] + __builtin_convertvector(acc[r][c], Four) * scales[r];
    scales += R;
    corrections += R;
  }
  store_tile<R>(out, sum);
}

// Four lanes' factors, and their step's products with eight inputs.
static inline IntFour load_factors(const char* factors) {
  uint16_t four[4];
  std::memcpy(four, factors, sizeof four);
  return IntFour{four[0], four[1], four[2], four[3]};
}

static inline IntFour uint4_products(IntFour w, const Uint4Input& x) {
  IntFour sum = {};
  for (int byte = 0; byte < 4; byte++)
    for (int half = 0; half < 2; half++) sum += (w >> (8 * byte + 4 * half) & 0x0F) * x.part[half].part[byte];
  return sum;
}

template <int R>
static void uint4_tile(const char* weight, const Uint4Input* x, const GroupScales& groups, int64_t steps, float* out,
                       Ahead ahead) {
  Four sum[R][kFours] = {};
  for (int64_t group = 0; group < steps / kUint4Steps; group++) {
    const char* factors = weight + kUint4Steps * kPanelStepBytes;
    IntFour acc[R][kFours];
    for (int c = 0; c < kFours; c++)
      for (int r = 0; r < R; r++) acc[r][c] = (load_factors(factors + c * 8) & 0x0F) * groups.corrections[group * R + r];
    for (int i = 0; i < kUint4Steps; i++, x += R) {
      ahead.fetch<R>();
      const IntFour* w = reinterpret_cast<const IntFour*>(weight + i * kPanelStepBytes);
#pragma GCC unroll 8
      for (int c = 0; c < kFours; c++)
        for (int r = 0; r < R; r++) acc[r][c] += uint4_products(w[c], x[r]);
    }
    ahead.fetch_factors();
    for (int c = 0; c < kFours; c++) {
      const Four factor = __builtin_convertvector(load_factors(factors + c * 8) >> 4, Four);
      for (int r = 0; r < R; r++)
        sum[r][c] = sum[r][c] + __builtin_convertvector(acc[r][c], Four) * factor * groups.scales[group * R + r];
    }
    weight += kUint4GroupBytes;
  }
  store_tile<R>(out, sum);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
