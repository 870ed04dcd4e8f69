// Arguments of the small per-row operations. Every pointer to one value per row is dense.
#pragma once

#include "common.h"

struct octavo_embed_args {
  const int64_t* ids;
  octavo::Rows table;
  octavo::Rows out;  // float32
  int64_t num_rows;
  int64_t size;
  int64_t table_dtype;
};

// `num_heads` vectors of `size` side by side in each row, each normalized alone.
struct octavo_rms_norm_args {
  octavo::Rows x;  // float32
  octavo::Rows out;
  const float* weight;
  int64_t num_rows;
  int64_t num_heads;
  int64_t size;
  int64_t out_dtype;
  double eps;
};

struct octavo_silu_and_mul_args {
  octavo::Rows gate_up;  // float32, `size` gates, then as many ups
  octavo::Rows out;
  int64_t num_rows;
  int64_t size;
  int64_t out_dtype;
};

struct octavo_rotary_args {
  octavo::Rows x;  // float32
  octavo::Rows out;
  octavo::Rows cos_sin;  // float32, `half_size` cosines, then as many sines
  const int64_t* positions;
  int64_t num_rows;
  int64_t num_heads;
  int64_t head_size;
  int64_t half_size;  // half of the rotated part of a head
  int64_t out_dtype;
};

struct octavo_write_kv_args {
  octavo::Rows k;
  octavo::Rows v;
  void* cache;
  const int64_t* kv_slots;
  int64_t num_rows;
  int64_t num_kv_heads;
  int64_t head_size;
  int64_t block_size;
  int64_t kv_dtype;
  int64_t k_dtype;
  int64_t v_dtype;
};

struct octavo_rotary_write_kv_args {
  octavo::Rows q;  // float32, like k and v
  octavo::Rows k;
  octavo::Rows v;
  octavo::Rows q_out;
  octavo::Rows cos_sin;
  const float* q_norm;  // both null: no norms
  const float* k_norm;
  const int64_t* positions;
  void* cache;
  const int64_t* kv_slots;
  int64_t num_rows;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_size;
  int64_t half_size;
  int64_t block_size;
  int64_t kv_dtype;
  int64_t out_dtype;  // of q; k and v are rounded to it too, before they are to the cache's
  double eps;
};

struct octavo_copy_blocks_args {
  octavo::Rows cache;
  const int64_t* sources;
  const int64_t* destinations;
  int64_t num_rows;
  int64_t block_bytes;
};

struct octavo_gather_tokens_args {
  octavo::Rows tokens;  // int32
  const int64_t* slots;
  const int64_t* positions;
  int64_t* out;
  int64_t num_rows;
};

struct octavo_store_tokens_args {
  octavo::Rows tokens;  // int32, `num_positions` a row
  const int64_t* slots;
  const int64_t* positions;
  const int64_t* ids;
  int64_t num_rows;
  int64_t num_positions;
};
