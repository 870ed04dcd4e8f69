// Moving data without arithmetic: blocks to blocks, token ids in and out of the slot table.
#include <algorithm>
#include <cstring>
#include <vector>

#include "layers.h"

namespace octavo {
namespace {

bool overlap(const octavo_copy_blocks_args& a) {
  std::vector<int64_t> sources(a.sources, a.sources + a.num_rows);
  std::sort(sources.begin(), sources.end());
  return std::any_of(a.destinations, a.destinations + a.num_rows,
                     [&](int64_t block) { return std::binary_search(sources.begin(), sources.end(), block); });
}

}  // namespace
}  // namespace octavo

// All reads come before all writes: where a block is both, the sources are set aside first.
OCTAVO_EXPORT void octavo_copy_blocks(const octavo_copy_blocks_args* args) {
  const octavo_copy_blocks_args& a = *args;
  if (!octavo::overlap(a)) {
    for (int64_t i = 0; i < a.num_rows; i++)
      std::memcpy(a.cache.row<char>(a.destinations[i]), a.cache.row<char>(a.sources[i]), a.block_bytes);
    return;
  }
  std::vector<char> blocks(a.num_rows * a.block_bytes);
  for (int64_t i = 0; i < a.num_rows; i++)
    std::memcpy(&blocks[i * a.block_bytes], a.cache.row<char>(a.sources[i]), a.block_bytes);
  for (int64_t i = 0; i < a.num_rows; i++)
    std::memcpy(a.cache.row<char>(a.destinations[i]), &blocks[i * a.block_bytes], a.block_bytes);
}

OCTAVO_EXPORT void octavo_gather_tokens(const octavo_gather_tokens_args* args) {
  for (int64_t row = 0; row < args->num_rows; row++)
    args->out[row] = args->tokens.row<int32_t>(args->slots[row])[args->positions[row]];
}

// Rows whose position is outside the table are dropped.
OCTAVO_EXPORT void octavo_store_tokens(const octavo_store_tokens_args* args) {
  for (int64_t row = 0; row < args->num_rows; row++) {
    const int64_t position = args->positions[row];
    if (position < 0 || position >= args->num_positions) continue;
    args->tokens.row<int32_t>(args->slots[row])[position] = static_cast<int32_t>(args->ids[row]);
  }
}
