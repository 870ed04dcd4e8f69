// Log-softmax of one row of raw logits, a rank, and the most likely ids, without sorting the row.
#pragma once

#include "sampling_args.h"
#include "threshold.h"

namespace octavo {
namespace OCTAVO_ISA {

// Floats of scratch: block maxima and two lists.
static inline int64_t logprobs_scratch(int64_t size) { return padded(num_blocks(size)) + 2 * padded(size); }

// The sum of exp(x - largest) in a fixed tree: the upper half is added to the lower until one is left (of an odd
// number the middle one waits). The order depends on the size alone.
static inline float sum_of_weights(const float* x, int64_t size, float largest, float* sums) {
  const Lanes offset = all(largest);
  int64_t half = (size + 1) / 2;
  for (int64_t i = 0; i < half; i += kWidth) {
    // Where the halves meet, the middle one is added to nothing: exp(-inf - offset) is 0.
    const Lanes lower = exp_nonpositive(load_at(x, i, half) - offset);
    store_vector(sums + i, lower + exp_nonpositive(load_at(x, half + i, size) - offset));
  }
  while (half > 1) {
    const int64_t count = half;
    half = (count + 1) / 2;
    int64_t i = 0;
    for (; i + kWidth <= count - half; i += kWidth)
      store_vector(sums + i, load_vector<Lanes>(sums + i) + load_vector<Lanes>(sums + half + i));
    for (; i < count - half; i++) sums[i] += sums[half + i];
  }
  return sums[0];
}

// 1 + the number of values larger than `value`.
static inline int64_t rank_of(const float* x, int64_t size, const float* block_max, float value) {
  int64_t rank = 1;
  for (int64_t block = 0; block < num_blocks(size); block++) {
    if (!(block_max[block] > value)) continue;
    for (int64_t i = block * kBlock; i < (block + 1) * kBlock && i < size; i += kWidth) {
      const Lanes values = load_at(x, i, size);
      rank += __builtin_popcount(less(all(value), values));
    }
  }
  return rank;
}

struct Candidate {
  float logit;
  int32_t id;
  bool is_before(const Candidate& other) const {
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

// In place: a heap whose top is the last of all, taken away one by one to the end.
static inline void sort_candidates(Candidate* list, int64_t count) {
  const auto sink = [&](int64_t place, int64_t end) {
    const Candidate moved = list[place];
    for (int64_t child; (child = 2 * place + 1) < end; place = child) {
      if (child + 1 < end && list[child].is_before(list[child + 1])) child++;
      if (!moved.is_before(list[child])) break;
      list[place] = list[child];
    }
    list[place] = moved;
  };
  for (int64_t place = count / 2 - 1; place >= 0; place--) sink(place, count);
  for (int64_t end = count - 1; end > 0; end--) {
    const Candidate top = list[0];
    list[0] = list[end], list[end] = top;
    sink(0, end);
  }
}

// The ids of the `count` largest values, largest first, lower id first on ties; NaN counts as -inf.
// `scratch` has room for 2 padded(size).
static inline void most_likely(const float* x, int64_t size, const float* block_max, int64_t count, float* scratch,
                               int64_t* ids) {
  float* const spare = scratch + padded(size);
  const float threshold = top_k_threshold(x, size, block_max, count, scratch, spare);
  // All that are larger, then as many equal ones, lowest ids first, as there is room for; -inf at the very end.
  Candidate* const list = reinterpret_cast<Candidate*>(scratch);
  int64_t found = 0;
  const auto take = [&](float bound, const auto& chooses) {
    for (int64_t block = 0; block < num_blocks(size) && found < count; block++) {
      if (!(block_max[block] >= bound)) continue;
      for (int64_t i = block * kBlock; i < (block + 1) * kBlock && i < size; i += kWidth) {
        const Lanes values = load_at(x, i, size);
        Mask mask = chooses(values) & first_lanes(size - i);
        for (; mask && found < count; mask &= mask - 1) {
          const int lane = __builtin_ctz(mask);
          const float logit = values[lane];
          list[found++] = Candidate{logit == logit ? logit : -INFINITY, static_cast<int32_t>(i + lane)};
        }
      }
    }
  };
  take(threshold, [&](Lanes values) { return less(all(threshold), values); });
  take(threshold, [&](Lanes values) { return equal(values, all(threshold)); });
  take(-INFINITY, [&](Lanes values) { return at_least(values, all(-__FLT_MAX__)) ^ kAllLanes; });
  sort_candidates(list, count);
  for (int64_t i = 0; i < count; i++) ids[i] = list[i].id;
}

struct TopLogprobs {
  float* logprob;
  int64_t* rank;
  int64_t* ids;
  float* logprobs;
};

// A row with NaN or +inf, or with -inf alone, gets NaN logprobs.
static inline void logprobs_row(const float* x, int64_t size, int64_t id, int64_t num_top, float* scratch,
                                const TopLogprobs& out) {
  float* const block_max = scratch;
  float* const lists = scratch + padded(num_blocks(size));
  const RowScan row = scan(x, size, block_max);
  const bool is_broken = !row.is_finite || row.largest == -INFINITY;
  const float log_total = is_broken ? NAN : log(all(sum_of_weights(x, size, row.largest, lists)))[0];
  *out.logprob = x[id] - row.largest - log_total;
  *out.rank = rank_of(x, size, block_max, x[id]);
  if (num_top == 0) return;
  most_likely(x, size, block_max, num_top, lists, out.ids);
  for (int64_t i = 0; i < num_top; i++) out.logprobs[i] = x[out.ids[i]] - row.largest - log_total;
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
