// Weights of four bits, asymmetric, in groups of 32 inputs: which scale and zero a group gets, and where all that goes.
//
// Of a few scales and zeros the one is taken that leaves the least squared error: somewhat smaller scales than the range
// asks for cut off the largest weights and make the rest finer. A scale is kept as a whole number of 4095ths of its
// output's largest; twelve bits and the zero's four make one factor. Values are found with the scale as it is kept.
#pragma once

#include <vector>

#include "panel_half.h"

namespace octavo {

constexpr float kMostOfFour = 15.0f;
constexpr float kMostOfTwelve = 4095.0f;
constexpr float kShares[] = {1.0f, 0.93f, 0.86f, 0.8f, 0.74f};  // of the scale at which nothing is cut off

static inline float least(float a, float b) { return a < b ? a : b; }
static inline float most(float a, float b) { return a > b ? a : b; }

struct Uint4Scale {
  float scale = 0.0f;
  float zero = 0.0f;
};

// The weights of a group, zeros after the last, and their range, which includes zero.
struct Uint4Weights {
  float values[kUint4Group] = {};
  float lowest = 0.0f, highest = 0.0f;
  bool is_finite = true;

  Uint4Weights(const PanelHalf& half, int lane, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
      values[i] = half.value(lane, first + i);
      is_finite &= std::fabs(values[i]) <= kLargestFinite;
    }
    for (float value : values) lowest = least(value, lowest), highest = most(value, highest);
    is_finite &= highest - lowest <= kLargestFinite;
  }

  // A weight in units of the scale, to the nearest whole number that four bits can say.
  static inline float whole(float value, float inverse, float zero) {
    const float nearest = value * inverse + 12582912.0f - 12582912.0f;
    return least(most(nearest, -zero), kMostOfFour - zero);
  }

  // Halves upon halves: the order of the sum is part of what the backends agree on.
  float error(Uint4Scale with) const {
    const float inverse = 1.0f / with.scale;
    float squares[kUint4Group];
    for (int i = 0; i < kUint4Group; i++) {
      const float difference = whole(values[i], inverse, with.zero) * with.scale - values[i];
      squares[i] = difference * difference;
    }
    for (int half = kUint4Group / 2; half > 0; half /= 2)
      for (int i = 0; i < half; i++) squares[i] += squares[i + half];
    return squares[0];
  }

  Uint4Scale best_scale() const {
    const float range = (highest - lowest) / kMostOfFour;
    if (!is_finite || range == 0.0f) return {};
    const float middle = static_cast<float>(nearest(-lowest / range));
    Uint4Scale best;
    float least_error = 0.0f;
    for (float step = -1.0f; step <= 1.0f; step += 1.0f) {
      const float zero = least(most(middle + step, 0.0f), kMostOfFour), rest = kMostOfFour - zero;
      if ((zero == 0.0f && lowest < 0.0f) || (rest == 0.0f && highest > 0.0f)) continue;
      const float whole_range = most(highest / most(rest, 1.0f), -lowest / most(zero, 1.0f));
      for (float share : kShares) {
        const Uint4Scale candidate = {whole_range * share, zero};
        const float found = error(candidate);
        if (best.scale != 0.0f && !(found < least_error)) continue;
        best = candidate;
        least_error = found;
      }
    }
    return best;
  }
};

// The scales of the groups of an output, [segment][group], and the output's own: a 4095th of the largest; NaN where a
// weight is not finite.
struct Uint4Output {
  std::vector<Uint4Scale> groups;
  float scale = 0.0f, inverse_scale = 0.0f;

  Uint4Output(const PanelHalf& half, int lane) {
    const int64_t size = half.args.num_inputs / half.args.segments;
    bool is_finite = true;
    float largest = 0.0f;
    for (int64_t start = 0; start < half.args.num_inputs; start += size) {
      for (int64_t k = 0; k < size; k += kUint4Group) {
        const Uint4Weights weights(half, lane, start + k, size - k < kUint4Group ? size - k : kUint4Group);
        groups.push_back(weights.best_scale());
        largest = most(groups.back().scale, largest);
        is_finite &= weights.is_finite;
      }
    }
    const bool is_usable = is_finite && largest > kSmallestScaled;
    scale = is_usable ? largest / kMostOfTwelve : is_finite ? 0.0f : __builtin_nanf("");
    inverse_scale = is_usable ? kMostOfTwelve / largest : 0.0f;
  }
};

// One lane of a group: `packed` is the group, zeros so far.
static inline void pack_uint4_group(const PanelHalf& half, int lane, const Uint4Weights& weights, Uint4Scale group,
                                    const Uint4Output& output, char* packed) {
  const int scale = nearest(group.scale * output.inverse_scale);
  if (scale == 0) return;
  const float inverse = 1.0f / (scale * output.scale);
  for (int i = 0; i < kUint4Group; i++) {
    const int value = static_cast<int>(Uint4Weights::whole(weights.values[i], inverse, group.zero) + group.zero);
    char* byte = packed + i / 8 * kPanelStepBytes + half.index * 64 + lane * 4 + i % 4;
    *byte = static_cast<char>(static_cast<unsigned char>(*byte) | value << (i % 8 < 4 ? 0 : 4));
  }
  const uint16_t factor = static_cast<uint16_t>(scale << 4 | static_cast<int>(group.zero));
  std::memcpy(packed + kUint4Steps * kPanelStepBytes + (half.index * 16 + lane) * sizeof factor, &factor, 2);
}

static inline void pack_uint4(const PanelHalf& half) {
  const int64_t size = half.args.num_inputs / half.args.segments;
  const int64_t groups = ceil_div(size, kUint4Group);
  for (int lane = 0; lane < half.lanes.count; lane++) {
    const Uint4Output output(half, lane);
    half.scales[lane] = output.scale;
    for (int64_t i = 0; i < half.args.segments * groups; i++) {
      const int64_t k = i % groups * kUint4Group, left = size - k;
      const Uint4Weights weights(half, lane, i / groups * size + k, left < kUint4Group ? left : kUint4Group);
      pack_uint4_group(half, lane, weights, output.groups[i], output, half.packed + i * kUint4GroupBytes);
    }
  }
}

}  // namespace octavo
