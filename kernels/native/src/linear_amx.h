// Linear layers on matrix tiles (AMX): 16 rows or fewer by one panel, 64 bytes of K at a time.
//
// bfloat16: a lane adds its even and its odd inputs apart over 32, then both to its sum; whatever the number of rows.
// int8: exact sums in a group of 64, scaled and added as every other instruction set does, so the bits are theirs.
#pragma once

#include <immintrin.h>

#include "linear_inputs.h"
#include "linear_results.h"
#include "tiles.h"
#include "units.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int kMatrixRows = 16;       // of a tile, at most
constexpr int kMatrixRowBytes = 64;   // of a tile; of K: 32 bfloat16 or 64 int8
constexpr int64_t kStepsAtOnce = 16;  // of a panel: the rows of a tile of weights
constexpr int64_t kWeightBytes = kStepsAtOnce * kPanelStepBytes;
constexpr int64_t kInputsAtOnceInt8 = 64;
constexpr int64_t kMinRowsInt8 = 12;  // fewer rows of int8 are as fast, and simpler, on vectors
constexpr int64_t kMatrixBlockBytes = 768 << 10;  // inputs of rows that one thread takes at once

// Registers: sums of two tiles of rows by the panel's halves, their inputs, the halves' weights. (GCC pastes these into
// assembly, so they are macros.)
#define OCTAVO_SUMS00 0
#define OCTAVO_SUMS01 1
#define OCTAVO_SUMS10 2
#define OCTAVO_SUMS11 3
#define OCTAVO_INPUTS0 4
#define OCTAVO_INPUTS1 5
#define OCTAVO_WEIGHTS0 6
#define OCTAVO_WEIGHTS1 7

struct alignas(64) MatrixShape {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  explicit MatrixShape(int64_t num_rows) {
    for (int i = OCTAVO_SUMS00; i <= OCTAVO_WEIGHTS1; i++) {
      row_bytes[i] = kMatrixRowBytes;
      rows[i] = static_cast<uint8_t>(i >= OCTAVO_WEIGHTS0 ? kStepsAtOnce : num_rows);
    }
  }
};

// Inputs of P tiles of rows in one segment: [step of K][row][64 bytes], and int8's scales [step of K][row].
template <int P>
struct MatrixInputs {
  const char* inputs[P];
  const float* scales[P];
  const int32_t* corrections[P];
  int64_t rows;
};

template <int P>
static inline __attribute__((always_inline)) void load_operands(const char* weight, const MatrixInputs<P>& x,
                                                                int64_t step) {
  const int64_t place = step * x.rows * kMatrixRowBytes;
  _tile_stream_loadd(OCTAVO_WEIGHTS0, weight, kPanelStepBytes);  // past the nearest cache, where inputs are
  _tile_loadd(OCTAVO_INPUTS0, x.inputs[0] + place, kMatrixRowBytes);
  _tile_stream_loadd(OCTAVO_WEIGHTS1, weight + kMatrixRowBytes, kPanelStepBytes);
  if constexpr (P == 2) _tile_loadd(OCTAVO_INPUTS1, x.inputs[1] + place, kMatrixRowBytes);
}

static inline __attribute__((always_inline)) void clear_sums() {
  _tile_zero(OCTAVO_SUMS00);
  _tile_zero(OCTAVO_SUMS01);
  _tile_zero(OCTAVO_SUMS10);
  _tile_zero(OCTAVO_SUMS11);
}

template <int P>
static inline __attribute__((always_inline)) void add_bf16_products() {
  _tile_dpbf16ps(OCTAVO_SUMS00, OCTAVO_INPUTS0, OCTAVO_WEIGHTS0);
  _tile_dpbf16ps(OCTAVO_SUMS01, OCTAVO_INPUTS0, OCTAVO_WEIGHTS1);
  if constexpr (P == 2) {
    _tile_dpbf16ps(OCTAVO_SUMS10, OCTAVO_INPUTS1, OCTAVO_WEIGHTS0);
    _tile_dpbf16ps(OCTAVO_SUMS11, OCTAVO_INPUTS1, OCTAVO_WEIGHTS1);
  }
}

template <int P>
static inline __attribute__((always_inline)) void add_int8_products() {
  _tile_dpbsud(OCTAVO_SUMS00, OCTAVO_INPUTS0, OCTAVO_WEIGHTS0);
  _tile_dpbsud(OCTAVO_SUMS01, OCTAVO_INPUTS0, OCTAVO_WEIGHTS1);
  if constexpr (P == 2) {
    _tile_dpbsud(OCTAVO_SUMS10, OCTAVO_INPUTS1, OCTAVO_WEIGHTS0);
    _tile_dpbsud(OCTAVO_SUMS11, OCTAVO_INPUTS1, OCTAVO_WEIGHTS1);
  }
}

// Sums of tile p go to out[p], [row][32].
template <int P, typename T>
static inline __attribute__((always_inline)) void store_sums(T* const* out) {
  constexpr int64_t kStride = kPanelLanes * sizeof(T);
  _tile_stored(OCTAVO_SUMS00, out[0], kStride);
  _tile_stored(OCTAVO_SUMS01, out[0] + kLanes, kStride);
  if constexpr (P == 2) {
    _tile_stored(OCTAVO_SUMS10, out[1], kStride);
    _tile_stored(OCTAVO_SUMS11, out[1] + kLanes, kStride);
  }
}

// Asks for the weights that a lone tile needs soon.
static inline void fetch_weights(const char* next) {
#pragma GCC unroll 32
  for (int64_t i = 0; i < kWeightBytes; i += 64) __builtin_prefetch(next + i, 0, 2);
}

// `last`: the last step's weights, which lie elsewhere where the segment ends within them.
template <int P>
static void bf16_sums(const char* weight, const char* last, const MatrixInputs<P>& x, int64_t steps, int64_t ahead,
                      float* const* out) {
  clear_sums();
  for (int64_t step = 0; step < steps; step++) {
    load_operands<P>(step + 1 == steps ? last : weight, x, step);
    if (ahead != 0) fetch_weights(weight + ahead);
    add_bf16_products<P>();
    weight += kWeightBytes;
  }
  store_sums<P>(out);
}

static inline void add_scaled(const int32_t* products, const float* scales, const int32_t* corrections, int64_t rows,
                              float* sums) {
  for (int64_t r = 0; r < rows; r++) {
    const __m512 scale = _mm512_set1_ps(scales[r]);
    const __m512i correction = _mm512_set1_epi32(corrections[r]);
    for (int64_t lane = 0; lane < kPanelLanes; lane += kLanes) {
      float* sum = sums + r * kPanelLanes + lane;
      const __m512i exact = _mm512_add_epi32(_mm512_load_si512(products + r * kPanelLanes + lane), correction);
      _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), _mm512_mul_ps(_mm512_cvtepi32_ps(exact), scale)));
    }
  }
}

template <int P>
static void int8_sums(const char* weight, const MatrixInputs<P>& x, int64_t steps, int64_t ahead, float* const* out) {
  alignas(64) int32_t products[P][kMatrixRows * kPanelLanes];
  int32_t* places[P];
  for (int p = 0; p < P; p++) {
    places[p] = products[p];
    std::memset(out[p], 0, x.rows * kPanelLanes * sizeof(float));
  }
  for (int64_t step = 0; step < steps; step++) {
    clear_sums();
    load_operands<P>(weight, x, step);
    if (ahead != 0) fetch_weights(weight + ahead);
    add_int8_products<P>();
    store_sums<P>(places);
    for (int p = 0; p < P; p++)
      add_scaled(products[p], x.scales[p] + step * x.rows, x.corrections[p] + step * x.rows, x.rows, out[p]);
    weight += kWeightBytes;
  }
}

struct MatrixLinear {
  const octavo_linear_args& args;
  int64_t segment_steps;  // of the packed weight
  int64_t steps;          // of a segment: tiles of weights, the last one possibly in part
  int64_t panels;
  int64_t tiles;
  int64_t rows;  // of every tile; one of them may be zeros
  int64_t tiles_per_block;
  char* inputs;          // [tile][segment][step][row][64 bytes]
  float* scales;         // [tile][segment][step][row], int8 only
  int32_t* corrections;  // the same

  static bool suits(const octavo_linear_args& args) {
    if (args.weight_dtype == kBFloat16) return true;
    const bool is_whole = args.num_inputs / args.segments % kInputsAtOnceInt8 == 0;
    return args.weight_dtype == kInt8 && args.group_size == kInputsAtOnceInt8 && is_whole &&
           args.num_rows >= kMinRowsInt8;
  }

  explicit MatrixLinear(const octavo_linear_args& arguments) : args(arguments) {
    segment_steps = steps_of_segment(args.weight_dtype, args.num_inputs / args.segments);
    steps = ceil_div(segment_steps, kStepsAtOnce);
    panels = num_panels(args.num_outputs, args.is_gated != 0);
    tiles = ceil_div(args.num_rows, kMatrixRows);
    rows = ceil_div(args.num_rows, tiles);
    const int64_t pairs_per_block = kMatrixBlockBytes / (2 * tile_steps() * rows * kMatrixRowBytes);
    tiles_per_block = 2 * (pairs_per_block > 0 ? pairs_per_block : 1);
    const int64_t input_bytes = tiles * tile_steps() * rows * kMatrixRowBytes;
    const int64_t num_scales = args.weight_dtype == kInt8 ? tiles * tile_steps() * rows : 0;
    inputs = static_cast<char*>(thread_scratch(0, input_bytes + 2 * num_scales * sizeof(float)));
    scales = reinterpret_cast<float*>(inputs + input_bytes);
    corrections = reinterpret_cast<int32_t*>(scales + num_scales);
  }

  int64_t tile_steps() const { return args.segments * steps; }

  // Rows are dealt out evenly: tiles differ by one row at most.
  int64_t first_row(int64_t tile) const { return args.num_rows * tile / tiles; }

  void pack_row(int64_t tile, int64_t r) const {
    const int64_t row = first_row(tile) + r, place = tile * tile_steps() * rows + r;
    const bool is_missing = row >= first_row(tile + 1);
    for (int64_t step = 0; step < tile_steps(); step++) {
      char* packed = inputs + (place + step * rows) * kMatrixRowBytes;
      if (args.weight_dtype == kBFloat16) {
        pack_bf16(is_missing, row, step, packed);
      } else {
        pack_int8(is_missing, row, step, packed, place + step * rows);
      }
    }
  }

  void pack_bf16(bool is_missing, int64_t row, int64_t step, char* packed) const {
    const int64_t size = args.num_inputs / args.segments, k = step % steps * 2 * kStepsAtOnce;
    int64_t count = size - k < 2 * kStepsAtOnce ? size - k : 2 * kStepsAtOnce;
    if (is_missing) count = 0;
    if (count < 2 * kStepsAtOnce) std::memset(packed, 0, kMatrixRowBytes);
    if (count > 0) std::memcpy(packed, args.x.row<uint16_t>(row) + step / steps * size + k, count * sizeof(uint16_t));
  }

  void pack_int8(bool is_missing, int64_t row, int64_t step, char* packed, int64_t place) const {
    QuantizedGroup group = {};
    if (!is_missing) {
      Vec x[kMaxGroup / kLanes];
      for (int i = 0; i < kMaxGroup / kLanes; i++)
        x[i] = load_inputs(args, row, step * kInputsAtOnceInt8 + i * kLanes, kLanes);
      quantize_group(x, kMaxGroup / kLanes, &group);
    }
    std::memcpy(packed, group.values, kMatrixRowBytes);
    scales[place] = group.scale;
    corrections[place] = -128 * group.sum;
  }

  void pack_tile(int64_t tile) const {
    for (int64_t r = 0; r < rows; r++) pack_row(tile, r);
  }

  void pack() const {
    pack_tiles(args, tiles, [this](int64_t tile) { pack_tile(tile); });
  }

  template <int P>
  MatrixInputs<P> inputs_of(int64_t tile, int64_t segment) const {
    MatrixInputs<P> x;
    x.rows = rows;
    for (int p = 0; p < P; p++) {
      const int64_t place = ((tile + p) * args.segments + segment) * steps * rows;
      x.inputs[p] = inputs + place * kMatrixRowBytes;
      x.scales[p] = scales + place;
      x.corrections[p] = corrections + place;
    }
    return x;
  }

  // P tiles of rows times one panel.
  template <int P>
  void compute_tiles(int64_t tile, int64_t panel, int64_t ahead) const {
    alignas(64) float sums[P][kMaxSegments * kMatrixRows * kPanelLanes];
    const int64_t segment_bytes = segment_steps * kPanelStepBytes;
    const char* weight = static_cast<const char*>(args.weight) + panel * args.segments * segment_bytes;
    for (int64_t segment = 0; segment < args.segments; segment++) {
      float* out[P];
      for (int p = 0; p < P; p++) out[p] = sums[p] + segment * rows * kPanelLanes;
      add_segment<P>(weight + segment * segment_bytes, tile, segment, ahead, out);
    }
    for (int p = 0; p < P; p++) {
      const int64_t first = first_row(tile + p);
      finish_tile(args, panel, first, first_row(tile + p + 1) - first, rows * kPanelLanes, sums[p]);
    }
  }

  template <int P>
  void add_segment(const char* weight, int64_t tile, int64_t segment, int64_t ahead, float* const* out) const {
    const MatrixInputs<P> x = inputs_of<P>(tile, segment);
    if (args.weight_dtype == kInt8) return int8_sums<P>(weight, x, steps, ahead, out);
    const int64_t whole_steps = segment_steps / kStepsAtOnce;
    const char* last = weight + whole_steps * kWeightBytes;
    if (whole_steps == steps) return bf16_sums<P>(weight, last - kWeightBytes, x, steps, ahead, out);
    // The segment ends within the last tile of weights: there are zeros behind it, as behind the inputs.
    alignas(64) char padded[kWeightBytes] = {};
    std::memcpy(padded, last, segment_steps % kStepsAtOnce * kPanelStepBytes);
    bf16_sums<P>(weight, padded, x, steps, ahead, out);
  }

  // A block of rows times some panels. Two tiles of rows stay in the nearest cache while the panels pass by, the panels
  // in the next one until the block is done; only at first do they come from memory.
  void compute(int64_t block, int64_t first_panel, int64_t end_panel) const {
    const int64_t begin = block * tiles_per_block;
    const int64_t end = begin + tiles_per_block < tiles ? begin + tiles_per_block : tiles;
    for (int64_t tile = begin; tile < end; tile += 2) {
      const int64_t ahead = tile == begin ? kFetchDistance : 0;
      for (int64_t panel = first_panel; panel < end_panel; panel++) {
        if (tile + 1 < end) {
          compute_tiles<2>(tile, panel, ahead);
        } else {
          compute_tiles<1>(tile, panel, ahead);
        }
      }
    }
  }

  // Lone tiles pass through the weights once, so threads may share them panel by panel.
  int64_t panels_at_once() const {
    if (tiles <= 2) return 1;
    const int64_t fit = kPanelBytesAtOnce / (args.segments * segment_steps * kPanelStepBytes);
    const int64_t fair = panels / (2 * num_threads()), count = fit < fair ? fit : fair;
    return count > 0 ? count : 1;
  }

  void run() const {
    const MatrixShape shape(rows);
    const int64_t blocks = ceil_div(tiles, tiles_per_block);
    const int64_t at_once = panels_at_once(), chunks = ceil_div(panels, at_once);
    share_units(blocks * chunks, [&](Units units) {
      _tile_loadconfig(&shape);
      for (int64_t unit; (unit = units.take()) >= 0;) {
        const int64_t first = unit % chunks * at_once;
        compute(unit / chunks, first, first + at_once < panels ? first + at_once : panels);
      }
      _tile_release();
    });
  }

  static constexpr int64_t kFetchDistance = 8 * kWeightBytes;
  static constexpr int64_t kPanelBytesAtOnce = 160 << 10;  // measured: more is slower
};

}  // namespace OCTAVO_ISA
}  // namespace octavo
