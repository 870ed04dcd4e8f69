// What happens to a copy of one row's logits before temperature: penalties, bias, then the masks (design 7.4).
// Ids outside 0 ... size - 1 have no effect.
#pragma once

#include "lanes.h"
#include "sampling_args.h"

namespace octavo {
namespace OCTAVO_ISA {

struct Adjustment {
  const octavo_sample_args* args;
  int64_t row;
  float* logits;
  int64_t size;
  uint32_t* counts;  // scratch of `size`, and the same again as bits
  const int32_t* history;
  int64_t length;

  bool is_id(int64_t id) const { return id >= 0 && id < size; }
  void ban(int64_t id) const {
    if (is_id(id)) logits[id] = -INFINITY;
  }
};

static inline bool has_penalties(const octavo_sample_args& args, int64_t row) {
  return args.repetition_penalty[row] != 1.0f || args.frequency_penalty[row] != 0.0f ||
         args.presence_penalty[row] != 0.0f;
}

static inline bool has_entries(const int64_t* offsets, int64_t row) { return offsets[row] < offsets[row + 1]; }

// Whether the row's logits differ from the raw ones.
static inline bool is_adjusted(const octavo_sample_args& args, int64_t row) {
  return has_penalties(args, row) || has_entries(args.bias_offsets, row) || has_entries(args.ban_offsets, row) ||
         has_entries(args.allowed_offsets, row) || has_entries(args.bad_word_row_offsets, row) ||
         args.bitmask_rows[row] >= 0;
}

// The repetition penalty counts prompt and output, the other two the output alone. Of `counts` only the entries of
// the history's ids are used: cleared, counted (output tokens by twos, and 1 for being there at all), taken.
static inline void penalize(const Adjustment& a) {
  const float repetition = a.args->repetition_penalty[a.row], frequency = a.args->frequency_penalty[a.row];
  const float presence = a.args->presence_penalty[a.row];
  const int64_t num_prompt_tokens = a.args->num_prompt_tokens[a.row];
  for (int64_t i = 0; i < a.length; i++)
    if (a.is_id(a.history[i])) a.counts[a.history[i]] = 1;
  for (int64_t i = num_prompt_tokens; i < a.length; i++)
    if (a.is_id(a.history[i])) a.counts[a.history[i]] += 2;
  for (int64_t i = 0; i < a.length; i++) {
    const int32_t id = a.history[i];
    if (!a.is_id(id) || a.counts[id] == 0) continue;
    const uint32_t count = a.counts[id] >> 1;
    a.counts[id] = 0;
    float value = a.logits[id];
    if (repetition != 1.0f) value = value > 0.0f ? value / repetition : value * repetition;
    if (count > 0 && frequency != 0.0f) value -= static_cast<float>(count) * frequency;
    if (count > 0 && presence != 0.0f) value -= presence;
    a.logits[id] = value;
  }
}

// Ids whose bit is not set get -inf. `words` may hold more bits than there are ids.
static inline void apply_bitmask(float* logits, int64_t size, const uint32_t* words) {
  for (int64_t i = 0; i < size; i += kWidth) {
    const Mask mask = words[i / 32] >> (i % 32) & kAllLanes;
    if (mask == kAllLanes) continue;
    const Lanes kept = choose(mask, load_at(logits, i, size), all(-INFINITY));
    if (size - i >= kWidth) {
      store_vector(logits + i, kept);
    } else {
      for (int lane = 0; lane < size - i; lane++) logits[i + lane] = kept[lane];
    }
  }
}

static inline void keep_allowed(const Adjustment& a) {
  const int64_t* offsets = a.args->allowed_offsets + a.row;
  std::memset(a.counts, 0, static_cast<size_t>((a.size + 31) / 32) * sizeof(uint32_t));
  for (int64_t i = offsets[0]; i < offsets[1]; i++) {
    const int64_t id = a.args->allowed_ids[i];
    if (a.is_id(id)) a.counts[id / 32] |= 1u << (id % 32);
  }
  apply_bitmask(a.logits, a.size, a.counts);
}

// A word's last id is banned when the history ends with its others.
static inline void ban_bad_words(const Adjustment& a) {
  const int64_t* rows = a.args->bad_word_row_offsets + a.row;
  for (int64_t word = rows[0]; word < rows[1]; word++) {
    const int64_t start = a.args->bad_word_offsets[word], last = a.args->bad_word_offsets[word + 1] - 1;
    const int64_t num_before = last - start;
    bool ends = num_before >= 0 && num_before <= a.length;
    for (int64_t i = 0; ends && i < num_before; i++)
      ends = a.history[a.length - num_before + i] == a.args->bad_word_ids[start + i];
    if (ends) a.ban(a.args->bad_word_ids[last]);
  }
}

// Everything, in order, on `logits`, the row's first `size`. `counts` is scratch for `size` values.
static inline void adjust(const octavo_sample_args& args, int64_t row, float* logits, int64_t size, uint32_t* counts) {
  const int64_t position = args.positions[row];
  const Adjustment a = {&args, row, logits, size, counts, args.tokens.row<const int32_t>(args.slots[row]),
                        position < args.max_tokens ? position : args.max_tokens};
  if (has_penalties(args, row)) penalize(a);
  for (int64_t i = args.bias_offsets[row]; i < args.bias_offsets[row + 1]; i++)
    if (a.is_id(args.bias_ids[i])) logits[args.bias_ids[i]] += args.bias_values[i];
  if (has_entries(args.allowed_offsets, row)) keep_allowed(a);
  for (int64_t i = args.ban_offsets[row]; i < args.ban_offsets[row + 1]; i++) a.ban(args.ban_ids[i]);
  ban_bad_words(a);
  const int64_t mask = args.bitmask_rows[row];
  if (mask >= 0) apply_bitmask(logits, size, args.bitmask.row<const uint32_t>(mask));
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
