// Register tiles: scores of a few queries with a KV tile's keys, and their weights times its values.
//
// A lane of scores is one token, added up over the dimensions in order; a lane of the weighted values is one column,
// added up over the tokens in order. So neither depends on the shape of the register tile.
#pragma once

#include "attention_formats.h"

namespace octavo {
namespace OCTAVO_ISA {

// kRows x 16 kUnits scores; row r goes to scores + r * kTile. `next`: what to prefetch meanwhile, a unit for each.
template <typename Format, int kRows, int kUnits>
OCTAVO_ALONE static void multiply_keys(const typename Format::Query* const* queries, const char* const* units,
                                       const char* const* next, int64_t head_size, float* scores) {
  constexpr int kColumns = kUnits * kParts;
  F sums[kRows][kColumns];
  const typename Format::Query* q[kRows];
  const char* keys[kUnits];
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; r++) {
    q[r] = queries[r];
    OCTAVO_UNROLL
    for (int c = 0; c < kColumns; c++) sums[r][c] = all(0.0f);
  }
  OCTAVO_UNROLL
  for (int u = 0; u < kUnits; u++) keys[u] = units[u];
  const int64_t num_steps = head_size / Format::kStepSize;
  for (int64_t step = 0; step < num_steps; step++) {
    decltype(Format::load_keys(nullptr)) k[kColumns];
    OCTAVO_UNROLL
    for (int c = 0; c < kColumns; c++)
      k[c] = Format::load_keys(keys[c / kParts] + (step * kParts + c % kParts) * (Format::kStepBytes / kParts));
    OCTAVO_UNROLL
    for (int u = 0; u < kUnits; u++) __builtin_prefetch(next[u] + step * Format::kStepBytes, 0, 2);
    OCTAVO_UNROLL
    for (int r = 0; r < kRows; r++) {
      const auto query = Format::load_query(q[r], step);
      OCTAVO_UNROLL
      for (int c = 0; c < kColumns; c++) sums[r][c] = Format::multiply_keys(sums[r][c], query, k[c]);
    }
  }
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; r++)
    OCTAVO_UNROLL
    for (int c = 0; c < kColumns; c++) store_f(scores + r * kTile + c * kWidth, sums[r][c]);
}

struct ValueTile {
  const char* units[kTileUnits];  // V of each
  const char* next[kTileUnits];
  int first, end;    // the tokens that a row sees, first < end
  int64_t row_size;  // columns of a row of V, a multiple of 16
};

// sums[r] = sums[r] * decay[r] + the weighted values, for 16 kSixteens columns from `column` on.
template <typename Format, int kRows, int kSixteens>
OCTAVO_ALONE static void multiply_values(const float* weights, const ValueTile& tile, int64_t column,
                                         const float* decay, float* sums) {
  constexpr int kColumns = kSixteens * kParts;
  const int64_t row_size = tile.row_size, pair_bytes = 2 * Format::kItemBytes * row_size;
  F s[kRows][kColumns];
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; r++)
    OCTAVO_UNROLL
    for (int c = 0; c < kColumns; c++) s[r][c] = load_f(sums + r * row_size + column + c * kWidth) * all(decay[r]);
  for (int pair = tile.first / 2; pair < (tile.end + 1) / 2; pair++) {
    const int64_t offset = pair % (kUnit / 2) * pair_bytes;
    const char* p = tile.units[pair / (kUnit / 2)] + offset;
    decltype(Format::load_values(nullptr, 0, 0)) v[kColumns];
    OCTAVO_UNROLL
    for (int c = 0; c < kColumns; c++) v[c] = Format::load_values(p, column + c * kWidth, row_size);
    for (int c = 0; c < 2 * Format::kItemBytes * 16 * kSixteens; c += 64)
      __builtin_prefetch(tile.next[pair / (kUnit / 2)] + offset + 2 * Format::kItemBytes * column + c, 0, 2);
    // The token of a pair that no row sees has the weight 0, but what lies there may be NaN.
    const bool lacks_first = 2 * pair < tile.first, lacks_second = 2 * pair + 1 >= tile.end;
    if (lacks_first || lacks_second)
      OCTAVO_UNROLL
      for (int c = 0; c < kColumns; c++) v[c] = Format::keep(v[c], lacks_first);
    OCTAVO_UNROLL
    for (int r = 0; r < kRows; r++) {
      const auto weight = Format::load_weights(weights + r * kTile, pair);
      OCTAVO_UNROLL
      for (int c = 0; c < kColumns; c++) s[r][c] = Format::multiply_weights(s[r][c], weight, v[c]);
    }
  }
  OCTAVO_UNROLL
  for (int r = 0; r < kRows; r++)
    OCTAVO_UNROLL
    for (int c = 0; c < kColumns; c++) store_f(sums + r * row_size + column + c * kWidth, s[r][c]);
}

template <int kNumber>
struct Number {
  static constexpr int value = kNumber;
};

// Calls f with Number<number>(), number from 1 to kMost.
template <int kMost, typename Body>
static inline void with_number(int number, const Body& f) {
  if constexpr (kMost > 1) {
    if (number < kMost) return with_number<kMost - 1>(number, f);
  }
  f(Number<kMost>());
}

// Scores of `num_rows` queries (at most Format::kMostRows) with units first ... end - 1 of a tile.
template <typename Format>
static inline void multiply_keys_of(int num_rows, int first, int end, const typename Format::Query* const* queries,
                                    const char* const* units, const char* const* next, int64_t head_size,
                                    float* scores) {
  with_number<Format::kMostRows>(num_rows, [&](auto rows) {
    for (int unit = first; unit < end; unit += Format::kMostUnits) {
      const int left = end - unit;
      with_number<Format::kMostUnits>(left < Format::kMostUnits ? left : Format::kMostUnits, [&](auto count) {
        multiply_keys<Format, decltype(rows)::value, decltype(count)::value>(
            queries, units + unit, next + unit, head_size, scores + unit * kUnit);
      });
    }
  });
}

template <typename Format>
static inline void multiply_values_of(int num_rows, const float* weights, const ValueTile& tile, const float* decay,
                                      float* sums) {
  with_number<Format::kMostRows>(num_rows, [&](auto rows) {
    const int num_sixteens = static_cast<int>(tile.row_size / 16);
    for (int sixteen = 0; sixteen < num_sixteens; sixteen += Format::kMostUnits) {
      const int left = num_sixteens - sixteen;
      with_number<Format::kMostUnits>(left < Format::kMostUnits ? left : Format::kMostUnits, [&](auto count) {
        multiply_values<Format, decltype(rows)::value, decltype(count)::value>(weights, tile, sixteen * 16,
                                                                                          decay, sums);
      });
    }
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
