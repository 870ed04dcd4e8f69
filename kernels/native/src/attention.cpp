// Paged attention by the recurrence of design 7.1: one code for decode rows and prefill chunks.
//
// A row's bits follow from its query, its position and what it sees: KV tiles of 64 tokens at absolute multiples of
// 64 in order, segments of 1,024 kept apart and merged in order. How rows are grouped, which tiles are left out (a
// tile that a row does not see leaves its state as it was) and how segments are shared out makes no difference.
#include "attention.h"

#include "attention_work.h"
#include "isa.h"
#include "layers_rows.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr float kLog2E = 1.4426950408889634f;

template <typename Format>
struct Attention : Work {
  typedef typename Format::Query Query;

  const float scale;  // of what the cap leaves, if there is one
  const SoftCap soft_cap;

  explicit Attention(const Args& a)
      : Work(a),
        scale(a.soft_cap > 0.0 ? kLog2E : static_cast<float>(a.scale) * kLog2E),
        soft_cap{static_cast<float>(a.soft_cap), a.soft_cap > 0.0 ? static_cast<float>(a.scale / a.soft_cap) : 0.0f} {}

  // What a thread needs for one row tile.
  struct Scratch {
    SoftmaxScratch* softmax;
    RowStates states, segment;
    const Query** queries;
    float* converted;  // queries, if they are not in the format's type
    char* padded;      // values, if the head size is not a multiple of 16
  };

  static int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  Scratch scratch(int thread, int64_t rows) const {
    const int64_t softmax_bytes = sizeof(SoftmaxScratch);
    const int64_t state_bytes = round_up(RowStates::num_floats(rows, row_size) * 4);
    const int64_t pointer_bytes = round_up(rows * sizeof(Query*));
    const int64_t converted_bytes = round_up(rows * args.head_size * 4);
    const int64_t padded_bytes = round_up(kTile * row_size * Format::kItemBytes);
    char* memory = static_cast<char*>(thread_scratch(
        thread, softmax_bytes + 2 * state_bytes + pointer_bytes + converted_bytes + padded_bytes));
    char* states = memory + softmax_bytes;
    char* pointers = states + 2 * state_bytes;
    return {reinterpret_cast<SoftmaxScratch*>(memory),
            RowStates(reinterpret_cast<float*>(states), rows, row_size),
            RowStates(reinterpret_cast<float*>(states + state_bytes), rows, row_size),
            reinterpret_cast<const Query**>(pointers),
            reinterpret_cast<float*>(pointers + pointer_bytes),
            pointers + pointer_bytes + converted_bytes};
  }

  void find_queries(const RowTile& tile, Scratch& s) const {
    for (int64_t row = 0; row < num_rows(tile); row++) {
      const int64_t start = (tile.kv_head * group + row % group) * args.head_size;
      const int64_t token = tile.first_row + row / group;
      if (args.q_dtype == kBFloat16 && sizeof(Query) == 4) {
        const uint16_t* q = args.q.template row<uint16_t>(token) + start;
        float* converted = s.converted + row * args.head_size;
        for (int64_t i = 0; i < args.head_size; i++) {
          const uint32_t bits = static_cast<uint32_t>(q[i]) << 16;
          std::memcpy(converted + i, &bits, sizeof bits);
        }
        s.queries[row] = reinterpret_cast<const Query*>(converted);
      } else {
        s.queries[row] = args.q.template row<Query>(token) + start;
      }
    }
  }

  // Values of a tile with rows of whole sixteens.
  const char* pad_values(const char* values, int unit, char* padded) const {
    const int64_t item = args.kv_dtype == kFloat32 ? 4 : 2 * Format::kItemBytes;
    const int64_t rows = args.kv_dtype == kFloat32 ? kUnit : kUnit / 2;
    char* out = padded + unit * rows * row_size * item;
    for (int64_t row = 0; row < rows; row++) {
      std::memcpy(out + row * row_size * item, values + row * args.head_size * item, args.head_size * item);
      std::memset(out + (row * row_size + args.head_size) * item, 0, (row_size - args.head_size) * item);
    }
    return out;
  }

  void visit(const RowTile& tile, int64_t kv_tile, const char* const* units, const char* const* next, Scratch& s,
             const RowStates& states) const {
    ValueTile values;
    values.row_size = row_size;
    for (int i = 0; i < kTileUnits; i++) {
      values.units[i] = units[i] + layout.part_bytes;
      values.next[i] = next[i] + layout.part_bytes;
      if (row_size != args.head_size) values.units[i] = pad_values(values.units[i], i, s.padded);
    }
    const int64_t rows = num_rows(tile);
    const int64_t num_chunks = (rows + Format::kMostRows - 1) / Format::kMostRows;
    for (int64_t chunk = 0; chunk < num_chunks; chunk++) {
      const int64_t row = rows * chunk / num_chunks;
      const int count = static_cast<int>(rows * (chunk + 1) / num_chunks - row);
      Visible seen[Format::kMostRows];
      for (int r = 0; r < count; r++) seen[r] = visible(tile.first_row + (row + r) / group, kv_tile);
      values.first = seen[0].first;
      values.end = seen[count - 1].end;
      if (values.first >= values.end) continue;
      const int first_unit = values.first / kUnit, end_unit = (values.end + kUnit - 1) / kUnit;
      multiply_keys_of<Format>(count, first_unit, end_unit, s.queries + row, units, next, args.head_size,
                               s.softmax->scores);
      with_number<kTileUnits>(end_unit - first_unit, [&](auto num_units) {
        weigh_rows<typename Format::Weights, Format::kDtype == kInt8, decltype(num_units)::value>(
            *s.softmax, count, seen, first_unit, units, layout.part_bytes, scale, soft_cap,
            states.largest + row, states.totals + 16 * row);
      });
      multiply_values_of<Format>(count, s.softmax->weights, values, s.softmax->decay,
                                 states.weighted + row_size * row);
    }
  }

  // `following`: the row tile that this thread takes next, or null.
  void visit_segment(const RowTile& tile, int64_t segment, const RowTile* following, Scratch& s,
                     const RowStates& states) const {
    states.clear(num_rows(tile));
    int64_t first = first_seen(tile.first_row) / kTile;
    const int64_t last_of_all = args.positions[last_row(tile)] / kTile;
    if (first < segment * kSegmentTiles) first = segment * kSegmentTiles;
    const int64_t last = last_of_all < (segment + 1) * kSegmentTiles ? last_of_all : (segment + 1) * kSegmentTiles - 1;
    const char* units[2][kTileUnits];
    find_units(tile, first, units[0]);
    for (int64_t kv_tile = first; kv_tile <= last; kv_tile++) {
      const char** current = units[(kv_tile - first) % 2];
      const char** next = units[(kv_tile - first + 1) % 2];
      if (kv_tile < last_of_all || following == nullptr) {
        find_units(tile, kv_tile < last_of_all ? kv_tile + 1 : kv_tile, next);
      } else {
        find_units(*following, first_seen(following->first_row) / kTile, next);
      }
      visit(tile, kv_tile, current, next, s, states);
    }
  }

  // All of a row tile's segments, merged into s.states.
  void visit_segments(const RowTile& tile, const RowTile* following, Scratch& s) const {
    find_queries(tile, s);
    visit_segment(tile, tile.first_segment, following, s, s.states);
    for (int32_t segment = tile.first_segment + 1; segment < tile.end_segment; segment++) {
      visit_segment(tile, segment, following, s, s.segment);
      merge_rows(s.states, s.segment, num_rows(tile));
    }
  }

  // Divides, and stores the rows of token `token`. False if a result is not finite.
  bool store_token(const RowTile& tile, int64_t token, const RowStates& states) const {
    bool is_finite = true;
    for (int64_t head = 0; head < group; head++) {
      const int64_t row = token * group + head;
      const F total = all(tree_sum(load(states.totals + 16 * row)));
      float* weighted = states.weighted + row_size * row;
      for (int64_t i = 0; i < row_size; i += kWidth) store_f(weighted + i, load_f(weighted + i) / total);
      const int64_t start = (tile.kv_head * group + head) * args.head_size;
      const auto write = [&](auto* out) {
        Vec difference = splat(0.0f);
        for_lanes(args.head_size, [&](int64_t i, int count) {
          const Vec v = load_lanes(weighted + i, count);
          // Makes +0 of -0, which tokens that a row does not see do too, and NaN of what is not finite.
          const Vec nothing = v - v;
          difference += nothing;
          store_lanes(out + i, v + nothing, count);
        });
        is_finite &= tree_sum(difference) == 0.0f;
      };
      const int64_t token_row = tile.first_row + token;
      if (args.out_dtype == kBFloat16) {
        write(args.out.template row<uint16_t>(token_row) + start);
      } else {
        write(args.out.template row<float>(token_row) + start);
      }
    }
    return is_finite;
  }

  // A weight of 0 times a value that is not finite is NaN, also in the row that does not see the value. So a token
  // whose result is not finite goes again, alone: then only what it sees is read.
  void store(const RowTile& tile, const RowStates& states, Scratch& s) const {
    int64_t num_bad = 0, bad[kRowsPerTile];
    for (int64_t token = 0; token < tile.num_tokens; token++)
      if (!store_token(tile, token, states)) bad[num_bad++ % kRowsPerTile] = token;
    if (tile.num_tokens == 1) return;
    for (int64_t i = 0; i < num_bad; i++) {
      const int64_t row = tile.first_row + bad[i];
      RowTile alone = tile;
      alone.first_row = static_cast<int32_t>(row);
      alone.num_tokens = 1;
      set_segments(alone);
      visit_segments(alone, nullptr, s);
      store_token(alone, 0, s.states);
    }
  }

  void run_tiles(const RowTile* tiles, int64_t num_tiles, int thread) const {
    for (int64_t i = 0; i < num_tiles; i++) {
      Scratch s = scratch(thread, num_rows(tiles[i]));
      visit_segments(tiles[i], i + 1 < num_tiles ? &tiles[i + 1] : nullptr, s);
      store(tiles[i], s.states, s);
    }
  }

  void run_segment(const RowTile& tile, int64_t segment, int thread) const {
    Scratch s = scratch(thread, num_rows(tile));
    find_queries(tile, s);
    float* part = tile.parts + (segment - tile.first_segment) * part_size(tile);
    visit_segment(tile, segment, nullptr, s, RowStates(part, num_rows(tile), row_size));
  }

  void merge_segments(const RowTile& tile, int thread) const {
    const int64_t rows = num_rows(tile), size = part_size(tile);
    const RowStates states(tile.parts, rows, row_size);
    for (int32_t segment = tile.first_segment + 1; segment < tile.end_segment; segment++)
      merge_rows(states, RowStates(tile.parts + (segment - tile.first_segment) * size, rows, row_size), rows);
    Scratch s = scratch(thread, rows);
    store(tile, states, s);
  }

  void run() const {
    static thread_local Kept<RowTile> kept_tiles;
    static thread_local Kept<Piece> kept_pieces;
    static thread_local Kept<float> kept_parts;
    const int64_t num_tiles = find_tiles(kept_tiles);
    RowTile* tiles = kept_tiles.data;
    int64_t total = 0;
    for (int64_t i = 0; i < num_tiles; i++) total += cost(tiles[i]);
    if (total < kAttentionCost || num_threads() == 1)
      return parallel_for(1, [&](int64_t, int thread) { run_tiles(tiles, num_tiles, thread); });
    const int64_t num_pieces = find_pieces(tiles, num_tiles, total, kept_pieces, kept_parts);
    const Piece* pieces = kept_pieces.data;
    parallel_for(num_pieces, [&](int64_t i, int thread) {
      const Piece& piece = pieces[i];
      if (piece.segment < 0) return run_tiles(tiles + piece.first_tile, piece.num_tiles, thread);
      run_segment(tiles[piece.first_tile], piece.segment, thread);
    });
    parallel_for(1, [&](int64_t, int thread) {
      for (int64_t i = 0; i < num_tiles; i++)
        if (tiles[i].parts != nullptr) merge_segments(tiles[i], thread);
    });
  }
};

template <typename Format>
static void run_format(const Args& args) {
  Attention<Format>(args).run();
}

void paged_attention(const Args* args) {
  const Args& a = *args;
  const int64_t end = a.num_sequences > 0 ? a.query_start[a.num_sequences] : 0;
  for (int64_t row = end; row < a.num_rows; row++)
    std::memset(a.out.row<char>(row), 0, a.num_heads * a.head_size * (a.out_dtype == kBFloat16 ? 2 : 4));
#if defined(__AVX512BF16__)
  if (a.q_dtype == kBFloat16 && a.kv_dtype == kBFloat16) return run_format<DotPairs<kBFloat16>>(a);
  if (a.q_dtype == kBFloat16 && a.kv_dtype == kInt8) return run_format<DotPairs<kInt8>>(a);
#endif
  if (a.kv_dtype == kFloat32) return run_format<Float32>(a);
  if (a.kv_dtype == kBFloat16) return run_format<Pairs<kBFloat16>>(a);
  run_format<Pairs<kInt8>>(a);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

OCTAVO_DISPATCH(paged_attention, octavo_paged_attention_args)
