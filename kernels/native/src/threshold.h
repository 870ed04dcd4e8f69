// Exact thresholds without sorting: the largest value such that the weights of all entries at least as large reach a
// sum. Counts make it top_k, probabilities top_p. Sums are integers, which have no order.
#pragma once

#include <initializer_list>

#include "row_scan.h"

namespace octavo {
namespace OCTAVO_ISA {

typedef float HalfLanes __attribute__((vector_size(kVectorBytes / 2)));
typedef double DoubleLanes __attribute__((vector_size(kVectorBytes)));
typedef uint64_t LongLanes __attribute__((vector_size(kVectorBytes)));

// Each entry weighs 1.
class UnitWeights {
 public:
  void add(Lanes, Mask mask) { sum_ += static_cast<uint64_t>(__builtin_popcount(mask)); }
  uint64_t sum() const { return sum_; }

 private:
  uint64_t sum_ = 0;
};

// Each entry weighs exp(x - largest), rounded to a multiple of 2^-40 and counted in those.
class ExpWeights {
 public:
  explicit ExpWeights(float largest) : largest_(all(largest)) {}

  void add(Lanes x, Mask mask) {
    const Lanes weights = choose(mask, exp_nonpositive(x - largest_), Lanes{}) * all(0x1p40f);
    HalfLanes halves[2];
    std::memcpy(halves, &weights, sizeof halves);
    sum_ += nearest(halves[0]) + nearest(halves[1]);
  }
  uint64_t sum() const {
    uint64_t total = 0;
    for (int lane = 0; lane < kWidth / 2; lane++) total += sum_[lane];
    return total;
  }

 private:
  // Adding 1.5 2^52 leaves the nearest integer, ties to even, in the low bits.
  static LongLanes nearest(HalfLanes x) {
    const DoubleLanes magic = DoubleLanes{} + 0x1.8p52;
    return (LongLanes)(__builtin_convertvector(x, DoubleLanes) + magic) - (LongLanes)magic;
  }

  Lanes largest_;
  LongLanes sum_ = {};
};

// The entries >= floor, in order, of a row with its block maxima. `out` has room for padded(size).
static inline int64_t collect(const float* x, int64_t size, const float* block_max, float floor, float* out) {
  float* end = out;
  for (int64_t block = 0; block < num_blocks(size); block++) {
    if (!(block_max[block] >= floor)) continue;
    for (int64_t i = block * kBlock; i < (block + 1) * kBlock && i < size; i += kWidth) {
      const Lanes values = load_at(x, i, size);
      end = append(end, values, at_least(values, all(floor)) & first_lanes(size - i));
    }
  }
  return end - out;
}

// The sum of the weights of the entries >= floor.
template <typename Weights>
static inline uint64_t sum_weights(const float* x, int64_t size, const float* block_max, float floor, Weights weights) {
  for (int64_t block = 0; block < num_blocks(size); block++) {
    if (!(block_max[block] >= floor)) continue;
    for (int64_t i = block * kBlock; i < (block + 1) * kBlock && i < size; i += kWidth) {
      const Lanes values = load_at(x, i, size);
      weights.add(values, at_least(values, all(floor)) & first_lanes(size - i));
    }
  }
  return weights.sum();
}

// A value with low < value <= high, for low < high, both finite: their mean, or the middle of the floats between them.
static inline float split_point(float low, float high, bool by_bits) {
  const float mean = low * 0.5f + high * 0.5f;
  if (!by_bits && low < mean && mean <= high) return mean;
  const auto order = [](float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits >= 0 ? int64_t{bits} : -int64_t{bits & INT32_MAX};
  };
  const int64_t middle = order(low) + (order(high) - order(low) + 1) / 2;
  const int32_t bits = static_cast<int32_t>(middle < 0 ? -middle : middle) | (middle < 0 ? INT32_MIN : 0);
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

struct Parts {
  int64_t num_upper, num_lower;
  uint64_t upper_sum;
  float upper_min, lower_max;
};

// Entries >= middle go to `upper`, the others to `lower`, which may be the list itself.
template <typename Weights>
static inline Parts partition(const float* list, int64_t count, float middle, float* upper, float* lower,
                              Weights weights) {
  float *upper_end = upper, *lower_end = lower;
  Lanes upper_min = all(INFINITY), lower_max = all(-INFINITY);
  for (int64_t i = 0; i < count; i += kWidth) {
    const Lanes values = load_vector<Lanes>(list + i);
    const Mask within = first_lanes(count - i), is_upper = at_least(values, all(middle)) & within;
    weights.add(values, is_upper);
    upper_min = smaller(choose(is_upper, values, all(INFINITY)), upper_min);
    lower_max = larger(choose(within & ~is_upper, values, all(-INFINITY)), lower_max);
    upper_end = append(upper_end, values, is_upper);
    lower_end = append(lower_end, values, within & ~is_upper);
  }
  return Parts{upper_end - upper, lower_end - lower, weights.sum(), smallest_lane(upper_min), largest_lane(lower_max)};
}

// The same over at most kFewEntries, by sorting them.
constexpr int64_t kFewEntries = 32;

template <typename Weights>
static inline bool find_threshold_of_few(float* list, int64_t count, uint64_t needed, Weights weights,
                                         float* threshold) {
  for (int64_t i = 1; i < count; i++) {
    const float value = list[i];
    int64_t place = i;
    for (; place > 0 && list[place - 1] < value; place--) list[place] = list[place - 1];
    list[place] = value;
  }
  for (int64_t i = 0; i < count; i++) {
    weights.add(all(list[i]), 1);
    *threshold = list[i];
    if (weights.sum() >= needed) return true;
  }
  return false;
}

struct Range {
  float low, high;
};

static inline Range range_of(const float* list, int64_t count) {
  Lanes low = all(INFINITY), high = all(-INFINITY);
  for (int64_t i = 0; i < count; i += kWidth) {
    const Lanes values = load_vector<Lanes>(list + i);
    const Mask within = first_lanes(count - i);
    low = smaller(choose(within, values, all(INFINITY)), low);
    high = larger(choose(within, values, all(-INFINITY)), high);
  }
  return Range{smallest_lane(low), largest_lane(high)};
}

// Where find_threshold first divides its list: anything will do, what lies close to the threshold on either side is
// best. NaN: no idea.
struct Guesses {
  float values[2] = {NAN, NAN};
};

template <typename Weights>
static Guesses guess_threshold(const float* list, float* spare, int64_t count, double share, const Weights& weights);

// The largest value of `list` such that the weights of its entries >= that value reach `needed`; false if all of them
// together do not. `list` is without NaN and -inf and is overwritten; `spare` is as large; both have room for a vector
// more. `weights` is a sum that is still empty; `total`, the sum over the list, may be 0: unknown. The values between
// which the threshold lies are divided at guesses, then at their mean, and in the end by their bits, so that no list
// takes long.
template <typename Weights>
static bool find_threshold(float* list, float* spare, int64_t count, uint64_t needed, uint64_t total,
                           const Weights& weights, float* threshold) {
  constexpr int kMeans = 12;
  Guesses guesses;
  if (total > 0) guesses = guess_threshold(list, spare, count, static_cast<double>(needed) / total, weights);
  Range range = range_of(list, count);
  for (int step = 0; count > kFewEntries && range.low < range.high; step++) {
    float middle = step < 2 ? guesses.values[step] : NAN;
    if (!(range.low < middle && middle <= range.high)) middle = split_point(range.low, range.high, step > kMeans);
    const Parts parts = partition(list, count, middle, spare, list, weights);
    if (parts.upper_sum >= needed) {
      float* upper = spare;
      spare = list, list = upper;
      count = parts.num_upper, range.low = parts.upper_min;
    } else {
      needed -= parts.upper_sum;
      count = parts.num_lower, range.high = parts.lower_max;
    }
  }
  if (count <= kFewEntries) return find_threshold_of_few(list, count, needed, weights, threshold);
  Weights one = weights;
  one.add(all(range.high), 1);
  *threshold = range.high;
  return one.sum() * static_cast<uint64_t>(count) >= needed;
}

// The thresholds in a sample of the list of a little more and a little less than `share` of the sum.
template <typename Weights>
static Guesses guess_threshold(const float* list, float* spare, int64_t count, double share, const Weights& weights) {
  constexpr int64_t kSampled = 1024, kWorthwhile = 4 * kSampled;
  constexpr double kMargin = 0.03;  // three standard deviations of an even sample
  Guesses guesses;
  if (count < kWorthwhile) return guesses;
  // The one comes first that leaves less to look at.
  for (const int i : {0, 1}) {
    Weights sum = weights;
    for (int64_t entry = 0; entry < kSampled; entry += kWidth) {
      const Lanes values = load_vector<Lanes>(list + entry * (count / kSampled));
      store_vector(spare + entry, values);
      sum.add(values, kAllLanes);
    }
    const double margin = (share > 0.5) == (i == 0) ? -kMargin : kMargin;
    const double needed = (share + margin) * static_cast<double>(sum.sum());
    float guess;
    if (needed >= 1 && find_threshold(spare, spare + kSampled + kWidth, kSampled, static_cast<uint64_t>(needed), 0,
                                      weights, &guess))
      guesses.values[i] = guess;
  }
  return guesses;
}

// The smallest value that fewer than k entries of x exceed, or -FLT_MAX where fewer than k are larger than -inf.
// `list` and `spare` have room for padded(size) each.
static inline float top_k_threshold(const float* x, int64_t size, const float* block_max, int64_t k, float* list,
                                    float* spare) {
  constexpr float kLowest = -__FLT_MAX__;
  float bound = kLowest, threshold = kLowest;
  // The k-th largest block maximum is a bound: k entries are at least as large.
  const int64_t blocks = num_blocks(size);
  if (k <= blocks) {
    float* end = list;
    for (int64_t block = 0; block < blocks; block++)
      if (block_max[block] >= kLowest) *end++ = block_max[block];
    if (!find_threshold(list, spare, end - list, static_cast<uint64_t>(k), 0, UnitWeights(), &bound)) bound = kLowest;
  }
  const int64_t count = collect(x, size, block_max, bound, list);
  const bool is_found = find_threshold(list, spare, count, static_cast<uint64_t>(k), static_cast<uint64_t>(count),
                                       UnitWeights(), &threshold);
  return is_found ? threshold : kLowest;
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
