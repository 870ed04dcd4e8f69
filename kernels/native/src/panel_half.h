// What is packed at a time: 16 outputs of a weight [N, K] as a checkpoint has it.
#pragma once

#include <cmath>

#include "linear.h"
#include "vec.h"

namespace octavo {

constexpr float kLargestFinite = 3.4028235e38f;
constexpr float kSmallestScaled = 1e-30f;  // what has nothing larger counts as zeros: its scale would have no inverse

// To the nearest, ties to even.
static inline int nearest(float x) { return static_cast<int>(x + 12582912.0f - 12582912.0f); }

// One half (16 lanes) of a panel. Lanes beyond the weight are zeros.
struct PanelHalf {
  const octavo_pack_linear_args& args;
  Lanes lanes;
  float inverse_scales[16];
  float* scales;  // [16], int8 and uint4 only
  int index;      // 0 or 1
  char* packed;   // the panel's segment

  char* step(int64_t i) const { return packed + i * kPanelStepBytes + index * 64; }

  template <typename T>
  const T* source(int lane) const {
    return args.source.row<T>(lanes.first + lane);
  }

  float value(int lane, int64_t k) const {
    return args.source_dtype == kFloat32 ? source<float>(lane)[k] : from_bf16(source<uint16_t>(lane)[k]);
  }
};

}  // namespace octavo
