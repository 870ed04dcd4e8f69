// Linear layers: the arguments, the packed layout and how the work is cut. Shared by packing and multiplying.
//
// A weight [N, K] is packed as panels of 32 outputs: [N / 32][segment][step][32][inputs of a step], every step 128
// bytes: 1 float32, 2 bfloat16, 4 int8 (stored + 128) or 8 uint4 inputs. A segment is K / S inputs, padded to whole steps.
//
// In a step of uint4 a lane's four bytes hold its first four inputs in their low halves, the next four in their high
// ones. After every group of 32 inputs, four steps, come the lanes' factors, uint16 [32]: scale << 4 | zero. A weight is
// (value - zero) * scale * its channel's scale.
#pragma once

#include "common.h"

struct octavo_linear_args {
  octavo::Rows x;
  octavo::Rows out;
  octavo::Rows residual;
  const void* weight;
  const float* bias;            // [N], or null
  const float* channel_scales;  // [padded N] in packed order, int8 and uint4 only
  int64_t num_rows;
  int64_t num_inputs;
  int64_t num_outputs;  // N of the weight; with silu_and_mul the result has half as many
  int64_t segments;
  int64_t weight_dtype;
  int64_t input_dtype;
  int64_t group_size;  // inputs that share a scale, int8 and uint4 only
  int64_t is_gated;    // the weight's first half is gate, its second up, packed side by side
  int64_t epilogue;
  int64_t out_dtype;
};

struct octavo_pack_linear_args {
  octavo::Rows source;  // [N, K]
  void* packed;
  float* channel_scales;
  int64_t num_inputs;
  int64_t num_outputs;
  int64_t segments;
  int64_t source_dtype;
  int64_t weight_dtype;
  int64_t is_gated;
};

namespace octavo {

enum Epilogue : int64_t { kNoEpilogue = 0, kResidual = 1, kSiluAndMul = 2 };

constexpr int kPanelLanes = 32;
constexpr int kPanelStepBytes = 128;
constexpr int kMaxSegments = 32;
constexpr int kUint4Group = 32;
constexpr int kUint4Steps = 4;  // of a group
constexpr int kUint4FactorBytes = 64;
constexpr int kUint4GroupBytes = kUint4Steps * kPanelStepBytes + kUint4FactorBytes;

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t inputs_per_step(int64_t weight_dtype) {
  return weight_dtype == kFloat32 ? 1 : weight_dtype == kBFloat16 ? 2 : weight_dtype == kInt8 ? 4 : 8;
}

static inline int64_t steps_of_segment(int64_t weight_dtype, int64_t segment_inputs) {
  if (weight_dtype == kUint4) return ceil_div(segment_inputs, kUint4Group) * kUint4Steps;
  return ceil_div(segment_inputs, inputs_per_step(weight_dtype));
}

static inline int64_t bytes_of_steps(int64_t weight_dtype, int64_t steps) {
  return weight_dtype == kUint4 ? steps / kUint4Steps * kUint4GroupBytes : steps * kPanelStepBytes;
}

// A gated weight's panel is 16 gate and the 16 up outputs beside them, any other's 32 outputs in a row.
static inline int64_t num_panels(int64_t num_outputs, bool is_gated) {
  return is_gated ? ceil_div(num_outputs / 2, kPanelLanes / 2) : ceil_div(num_outputs, kPanelLanes);
}

// The outputs of one half (16 lanes) of a panel: the first, and how many there are (0 ... 16).
struct Lanes {
  int64_t first;
  int count;
};

static inline Lanes panel_lanes(int64_t panel, int half, int64_t num_outputs, bool is_gated) {
  const int64_t size = is_gated ? num_outputs / 2 : num_outputs;
  const int64_t column = is_gated ? panel * 16 : panel * 32 + half * 16;
  const int64_t left = size - column;
  return {column + (is_gated && half == 1 ? size : 0), static_cast<int>(left < 0 ? 0 : left < 16 ? left : 16)};
}

}  // namespace octavo
