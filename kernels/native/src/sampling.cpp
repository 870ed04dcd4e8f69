// octavo_sample: one token a row, by Gumbel-max over what the row's parameters leave (design 7.4). No row sees another.
#include "adjust.h"
#include "isa.h"
#include "logprobs_row.h"
#include "philox.h"

namespace octavo {
namespace OCTAVO_ISA {
namespace {

constexpr float kLowestTemperature = 0.01f;
constexpr float kMostNoise = 23.0f;   // -ln E is less
constexpr float kWeightless = 29.0f;  // exp of minus that rounds to 0 in multiples of 2^-40
constexpr int64_t kNoToken = -1;

// One thread's scratch while it works on a row.
struct Scratch {
  float* logits;  // adjusted, or divided by the temperature
  float* block_max;
  float* list;
  float* spare;

  Scratch(int thread, int64_t size) {
    const int64_t room = padded(size), blocks = padded(num_blocks(size));
    logits = static_cast<float*>(thread_scratch(thread, (3 * room + blocks) * sizeof(float)));
    block_max = logits + room;
    list = block_max + blocks;
    spare = list + room;
  }
};

// More than all roundings between a value of this size and a bound that it is compared with.
float slack(float value) { return 1e-3f + __builtin_fabsf(value) * 0x1p-20f; }

// Limits of what may be drawn, over logits that are already divided by the temperature.
struct Kept {
  float largest;
  float floor;  // the larger of the thresholds of top_k and top_p
  float min_p;

  // Nothing below is kept, by either.
  float bound() const {
    if (!(min_p > 0.0f)) return floor;
    const float lightest = largest + static_cast<float>(__builtin_log(min_p)) - slack(largest);
    return lightest > floor ? lightest : floor;
  }
};

// ceil(p * total) for a float p below 1, exactly.
uint64_t share_of(float p, uint64_t total) {
  if (p <= 0.0f) return 0;
  __extension__ typedef unsigned __int128 Wide;
  int exponent;
  const Wide mantissa = static_cast<uint32_t>(__builtin_frexpf(p, &exponent) * 0x1p24f);
  const int shift = 24 - exponent;
  if (shift > 126) return 1;  // the product is less than 2^88
  return static_cast<uint64_t>((mantissa * total + (Wide{1} << shift) - 1) >> shift);
}

// The smallest value whose strictly larger entries >= floor weigh less than top_p of all of them.
float top_p_threshold(const Scratch& scratch, int64_t size, float largest, float floor, float top_p) {
  const float lightest = largest - kWeightless;
  if (floor < lightest) floor = lightest;
  const ExpWeights weights(largest);
  const uint64_t total = sum_weights(scratch.logits, size, scratch.block_max, floor, weights);
  const uint64_t needed = share_of(top_p, total);
  if (needed == 0) return largest;
  // If the entries below a bound cannot make up for what is not needed, the threshold is not among them. The bound is
  // only likely to be right: if it was not, the entries above it do not reach `needed`, and all are looked at.
  float threshold = largest;
  const double spare_weight = static_cast<double>(total - needed) / static_cast<double>(size);
  const float bound = largest + static_cast<float>(__builtin_log(spare_weight * 0x1p-40));
  for (const float from : {bound > floor ? bound : floor, floor}) {
    const int64_t count = collect(scratch.logits, size, scratch.block_max, from, scratch.list);
    const bool is_nearly_all = static_cast<double>(size - count) * spare_weight < 0.01 * static_cast<double>(total);
    const uint64_t sum = is_nearly_all ? total : 0;
    if (find_threshold(scratch.list, scratch.spare, count, needed, sum, weights, &threshold)) break;
  }
  return threshold;
}

// 2^31 times a bound on exp(x) from above (as far as x <= 4): straight lines between the powers of 2.
Lanes exp_bound(Lanes x) {
  const Lanes within = smaller(larger(x, all(-80.0f)), all(4.0f));
  const Lanes bits = within * (0x1p23f * 1.44269504f) + 0x1p23f * (127 + 31);
  return (Lanes)__builtin_convertvector(bits, IntLanes);
}

// The best token so far.
struct Best {
  float score = -INFINITY;
  int64_t id = kNoToken;

  // No better than the best, all roundings aside.
  float bound() const { return score - slack(score); }

  void consider(const Kept& kept, const float* scaled, int64_t first_id, UintLanes words, Mask lanes) {
    const Lanes values = load_vector<Lanes>(scaled + first_id);
    lanes &= at_least(values, all(kept.floor)) & less(all(-INFINITY), values);
    if (kept.min_p > 0.0f) lanes &= at_least(exp_nonpositive(values - all(kept.largest)), all(kept.min_p));
    if (lanes == 0) return;
    const Lanes scores = values - log_exponential(words);
    for (; lanes; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      const float found = scores[lane];
      const int64_t found_id = first_id + lane;
      if (found > score || (found == score && found_id < id)) score = found, id = found_id;
    }
  }
};

// argmax of scaled - ln E over the kept entries, lowest id on ties. An entry can win only if ln E <= scaled - best, and
// E is at least h 2^-32: almost all are passed over by that alone, without a logarithm.
int64_t draw(const Scratch& scratch, int64_t size, const Kept& kept, const PhiloxKey& key) {
  UintLanes words[kVectors];
  Best best;
  const int64_t start = find_first(scratch.logits, size, scratch.block_max, kept.largest) / kBlock;
  philox_words(static_cast<uint32_t>(start * (kBlock / 4)), key, words);
  for (int i = 0; i < kVectors; i++)
    best.consider(kept, scratch.logits, start * kBlock + i * kWidth, words[i], kAllLanes);
  if (best.id == kNoToken) return kNoToken;  // a min_p above 1 keeps nothing
  const float lowest = kept.bound();
  for (int64_t block = 0; block < num_blocks(size); block++) {
    const float most = scratch.block_max[block];
    if (most < lowest || most < best.bound() - kMostNoise || block == start) continue;
    philox_words(static_cast<uint32_t>(block * (kBlock / 4)), key, words);
    for (int i = 0; i < kVectors; i++) {
      const int64_t first_id = block * kBlock + i * kWidth;
      const Lanes bound = exp_bound(load_vector<Lanes>(scratch.logits + first_id) - all(best.bound()));
      const Mask lanes = at_least(bound, __builtin_convertvector((IntLanes)(words[i] >> 1), Lanes));
      if (lanes) best.consider(kept, scratch.logits, first_id, words[i], lanes);
    }
  }
  return best.id;
}

// The row's token at a temperature above 0, by which the logits in `scratch` are divided already.
int64_t sample_row(const octavo_sample_args& args, int64_t row, const Scratch& scratch, float largest) {
  const int64_t size = args.num_token_ids, top_k = args.top_k[row];
  Kept kept = {largest, -INFINITY, args.min_p[row]};
  if (top_k > 0 && top_k < size)
    kept.floor = top_k_threshold(scratch.logits, size, scratch.block_max, top_k, scratch.list, scratch.spare);
  if (args.top_p[row] < 1.0f)
    kept.floor = top_p_threshold(scratch, size, kept.largest, kept.floor, args.top_p[row]);
  const PhiloxKey key = {static_cast<uint64_t>(args.seeds[row]), static_cast<uint32_t>(args.positions[row]),
                         static_cast<uint32_t>(args.streams[row])};
  return draw(scratch, size, kept, key);
}

// The row's token, or kNoToken where a raw logit is NaN or +inf, or nothing is left.
int64_t choose_token(const octavo_sample_args& args, int64_t row, const Scratch& scratch) {
  const float* logits = args.logits.row<const float>(row);
  const int64_t size = args.num_token_ids;
  if (!is_finite(logits + size, args.vocab_size - size)) return kNoToken;
  if (is_adjusted(args, row)) {
    if (!is_finite(logits, size)) return kNoToken;
    std::memcpy(scratch.logits, logits, static_cast<size_t>(size) * sizeof(float));
    adjust(args, row, scratch.logits, size, reinterpret_cast<uint32_t*>(scratch.list));
  }
  const bool is_raw = !is_adjusted(args, row);
  const float* source = is_raw ? logits : scratch.logits;
  if (!(args.temperature[row] > 0.0f)) {
    const RowScan found = scan(source, size, scratch.block_max);
    if ((is_raw && !found.is_finite) || found.largest == -INFINITY) return kNoToken;
    return find_first(source, size, scratch.block_max, found.largest);
  }
  const float temperature = args.temperature[row] < kLowestTemperature ? kLowestTemperature : args.temperature[row];
  const Lanes divisor = all(temperature), most = all(__FLT_MAX__);
  const RowScan found = scan(source, size, scratch.logits, scratch.block_max,
                             [&](Lanes values) { return smaller(values / divisor, most); });
  if ((is_raw && !found.is_finite) || found.largest == -INFINITY) return kNoToken;
  return sample_row(args, row, scratch, found.largest);
}

}  // namespace

void sample(const octavo_sample_args* args) {
  const int64_t num_top = args->num_top;
  parallel_for(args->num_rows, [&](int64_t row, int thread) {
    const int64_t token = choose_token(*args, row, Scratch(thread, args->num_token_ids));
    args->is_valid[row] = token != kNoToken;
    args->token_ids[row] = token != kNoToken ? token : 0;
    if (num_top < 0) return;
    const int64_t size = args->vocab_size;
    float* scratch = static_cast<float*>(thread_scratch(thread, logprobs_scratch(size) * sizeof(float)));
    const TopLogprobs out = {args->logprobs + row, args->ranks + row, args->top_ids + row * num_top,
                             args->top_logprobs + row * num_top};
    logprobs_row(args->logits.row<const float>(row), size, args->token_ids[row], num_top, scratch, out);
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

OCTAVO_DISPATCH(sample, octavo_sample_args)
