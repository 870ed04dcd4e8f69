// What work there is: row tiles, what each sees, and how they are shared out among threads.
#pragma once

#include <cstdlib>

#include "attention.h"
#include "attention_rows.h"

namespace octavo {
namespace OCTAVO_ISA {

typedef octavo_paged_attention_args Args;

constexpr int kSegmentTiles = 1024 / kTile;
constexpr int64_t kRowsPerTile = 48;       // they share the loads of K and V
constexpr int64_t kAttentionCost = 40000;  // cycles from which threads share the work: about 10 us
constexpr int64_t kPiecesPerThread = 12;

// Tokens of a sequence that are next to each other, with the query heads of one KV head: they go through the KV tiles
// together. `parts`: where the state of each segment goes, if segments are shared out.
struct RowTile {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_row;
  int32_t num_tokens;
  int32_t first_segment;
  int32_t end_segment;
  float* parts;
};

// Memory that grows and is kept.
template <typename T>
struct Kept {
  T* data = nullptr;
  int64_t capacity = 0;

  T* reserve(int64_t size) {
    if (size > capacity) {
      std::free(data);
      capacity = size + size / 2;
      data = static_cast<T*>(std::aligned_alloc(64, (capacity * sizeof(T) + 63) / 64 * 64));
    }
    return data;
  }
  ~Kept() { std::free(data); }
};

// What one call computes; and what follows from it for a row or a row tile.
struct Work {
  const Args& args;
  const KVLayout layout;
  const int64_t group;     // query heads of a KV head
  const int64_t row_size;  // head size, rounded up to whole sixteens

  explicit Work(const Args& a)
      : args(a),
        layout(kv_layout(a.kv_dtype, a.block_size, a.num_kv_heads, a.head_size)),
        group(a.num_heads / a.num_kv_heads),
        row_size((a.head_size + 15) / 16 * 16) {}

  int64_t first_seen(int64_t row) const {
    const int64_t first = args.window > 0 ? args.positions[row] - args.window + 1 : 0;
    return first > 0 ? first : 0;
  }
  int64_t last_row(const RowTile& tile) const { return tile.first_row + tile.num_tokens - 1; }
  int64_t num_rows(const RowTile& tile) const { return tile.num_tokens * group; }

  Visible visible(int64_t row, int64_t kv_tile) const {
    const int64_t first = first_seen(row) - kv_tile * kTile, end = args.positions[row] + 1 - kv_tile * kTile;
    return {static_cast<int>(first < 0 ? 0 : first > kTile ? kTile : first),
            static_cast<int>(end < 0 ? 0 : end > kTile ? kTile : end)};
  }

  // The units of a KV tile; those that no row of the row tile sees are replaced by one that some row does.
  void find_units(const RowTile& tile, int64_t kv_tile, const char** units) const {
    const int32_t* table = args.block_tables + tile.sequence * args.block_table_stride;
    const int64_t first = first_seen(tile.first_row) / kUnit, last = args.positions[last_row(tile)] / kUnit;
    for (int i = 0; i < kTileUnits; i++) {
      int64_t unit = kv_tile * kTileUnits + i;
      unit = unit < first ? first : unit > last ? last : unit;
      units[i] = find_unit(layout, args.cache, table, unit, tile.kv_head);
    }
  }

  void set_segments(RowTile& tile) const {
    constexpr int64_t kSegment = kSegmentTiles * kTile;
    tile.first_segment = static_cast<int32_t>(first_seen(tile.first_row) / kSegment);
    tile.end_segment = static_cast<int32_t>(args.positions[last_row(tile)] / kSegment + 1);
  }

  // About the cycles that a row tile takes.
  int64_t cost(const RowTile& tile) const {
    const int64_t tokens = args.positions[last_row(tile)] + 1 - first_seen(tile.first_row);
    return tokens * num_rows(tile) * (row_size + 16) / 10 + 500;
  }

  // The row tiles of the batch; the longest of a sequence first, so that none is left for the end.
  int64_t find_tiles(Kept<RowTile>& tiles) const {
    const int64_t tokens_per_tile = kRowsPerTile > group ? kRowsPerTile / group : 1;
    int64_t most = 0;
    for (int64_t i = 0; i < args.num_sequences; i++)
      most += (args.query_start[i + 1] - args.query_start[i] + tokens_per_tile - 1) / tokens_per_tile;
    RowTile* next = tiles.reserve(most * args.num_kv_heads + 1);
    for (int64_t i = 0; i < args.num_sequences; i++) {
      const int64_t start = args.query_start[i], num_tokens = args.query_start[i + 1] - start;
      const int64_t num_tiles = (num_tokens + tokens_per_tile - 1) / tokens_per_tile;
      for (int64_t head = 0; head < args.num_kv_heads; head++) {
        for (int64_t tile = num_tiles - 1; tile >= 0; tile--) {
          const int64_t first = tile * tokens_per_tile;
          const int64_t count = num_tokens - first < tokens_per_tile ? num_tokens - first : tokens_per_tile;
          *next = {static_cast<int32_t>(i), static_cast<int32_t>(head), static_cast<int32_t>(start + first),
                   static_cast<int32_t>(count), 0, 0, nullptr};
          set_segments(*next++);
        }
      }
    }
    return next - tiles.data;
  }

  int64_t part_size(const RowTile& tile) const { return RowStates::num_floats(num_rows(tile), row_size); }

  // Row tiles one after the other, or one segment of a row tile.
  struct Piece {
    int64_t first_tile, num_tiles, segment;
  };

  // Pieces of about equal work. A row tile that is too much for one is shared out by segments, if it has several.
  int64_t find_pieces(RowTile* tiles, int64_t num_tiles, int64_t total, Kept<Piece>& pieces, Kept<float>& parts) const {
    const int64_t share = total / (kPiecesPerThread * num_threads());
    const auto num_shared = [&](const RowTile& tile) -> int64_t {
      const int64_t segments = tile.end_segment - tile.first_segment;
      return segments > 1 && cost(tile) > share ? segments : 0;
    };
    int64_t most = num_tiles, num_floats = 0;
    for (int64_t i = 0; i < num_tiles; i++) {
      most += num_shared(tiles[i]);
      num_floats += num_shared(tiles[i]) * part_size(tiles[i]);
    }
    Piece* next = pieces.reserve(most);
    float* part = parts.reserve(num_floats);
    int64_t in_piece = share;  // more than any: the first tile opens a piece
    for (int64_t i = 0; i < num_tiles; i++) {
      if (num_shared(tiles[i]) > 0) {
        tiles[i].parts = part;
        part += num_shared(tiles[i]) * part_size(tiles[i]);
        for (int64_t segment = tiles[i].first_segment; segment < tiles[i].end_segment; segment++)
          *next++ = {i, 1, segment};
        in_piece = share;
        continue;
      }
      if (in_piece >= share) {
        *next++ = {i, 0, -1};
        in_piece = 0;
      }
      next[-1].num_tiles++;
      in_piece += cost(tiles[i]);
    }
    return next - pieces.data;
  }
};

}  // namespace OCTAVO_ISA
}  // namespace octavo
