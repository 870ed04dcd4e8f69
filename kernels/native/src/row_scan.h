// One look over a row: is it finite, what is the largest value, and what the largest of each block of sixty-four.
// The block maxima let everything after it skip blocks in which nothing matters.
#pragma once

#include "lanes.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kBlock = 64;
constexpr int kVectors = static_cast<int>(kBlock) / kWidth;  // in a block

static inline int64_t num_blocks(int64_t size) { return (size + kBlock - 1) / kBlock; }

// Room for `size` values, rounded up to whole blocks and one vector more, in units of floats.
static inline int64_t padded(int64_t size) { return num_blocks(size) * kBlock + kWidth; }

struct RowScan {
  float largest;  // -inf if there is nothing larger; NaN does not count
  bool is_finite;  // no NaN and no +inf
};

// Calls look(block, vector number in the block, values) for all of x; the last lanes beyond `size` are -inf.
template <typename Look>
static inline void for_each_vector(const float* x, int64_t size, const Look& look) {
  const int64_t whole = size / kBlock;
  for (int64_t block = 0; block < whole; block++)
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; i++) look(block, i, load_vector<Lanes>(x + block * kBlock + i * kWidth));
  if (whole * kBlock == size) return;
  for (int i = 0; i < kVectors; i++) look(whole, i, load_at(x, whole * kBlock + i * kWidth, size));
}

// Writes each(values) to `out` (unless null) and its block maxima to `block_max`; looks for NaN and +inf in x itself.
template <typename Each>
static inline RowScan scan(const float* x, int64_t size, float* out, float* block_max, const Each& each) {
  Mask broken = 0;
  Lanes largest = all(-INFINITY), in_block = largest;
  for_each_vector(x, size, [&](int64_t block, int i, Lanes values) {
    broken |= less(values, all(INFINITY)) ^ kAllLanes;
    const Lanes result = each(values);
    if (out != nullptr) store_vector(out + block * kBlock + i * kWidth, result);
    in_block = larger(result, i == 0 ? all(-INFINITY) : in_block);
    if (i == kVectors - 1) {
      block_max[block] = largest_lane(in_block);
      largest = larger(in_block, largest);
    }
  });
  return RowScan{largest_lane(largest), broken == 0};
}

static inline RowScan scan(const float* x, int64_t size, float* block_max) {
  return scan(x, size, nullptr, block_max, [](Lanes values) { return values; });
}

// No NaN and no +inf.
static inline bool is_finite(const float* x, int64_t size) {
  Mask broken = 0;
  for_each_vector(x, size, [&](int64_t, int, Lanes values) { broken |= less(values, all(INFINITY)) ^ kAllLanes; });
  return broken == 0;
}

// The lowest index of `value`, which is the largest of x and a block's maximum; -1 if there is none.
static inline int64_t find_first(const float* x, int64_t size, const float* block_max, float value) {
  for (int64_t block = 0; block < num_blocks(size); block++) {
    if (block_max[block] != value) continue;
    for (int64_t i = block * kBlock; i < size; i++)
      if (x[i] == value) return i;
  }
  return -1;
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
