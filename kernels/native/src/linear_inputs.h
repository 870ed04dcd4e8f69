// The rows of a linear layer as its tiles want them: [tile][segment][step][row of the tile], quantized for int8 and uint4.
#pragma once

#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

constexpr int64_t kParallelInputs = 32 << 10;  // fewer are packed by the caller

// body(tile) for each tile of rows, by all threads where the inputs are worth waking them.
template <typename Body>
static inline void pack_tiles(const octavo_linear_args& args, int64_t tiles, const Body& body) {
  if (args.num_rows * args.num_inputs > kParallelInputs) {
    parallel_for(tiles, [&body](int64_t tile, int) { body(tile); });
  } else {
    for (int64_t tile = 0; tile < tiles; tile++) body(tile);
  }
}

// Rows first ... first + count - 1, and where they go.
struct InputTile {
  int64_t first;
  int64_t count;
  void* inputs;          // [segment][step][count]
  float* scales;         // [segment][group][count], int8 and uint4 only
  int32_t* corrections;  // the same
};

static void pack_float_inputs(const octavo_linear_args& args, const InputTile& tile) {
  for (int64_t r = 0; r < tile.count; r++) {
    const float* x = args.x.row<float>(tile.first + r);
    FloatInput* inputs = static_cast<FloatInput*>(tile.inputs) + r;
    for (int64_t k = 0; k < args.num_inputs; k++) inputs[k * tile.count] = x[k];
  }
}

static void pack_bf16_inputs(const octavo_linear_args& args, const InputTile& tile) {
  const int64_t size = args.num_inputs / args.segments;
  for (int64_t r = 0; r < tile.count; r++) {
    BFloat16Input* inputs = static_cast<BFloat16Input*>(tile.inputs) + r;
    for (int64_t segment = 0; segment < args.segments; segment++) {
      const uint16_t* x = args.x.row<uint16_t>(tile.first + r) + segment * size;
      for (int64_t i = 0; i < size / 2; i++, inputs += tile.count) {
        uint32_t pair;
        std::memcpy(&pair, x + 2 * i, sizeof pair);
        *inputs = bf16_input(pair);
      }
      if (size % 2 != 0) *inputs = bf16_input(x[size - 1]), inputs += tile.count;
    }
  }
}

// Up to 16 inputs as float32, zeros after them.
static inline Vec load_inputs(const octavo_linear_args& args, int64_t row, int64_t k, int64_t count) {
  if (args.input_dtype == kFloat32) {
    const float* x = args.x.row<float>(row) + k;
    return count >= kLanes ? load(x) : load_part(x, static_cast<int>(count));
  }
  const uint16_t* x = args.x.row<uint16_t>(row) + k;
  if (count >= kLanes) return load_bf16(x);
  uint16_t half[kLanes] = {};
  std::memcpy(half, x, count * sizeof(uint16_t));
  return load_bf16(half);
}

typedef int32_t IntEight __attribute__((vector_size(32)));
typedef int32_t IntFourths __attribute__((vector_size(16)));

struct Larger {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
};

// Halves upon halves until one number is left.
template <typename Operation>
static inline int32_t reduce(IntVec v, Operation operation) {
  IntEight eight[2];
  IntFourths four[2];
  std::memcpy(eight, &v, sizeof v);
  const IntEight halves = operation(eight[0], eight[1]);
  std::memcpy(four, &halves, sizeof halves);
  const IntFourths rest = operation(four[0], four[1]);
  return operation(operation(rest[0], rest[2]), operation(rest[1], rest[3]));
}

constexpr int64_t kMaxGroup = 64;
constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
constexpr int32_t kInfinityBits = 0x7F800000;

typedef int8_t ByteVec __attribute__((vector_size(16)));

struct QuantizedGroup {
  int8_t values[kMaxGroup] = {};
  float scale;
  int32_t sum;
};

// Symmetric: scale = max|x| / 127, values to the nearest, ties to even. A group with an infinity or a NaN has the
// scale NaN, which is what all its results become.
static inline void quantize_group(const Vec* x, int num_vectors, QuantizedGroup* group) {
  IntVec magnitude = {};
  for (int i = 0; i < num_vectors; i++) {
    magnitude = Larger()(magnitude, as_int(x[i]) & INT32_MAX);
  }
  const int32_t bits = reduce(magnitude, Larger());
  float most;
  std::memcpy(&most, &bits, sizeof most);
  const bool is_finite = bits < kInfinityBits, is_usable = is_finite && most > 1e-30f;
  group->scale = is_finite ? (is_usable ? most / 127.0f : 0.0f) : __builtin_nanf("");
  const float inverse = is_usable ? 127.0f / most : 0.0f;
  IntVec sum = {};
  for (int i = 0; i < num_vectors; i++) {
    const Vec rounded = x[i] * splat(inverse) + splat(kRoundToInteger);
    const IntVec value = is_usable ? as_int(rounded) - as_int(splat(kRoundToInteger)) : IntVec{};
    sum += value;
    const ByteVec bytes = __builtin_convertvector(value, ByteVec);
    std::memcpy(group->values + i * kLanes, &bytes, sizeof bytes);
  }
  group->sum = reduce(sum, Sum());
}

struct Int8Inputs {
  using Input = Int8Input;
  static constexpr int32_t kCorrection = -128;

  static int64_t steps(int64_t count) { return ceil_div(count, 4); }
  static Input step(const int8_t* values, int64_t i) {
    uint32_t four;
    std::memcpy(&four, values + 4 * i, sizeof four);
    return int8_input(four);
  }
};

struct Uint4Inputs {
  using Input = Uint4Input;
  static constexpr int32_t kCorrection = -1;

  static int64_t steps(int64_t) { return kUint4Steps; }
  static Input step(const int8_t* values, int64_t i) {
    uint32_t fours[2];
    std::memcpy(fours, values + 8 * i, sizeof fours);
    return uint4_input(fours[0], fours[1]);
  }
};

template <typename Format>
static void pack_quantized_inputs(const octavo_linear_args& args, const InputTile& tile) {
  const int64_t size = args.num_inputs / args.segments;
  for (int64_t r = 0; r < tile.count; r++) {
    typename Format::Input* inputs = static_cast<typename Format::Input*>(tile.inputs) + r;
    int64_t place = r;
    for (int64_t start = 0; start < args.num_inputs; start += size) {
      for (int64_t k = 0; k < size; k += args.group_size, place += tile.count) {
        const int64_t count = size - k < args.group_size ? size - k : args.group_size;
        const int num_vectors = static_cast<int>(ceil_div(count, kLanes));
        Vec x[kMaxGroup / kLanes];
        for (int i = 0; i < num_vectors; i++)
          x[i] = load_inputs(args, tile.first + r, start + k + i * kLanes, count - i * kLanes);
        QuantizedGroup group;
        quantize_group(x, num_vectors, &group);
        tile.scales[place] = group.scale;
        tile.corrections[place] = Format::kCorrection * group.sum;
        for (int64_t i = 0; i < Format::steps(count); i++, inputs += tile.count)
          *inputs = Format::step(group.values, i);
      }
    }
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
