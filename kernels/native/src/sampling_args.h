// The arguments of the sampler and of logprobs, as Python fills them. Eight bytes a field.
#pragma once

#include "common.h"

// Log-softmax of raw logits. `logprobs` and `ranks` one a row; `top_ids` and `top_logprobs` num_top a row.
struct octavo_logprobs_args {
  int64_t num_rows;
  int64_t vocab_size;
  int64_t num_top;  // at most vocab_size
  octavo::Rows logits;
  const int64_t* ids;
  float* logprobs;
  int64_t* ranks;
  int64_t* top_ids;
  float* top_logprobs;
};

// Columns have one entry a row. Of the sparse lists row r has the values from offsets[r] to offsets[r + 1] - 1.
struct octavo_sample_args {
  int64_t num_rows;
  int64_t vocab_size;
  int64_t num_token_ids;  // at most vocab_size; ids from there on are never drawn
  int64_t num_top;        // -1: no logprobs
  octavo::Rows logits;
  octavo::Rows tokens;  // int32, by slot
  int64_t max_tokens;   // of one slot
  const int64_t* slots;
  const int64_t* positions;
  const int64_t* num_prompt_tokens;
  const int64_t* streams;
  const int64_t* seeds;
  const float* temperature;
  const int64_t* top_k;
  const float* top_p;
  const float* min_p;
  const float* presence_penalty;
  const float* frequency_penalty;
  const float* repetition_penalty;
  const int64_t* bias_offsets;
  const int64_t* bias_ids;
  const float* bias_values;
  const int64_t* ban_offsets;
  const int64_t* ban_ids;
  const int64_t* allowed_offsets;
  const int64_t* allowed_ids;
  const int64_t* bad_word_row_offsets;  // of words
  const int64_t* bad_word_offsets;      // of a word's ids
  const int64_t* bad_word_ids;
  const int64_t* bitmask_rows;  // -1: none
  octavo::Rows bitmask;         // 32-bit words, bit set = allowed
  int64_t* token_ids;
  uint8_t* is_valid;
  float* logprobs;
  int64_t* ranks;
  int64_t* top_ids;
  float* top_logprobs;
};
