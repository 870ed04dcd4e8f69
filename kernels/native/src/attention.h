// Arguments of paged attention.
#pragma once

#include "common.h"

struct octavo_paged_attention_args {
  octavo::Rows q;    // [num_rows][num_heads][head_size]
  octavo::Rows out;  // the same; rows of no sequence become 0
  void* cache;
  const int32_t* query_start;   // [num_sequences + 1]
  const int32_t* block_tables;  // entries that no row sees are not followed
  int64_t block_table_stride;   // in entries
  const int64_t* positions;     // [num_rows]
  int64_t num_rows;
  int64_t num_sequences;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_size;
  int64_t block_size;
  int64_t kv_dtype;
  int64_t q_dtype;
  int64_t out_dtype;
  int64_t window;  // 0: none
  double scale;    // positive
  double soft_cap;  // of scores, scaled; 0: none
};
