// What becomes of a tile's sums: segments added, scaled, bias, then residual or silu(gate) * up, rounded once.
#pragma once

#include "tiles.h"

namespace octavo {
namespace OCTAVO_ISA {

template <typename V>
static inline V load_as(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The partial sums of `count` segments, `distance` floats apart: neighbours are added in pairs, level by level; an odd
// one at the end goes up unchanged.
template <typename V>
static inline V add_in_tree(const float* sums, int64_t count, int64_t distance) {
  if (count == 1) return load_as<V>(sums);
  V parts[kMaxSegments];
  for (int64_t i = 0; i < count; i++) parts[i] = load_as<V>(sums + i * distance);
  for (int64_t stride = 1; stride < count; stride *= 2)
    for (int64_t i = 0; i + stride < count; i += 2 * stride) parts[i] += parts[i + stride];
  return parts[0];
}

static inline void store_result(const octavo_linear_args& args, int64_t row, Lanes lanes, Vec result) {
  if (args.out_dtype == kFloat32) {
    float* out = args.out.row<float>(row) + lanes.first;
    if (lanes.count == kLanes) return store(out, result);
    return store_part(out, result, lanes.count);
  }
  uint16_t* out = args.out.row<uint16_t>(row) + lanes.first;
  if (lanes.count == kLanes) return store_bf16(out, result);
  uint16_t half[kLanes];
  store_bf16(half, result);
  std::memcpy(out, half, lanes.count * sizeof(uint16_t));
}

static inline Vec load_lanes(const float* p, Lanes lanes) {
  return lanes.count == kLanes ? load(p + lanes.first) : load_part(p + lanes.first, lanes.count);
}

// Whole halves of a panel, a register at a time: `lane` of the panel's 32 is the part's first.
struct PartOfRow {
  const octavo_linear_args& args;
  int64_t row, panel;
  const float* sums;  // of the row
  int64_t distance;   // from one segment's sums to the next

  inline Part result(Lanes half, int64_t lane) const {
    const int64_t column = half.first + lane % kLanes;
    Part sum = add_in_tree<Part>(sums + lane, args.segments, distance);
    if (args.channel_scales != nullptr) sum *= load_as<Part>(args.channel_scales + panel * kPanelLanes + lane);
    if (args.bias != nullptr) sum += load_as<Part>(args.bias + column);
    if (args.epilogue == kResidual) sum += load_as<Part>(args.residual.row<float>(row) + column);
    return sum;
  }

  inline void finish(const Lanes* halves) const {
    if (args.epilogue == kSiluAndMul) {
      alignas(64) float products[kLanes];
      for (int64_t lane = 0; lane < kLanes; lane += kPartLanes) {
        const Part product = silu(result(halves[0], lane)) * result(halves[1], kLanes + lane);
        std::memcpy(products + lane, &product, sizeof product);
      }
      return store_result(args, row, halves[0], load(products));
    }
    for (int64_t lane = 0; lane < kPanelLanes; lane += kPartLanes) {
      const Lanes half = halves[lane / kLanes];
      const Part sum = result(half, lane);
      std::memcpy(args.out.row<float>(row) + half.first + lane % kLanes, &sum, sizeof sum);
    }
  }
};

// sums: [segment][row of the tile][32] of rows first ... first + count - 1 and one panel; from one segment to the next
// there are `distance` floats.
static void finish_tile(const octavo_linear_args& args, int64_t panel, int64_t first, int64_t count, int64_t distance,
                        const float* sums) {
  const Lanes lanes[2] = {panel_lanes(panel, 0, args.num_outputs, args.is_gated != 0),
                          panel_lanes(panel, 1, args.num_outputs, args.is_gated != 0)};
  const bool is_whole = lanes[0].count == kLanes && lanes[1].count == kLanes;
  if (is_whole && (args.epilogue == kSiluAndMul || args.out_dtype == kFloat32)) {
    for (int64_t r = 0; r < count; r++)
      PartOfRow{args, first + r, panel, sums + r * kPanelLanes, distance}.finish(lanes);
    return;
  }
  for (int64_t r = 0; r < count; r++) {
    Vec result[2];
    for (int half = 0; half < 2; half++) {
      if (lanes[half].count == 0) continue;
      Vec sum = add_in_tree<Vec>(sums + r * kPanelLanes + half * kLanes, args.segments, distance);
      if (args.channel_scales != nullptr) sum *= load(args.channel_scales + panel * kPanelLanes + half * kLanes);
      if (args.bias != nullptr) sum += load_lanes(args.bias, lanes[half]);
      if (args.epilogue == kResidual) sum += load_lanes(args.residual.row<float>(first + r), lanes[half]);
      if (args.epilogue != kSiluAndMul) store_result(args, first + r, lanes[half], sum);
      result[half] = sum;
    }
    if (args.epilogue == kSiluAndMul) store_result(args, first + r, lanes[0], silu(result[0]) * result[1]);
  }
}

}  // namespace OCTAVO_ISA
}  // namespace octavo
