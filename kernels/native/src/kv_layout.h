// What a KV block's bytes mean: shared by what writes them (layers.cpp) and what reads them (attention.cpp).
//
// A block holds its KV heads one after the other, a head its tokens in units of 16. A unit is K, V and, for int8, the
// scales: float32 [16] of K, then of V. With two 16-bit or 8-bit numbers side by side, as dot products want them:
//   float32:         K [D][16 tokens]         V [16 tokens][D]
//   bfloat16, int8:  K [D / 2][16 tokens][2]  V [8 pairs of tokens][D][2]
#pragma once

#include "common.h"

namespace octavo {

constexpr int kUnit = 16;  // tokens

struct KVLayout {
  int64_t units_per_block;
  int64_t part_bytes;  // K or V of a unit
  int64_t unit_bytes;
  int64_t head_bytes;
  int64_t block_bytes;
};

static inline KVLayout kv_layout(int64_t dtype, int64_t block_size, int64_t num_kv_heads, int64_t head_size) {
  const int64_t item_bytes = dtype == kFloat32 ? 4 : dtype == kBFloat16 ? 2 : 1;
  const int64_t scale_bytes = dtype == kInt8 ? 2 * kUnit * static_cast<int64_t>(sizeof(float)) : 0;
  KVLayout layout;
  layout.units_per_block = block_size / kUnit;
  layout.part_bytes = kUnit * head_size * item_bytes;
  layout.unit_bytes = 2 * layout.part_bytes + scale_bytes;
  layout.head_bytes = layout.units_per_block * layout.unit_bytes;
  layout.block_bytes = num_kv_heads * layout.head_bytes;
  return layout;
}

// Unit `unit` of a sequence, counted from its first token, in the block that its table names.
static inline char* find_unit(const KVLayout& layout, void* cache, const int32_t* table, int64_t unit, int64_t head) {
  const int64_t block = table[unit / layout.units_per_block];
  return static_cast<char*>(cache) + block * layout.block_bytes + head * layout.head_bytes +
         unit % layout.units_per_block * layout.unit_bytes;
}

}  // namespace octavo
