// x [M, K] times a packed weight: inputs are packed, then every thread takes (block of rows, panel) units in order.
//
// Which thread computes a unit, and how many rows a tile has, changes no bit.
#include "linear.h"

#include <utility>

#include "isa.h"
#include "units.h"
#include "vec.h"

#if defined(OCTAVO_ISA_AVX512)
#include "tile_avx512.h"
#elif defined(OCTAVO_ISA_AVX2)
#include "tile_avx2.h"
#else
#include "tile_generic.h"
#endif
#include "linear_inputs.h"
#include "linear_results.h"
#if defined(OCTAVO_ISA_AMX)
#include "linear_amx.h"
#endif

namespace octavo {
namespace OCTAVO_ISA {
namespace {

constexpr int64_t kBlockBytes = 384 << 10;     // inputs that stay in a core's cache while panels pass by

template <int R>
void multiply(const octavo_linear_args& args, const char* weight, const InputTile& tile, int64_t segment,
              int64_t steps, float* out, Ahead ahead) {
  const int64_t place = segment * steps * R;
  if (args.weight_dtype == kFloat32)
    return float_tile<R>(weight, static_cast<const FloatInput*>(tile.inputs) + place, steps, out, ahead);
  if (args.weight_dtype == kBFloat16)
    return bf16_tile<R>(weight, static_cast<const BFloat16Input*>(tile.inputs) + place, steps, out, ahead);
  const int64_t steps_per_group = args.group_size / inputs_per_step(args.weight_dtype);
  const int64_t groups = segment * ceil_div(steps, steps_per_group) * R;
  const GroupScales scales = {tile.scales + groups, tile.corrections + groups, steps_per_group};
  if (args.weight_dtype == kUint4)
    return uint4_tile<R>(weight, static_cast<const Uint4Input*>(tile.inputs) + place, scales, steps, out, ahead);
  int8_tile<R>(weight, static_cast<const Int8Input*>(tile.inputs) + place, scales, steps, out, ahead);
}

using Multiply = void (*)(const octavo_linear_args&, const char*, const InputTile&, int64_t, int64_t, float*, Ahead);

template <int... R>
Multiply multiply_rows(int64_t count, std::integer_sequence<int, R...>) {
  static constexpr Multiply functions[] = {multiply<R + 1>...};
  return functions[count - 1];
}

int64_t input_size(int64_t weight_dtype) {
  return weight_dtype == kFloat32 ? sizeof(FloatInput)
         : weight_dtype == kBFloat16 ? sizeof(BFloat16Input)
         : weight_dtype == kInt8   ? sizeof(Int8Input)
                                   : sizeof(Uint4Input);
}

struct Linear {
  const octavo_linear_args& args;
  int64_t steps;          // of a segment
  int64_t segment_bytes;  // of a panel
  int64_t groups;         // of a segment
  int64_t input_bytes;    // of a step of a row
  int64_t panels;
  int64_t tiles;
  int64_t tiles_per_block;
  char* inputs;
  float* scales;
  int32_t* corrections;

  explicit Linear(const octavo_linear_args& arguments) : args(arguments) {
    steps = steps_of_segment(args.weight_dtype, args.num_inputs / args.segments);
    segment_bytes = bytes_of_steps(args.weight_dtype, steps);
    groups = args.group_size != 0 ? ceil_div(args.num_inputs / args.segments, args.group_size) : 0;
    input_bytes = input_size(args.weight_dtype);
    panels = num_panels(args.num_outputs, args.is_gated != 0);
    tiles = ceil_div(args.num_rows, kMaxTileRows);
    const int64_t tile_bytes = ceil_div(args.num_rows, tiles) * args.segments * steps * input_bytes;
    tiles_per_block = kBlockBytes / tile_bytes > 0 ? kBlockBytes / tile_bytes : 1;
    allocate_inputs();
  }

  void allocate_inputs() {
    const int64_t input_size = ceil_div(args.num_rows * args.segments * steps * input_bytes, 64) * 64;
    const int64_t scale_size = ceil_div(args.num_rows * args.segments * groups * sizeof(float), 64) * 64;
    inputs = static_cast<char*>(thread_scratch(0, input_size + 2 * scale_size));
    scales = reinterpret_cast<float*>(inputs + input_size);
    corrections = reinterpret_cast<int32_t*>(inputs + input_size + scale_size);
  }

  // Rows are dealt out evenly: tiles differ by one row at most.
  InputTile tile(int64_t index) const {
    const int64_t first = args.num_rows * index / tiles, end = args.num_rows * (index + 1) / tiles;
    const int64_t row_groups = args.segments * groups;
    return {first, end - first, inputs + first * args.segments * steps * input_bytes, scales + first * row_groups,
            corrections + first * row_groups};
  }

  void pack_tile(int64_t index) const {
    if (args.weight_dtype == kFloat32) return pack_float_inputs(args, tile(index));
    if (args.weight_dtype == kBFloat16) return pack_bf16_inputs(args, tile(index));
    if (args.weight_dtype == kInt8) return pack_quantized_inputs<Int8Inputs>(args, tile(index));
    pack_quantized_inputs<Uint4Inputs>(args, tile(index));
  }

  void pack() const {
    pack_tiles(args, tiles, [this](int64_t index) { pack_tile(index); });
  }

  // One panel times the tiles of a block. Its inputs are in a near cache, and after the first tile the panel is too.
  void compute(int64_t block, int64_t panel) const {
    alignas(64) float sums[kMaxSegments * kMaxTileRows * kPanelLanes];
    const int64_t panel_bytes = args.segments * segment_bytes;
    const char* weight = static_cast<const char*>(args.weight) + panel * panel_bytes;
    const int64_t begin = block * tiles_per_block;
    const int64_t end = begin + tiles_per_block < tiles ? begin + tiles_per_block : tiles;
    for (int64_t index = begin; index < end; index++) {
      const InputTile rows = tile(index);
      const Multiply function = multiply_rows(rows.count, std::make_integer_sequence<int, kMaxTileRows>());
      for (int64_t segment = 0; segment < args.segments; segment++) {
        const char* part = weight + segment * segment_bytes;
        function(args, part, rows, segment, steps, sums + segment * rows.count * kPanelLanes,
                 ahead_of(part, panel_bytes, rows, index - begin, end - begin));
      }
      finish_tile(args, panel, rows.first, rows.count, rows.count * kPanelLanes, sums);
    }
  }

  // A lone tile asks for what it needs soon; of several the last asks for the next panel.
  static Ahead ahead_of(const char* weight, int64_t panel_bytes, const InputTile& rows, int64_t index, int64_t count) {
    if (count == 1) return {weight + prefetch_distance(rows.count), kPanelStepBytes};
    if (index == count - 1) return {weight + panel_bytes, kPanelStepBytes};
    return {weight, 0};
  }

  void run() const {
    const int64_t blocks = ceil_div(tiles, tiles_per_block);
    share_units(blocks * panels, [this](Units units) {
      for (int64_t unit; (unit = units.take()) >= 0;) compute(unit / panels, unit % panels);
    });
  }
};

template <typename Method>
void multiply_with(const octavo_linear_args& args) {
  const Method method(args);
  method.pack();
  method.run();
}

}  // namespace

void linear(const octavo_linear_args* args) {
  if (args->num_rows == 0 || args->num_outputs == 0) return;
#if defined(OCTAVO_ISA_AMX)
  if (MatrixLinear::suits(*args)) return multiply_with<MatrixLinear>(*args);
#endif
  multiply_with<Linear>(*args);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

OCTAVO_DISPATCH_WITH_AMX(linear, octavo_linear_args)
