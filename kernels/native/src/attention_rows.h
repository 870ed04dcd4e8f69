// The online softmax of a few rows over one KV tile, and the merging of segments.
//
// Scores are measured in powers of two: q·k times scale / ln 2.
#pragma once

#include "attention_tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

// Per row: the largest score, the sum of weights (sixteen lanes, token i in lane i % 16) and the weighted values.
struct RowStates {
  float* largest;
  float* totals;
  float* weighted;
  int64_t row_size;

  static int64_t num_floats(int64_t num_rows, int64_t row_size) { return num_rows * (16 + 16 + row_size); }

  RowStates(float* memory, int64_t num_rows, int64_t row_size)
      : largest(memory), totals(memory + 16 * num_rows), weighted(totals + 16 * num_rows), row_size(row_size) {}

  void clear(int64_t num_rows) const {
    for (int64_t r = 0; r < num_rows; r++) largest[r] = -INFINITY;
    std::memset(totals, 0, num_rows * 16 * sizeof(float));
    std::memset(weighted, 0, num_rows * row_size * sizeof(float));
  }
};

// What scores are measured from: the largest, or 0 for a row that has seen nothing (-inf - -inf is NaN).
static inline float finite_base(float largest) { return largest == -INFINITY ? 0.0f : largest; }

// Adds a later segment to `states`; `later` is overwritten.
static void merge_rows(const RowStates& states, const RowStates& later, int64_t num_rows) {
  for (int64_t r = 0; r < num_rows; r++) {
    const float largest = states.largest[r] > later.largest[r] ? states.largest[r] : later.largest[r];
    const float base = finite_base(largest);
    const float decay = exp2_of(all(states.largest[r] - base))[0];
    const float later_decay = exp2_of(all(later.largest[r] - base))[0];
    states.largest[r] = largest;
    const auto add = [&](float* x, const float* y, int64_t size) {
      for (int64_t i = 0; i < size; i += kWidth)
        store_f(x + i, load_f(x + i) * all(decay) + load_f(y + i) * all(later_decay));
    };
    add(states.totals + 16 * r, later.totals + 16 * r, 16);
    add(states.weighted + states.row_size * r, later.weighted + states.row_size * r, states.row_size);
  }
}

// The tokens of a KV tile that a row sees: first ... end - 1, within 0 ... 64; none if first >= end.
struct Visible {
  int first, end;
};

constexpr int kMostRows = 6;  // of any format

struct SoftmaxScratch {
  alignas(64) float scores[kMostRows * kTile];
  alignas(64) float weights[kMostRows * kTile];
  alignas(64) float base[16];
  alignas(64) float decay[16];
};

// The scale of K (part 0) or V (part 1) of the int8 tokens whose unit this is.
static inline F load_scales(const char* unit, int64_t part_bytes, int part, int lane) {
  return load_f(unit + 2 * part_bytes + (part * kUnit + lane) * static_cast<int64_t>(sizeof(float)));
}

// Scores, scaled, become cap tanh(score / cap).
struct SoftCap {
  float cap;     // 0: they do not
  float factor;  // scale / cap
};

// Scores of kNumUnits units from `first_unit` on become weights; the rows' largest scores and totals move on.
template <typename Weights, bool kHasScales, int kNumUnits>
OCTAVO_ALONE static void weigh_rows(SoftmaxScratch& scratch, int num_rows, const Visible* visible, int first_unit,
                                    const char* const* units, int64_t part_bytes, float scale, SoftCap soft_cap,
                                    float* largest, float* totals) {
  constexpr int kVectors = kNumUnits * kParts;
  const int first_token = first_unit * kUnit;
  for (int r = 0; r < num_rows; r++) {
    const int first = visible[r].first - first_token, end = visible[r].end - first_token;
    const bool is_masked = first > 0 || end < kNumUnits * kUnit;
    float* row = scratch.scores + r * kTile + first_token;
    F most = all(-INFINITY);
    for (int v = 0; v < kVectors; v++) {
      const int i = v * kWidth;
      F score = load_f(row + i);
      if (kHasScales) score = score * load_scales(units[first_unit + i / kUnit], part_bytes, 0, i % kUnit);
      if (soft_cap.cap > 0.0f) score = tanh_of(score * all(soft_cap.factor)) * all(soft_cap.cap);
      if (is_masked) score = within(score, first - i, end - i, all(-INFINITY));
      if (kHasScales || is_masked || soft_cap.cap > 0.0f) store_f(row + i, score);
      most = larger(score, most);
    }
    const float score = largest_lane(most) * scale;
    const float before = largest[r];
    largest[r] = score > before ? score : before;
    scratch.base[r] = finite_base(largest[r]);
    scratch.decay[r] = before - scratch.base[r];
  }
  for (int r = 0; r < num_rows; r += kWidth) store_f(scratch.decay + r, exp2_of(load_f(scratch.decay + r)));
  for (int r = 0; r < num_rows; r++) {
    const int first = visible[r].first - first_token, end = visible[r].end - first_token;
    const F base = all(-scratch.base[r]), factor = all(scale);
    float* weights = scratch.weights + r * kTile;
    F sums[kParts];
    for (int part = 0; part < kParts; part++) sums[part] = all(0.0f);
    for (int v = 0; v < kVectors; v++) {
      const int i = v * kWidth;
      F weight = exp2_of(multiply_add(load_f(scratch.scores + r * kTile + first_token + i), factor, base));
      sums[v % kParts] = sums[v % kParts] + weight;
      if (kHasScales) {
        weight = weight * load_scales(units[first_unit + i / kUnit], part_bytes, 1, i % kUnit);
        weight = within(weight, first - i, end - i, all(0.0f));
      }
      Weights::put(weights, first_token + i, weight);
    }
    for (int part = 0; part < kParts; part++) {
      float* total = totals + 16 * r + part * kWidth;
      store_f(total, load_f(total) * all(scratch.decay[r]) + sums[part]);
    }
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
