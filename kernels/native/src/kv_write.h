// Putting one token's K or V of one head into a unit of a block (see kv_layout.h).
#pragma once

#include <cmath>

#include "kv_layout.h"
#include "layers_rows.h"

namespace octavo {

// The numbers of `row` go to every `stride`-th place.
template <typename T>
static inline void scatter(const T* row, int64_t size, T* out, int64_t stride) {
  for (int64_t i = 0; i < size; i++) out[i * stride] = row[i];
}

template <typename T>
static inline void put_pairs(const T* row, int64_t size, bool is_key, int64_t token, T* part) {
  if (!is_key) return scatter(row, size, part + token / 2 * 2 * size + token % 2, 2);
  T* out = part + token * 2;
  for (int64_t i = 0; i < size; i += 2) std::memcpy(out + i * kUnit, row + i, 2 * sizeof(T));
}

static inline void put_floats(const float* row, int64_t size, bool is_key, int64_t token, float* part) {
  if (is_key) return scatter(row, size, part + token, kUnit);
  std::memcpy(part + token * size, row, size * sizeof(float));
}

// Symmetric: the largest magnitude becomes 127; rows too small to divide by become 0. A row that is not finite gets the
// scale NaN, which spoils whoever sees the token.
static inline float quantize(const float* row, int64_t size, int8_t* out) {
  float largest = 0.0f;
  bool is_finite = true;
  for (int64_t i = 0; i < size; i++) {
    const float magnitude = std::fabs(row[i]);
    largest = magnitude > largest ? magnitude : largest;
    is_finite &= magnitude < INFINITY;
  }
  const float scale = largest / 127.0f;
  if (!is_finite || scale < 1e-37f) {
    for (int64_t i = 0; i < size; i++) out[i] = 0;
    return is_finite ? 0.0f : NAN;
  }
  // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
  for (int64_t i = 0; i < size; i++) {
    float shifted = row[i] / scale + 12582912.0f;
    int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    out[i] = static_cast<int8_t>(bits);
  }
  return scale;
}

// `row` has `head_size` numbers, already rounded to the model's dtype; `scratch` room for as many float32.
static inline void put_token(const KVLayout& layout, int64_t dtype, const float* row, int64_t head_size, bool is_key,
                             int64_t token, char* unit, void* scratch) {
  char* part = unit + (is_key ? 0 : layout.part_bytes);
  if (dtype == kFloat32) return put_floats(row, head_size, is_key, token, reinterpret_cast<float*>(part));
  if (dtype == kBFloat16) {
    uint16_t* rounded = static_cast<uint16_t*>(scratch);
    for_lanes(head_size, [&](int64_t i, int count) { store_lanes(rounded + i, load_lanes(row + i, count), count); });
    return put_pairs(rounded, head_size, is_key, token, reinterpret_cast<uint16_t*>(part));
  }
  int8_t* quantized = static_cast<int8_t*>(scratch);
  float* scales = reinterpret_cast<float*>(unit + 2 * layout.part_bytes);
  scales[(is_key ? 0 : kUnit) + token] = quantize(row, head_size, quantized);
  put_pairs(quantized, head_size, is_key, token, reinterpret_cast<int8_t*>(part));
}

}  // namespace octavo
