// Arithmetic on one row (or one head of it), and rows shared out among threads.
//
// The order of every sum depends on the size alone.
#pragma once

#include <cmath>

#include "vec.h"

namespace octavo {

// Rows are shared only if all of them take some microseconds; below, waking a thread costs more than it saves.
constexpr int64_t kWorthSharing = 16384;  // about a cycle each
constexpr int64_t kTaskCost = 8192;

// body(row) for each row; `row_cost` in cycles. Also a single task goes through the pool: it sets the rounding mode.
template <typename Body>
static inline void for_rows(int64_t num_rows, int64_t row_cost, const Body& body) {
  const bool is_shared = num_rows * row_cost >= kWorthSharing && num_threads() > 1;
  const int64_t rows_per_task = is_shared ? kTaskCost / row_cost + 1 : num_rows;
  if (num_rows == 0) return;
  parallel_for((num_rows + rows_per_task - 1) / rows_per_task, [&](int64_t task, int) {
    const int64_t end = (task + 1) * rows_per_task < num_rows ? (task + 1) * rows_per_task : num_rows;
    for (int64_t row = task * rows_per_task; row < end; row++) body(row);
  });
}

// body(index, count): sixteen lanes at a time, then the rest.
template <typename Body>
static inline void for_lanes(int64_t size, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, kLanes);
  if (i < size) body(i, static_cast<int>(size - i));
}

static inline Vec load_lanes(const float* p, int count) { return count == kLanes ? load(p) : load_part(p, count); }
static inline void store_lanes(float* p, Vec v, int count) {
  if (count == kLanes) {
    store(p, v);
  } else {
    store_part(p, v, count);
  }
}
static inline Vec load_lanes(const uint16_t* p, int count) {
  if (count == kLanes) return load_bf16(p);
  uint16_t part[kLanes] = {};
  std::memcpy(part, p, count * sizeof(uint16_t));
  return load_bf16(part);
}
static inline void store_lanes(uint16_t* p, Vec v, int count) {
  if (count == kLanes) return store_bf16(p, v);
  uint16_t part[kLanes];
  store_bf16(part, v);
  std::memcpy(p, part, count * sizeof(uint16_t));
}

// 1 / sqrt(mean(x^2) + eps): four sums of sixteen lanes, every fourth vector each, then a tree.
static inline float inverse_rms(const float* x, int64_t size, float eps) {
  Vec sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    for (int part = 0; part < 4; part++) {
      const Vec v = load(x + i + part * kLanes);
      sums[part] += v * v;
    }
  }
  for (int part = 0; i < size; i += kLanes, part++) {
    const Vec v = load_lanes(x + i, size - i < kLanes ? static_cast<int>(size - i) : kLanes);
    sums[part] += v * v;
  }
  const float sum = tree_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return 1.0f / std::sqrt(sum / static_cast<float>(size) + eps);
}

template <typename Out>
static inline void norm_row(const float* x, const float* weight, int64_t size, float eps, Out* out) {
  const Vec scale = splat(inverse_rms(x, size, eps));
  for_lanes(size, [&](int64_t i, int count) {
    store_lanes(out + i, load_lanes(x + i, count) * scale * load_lanes(weight + i, count), count);
  });
}

// The half-split rotation of one head; `turn` has half_size cosines, then as many sines. `out` may be x.
template <typename Out>
static inline void rotate_head(const float* x, const float* turn, int64_t half_size, int64_t head_size, Out* out) {
  for_lanes(half_size, [&](int64_t i, int count) {
    const Vec first = load_lanes(x + i, count), second = load_lanes(x + half_size + i, count);
    const Vec cosine = load_lanes(turn + i, count), sine = load_lanes(turn + half_size + i, count);
    store_lanes(out + i, first * cosine - second * sine, count);
    store_lanes(out + half_size + i, second * cosine + first * sine, count);
  });
  for_lanes(head_size - 2 * half_size, [&](int64_t i, int count) {
    store_lanes(out + 2 * half_size + i, load_lanes(x + 2 * half_size + i, count), count);
  });
}

}  // namespace octavo
