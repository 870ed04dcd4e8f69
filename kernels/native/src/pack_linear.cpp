// From a weight [N, K] as a checkpoint has it to the panels of linear.h; int8 and uint4 are quantized on the way.
#include <sys/mman.h>

#include "pack_uint4.h"

namespace octavo {
namespace {

// Weights are read from one end to the other at every step: fewer, larger pages let the prefetchers run on. A hint.
void prefer_large_pages(void* data, int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)data, (void)bytes;
#endif
}

void pack_float(const PanelHalf& half, int64_t first, int64_t size) {
  for (int64_t begin = 0; begin < size; begin += 16) {
    const int64_t end = begin + 16 < size ? begin + 16 : size;
    for (int lane = 0; lane < half.lanes.count; lane++)
      for (int64_t k = begin; k < end; k++)
        std::memcpy(half.step(k) + lane * sizeof(float), half.source<float>(lane) + first + k, sizeof(float));
  }
}

void pack_bf16(const PanelHalf& half, int64_t first, int64_t size) {
  for (int64_t begin = 0; begin < size; begin += 32) {
    const int64_t end = begin + 32 < size ? begin + 32 : size;
    for (int lane = 0; lane < half.lanes.count; lane++) {
      const uint16_t* source = half.source<uint16_t>(lane) + first;
      for (int64_t k = begin; k < end; k += 2) {
        uint16_t pair[2] = {source[k], k + 1 < size ? source[k + 1] : uint16_t{0}};
        std::memcpy(half.step(k / 2) + lane * sizeof pair, pair, sizeof pair);
      }
    }
  }
}

void pack_int8(const PanelHalf& half, int64_t first, int64_t size) {
  for (int64_t begin = 0; begin < size; begin += 64) {
    const int64_t end = begin + 64 < size ? begin + 64 : size;
    for (int lane = 0; lane < half.lanes.count; lane++) {
      for (int64_t k = begin; k < end; k += 4) {
        uint8_t four[4];
        for (int i = 0; i < 4; i++) {
          const float value = k + i < size ? half.value(lane, first + k + i) * half.inverse_scales[lane] : 0.0f;
          four[i] = static_cast<uint8_t>(nearest(value) + 128);
        }
        std::memcpy(half.step(k / 4) + lane * sizeof four, four, sizeof four);
      }
    }
  }
}

// Symmetric, per output: scale = max|w| / 127.
void find_scales(PanelHalf* half) {
  for (int lane = 0; lane < half->lanes.count; lane++) {
    float most = 0.0f;
    bool is_finite = true;
    for (int64_t k = 0; k < half->args.num_inputs; k++) {
      const float magnitude = std::fabs(half->value(lane, k));
      most = magnitude > most ? magnitude : most;
      is_finite &= magnitude <= kLargestFinite;
    }
    const bool is_usable = is_finite && most > kSmallestScaled;
    half->scales[lane] = is_usable ? most / 127.0f : is_finite ? 0.0f : __builtin_nanf("");
    half->inverse_scales[lane] = is_usable ? 127.0f / most : 0.0f;
  }
}

int64_t bytes_of_segment(const octavo_pack_linear_args& args) {
  return bytes_of_steps(args.weight_dtype, steps_of_segment(args.weight_dtype, args.num_inputs / args.segments));
}

void pack_panel(const octavo_pack_linear_args& args, int64_t panel) {
  const int64_t size = args.num_inputs / args.segments;
  const int64_t segment_bytes = bytes_of_segment(args), panel_bytes = args.segments * segment_bytes;
  char* packed = static_cast<char*>(args.packed) + panel * panel_bytes;
  std::memset(packed, args.weight_dtype == kInt8 ? 128 : 0, panel_bytes);
  for (int i = 0; i < 2; i++) {
    PanelHalf half = {args, panel_lanes(panel, i, args.num_outputs, args.is_gated != 0), {}, nullptr, i, packed};
    if (args.channel_scales != nullptr) {
      half.scales = args.channel_scales + panel * kPanelLanes + i * 16;
      std::memset(half.scales, 0, 16 * sizeof(float));
    }
    if (args.weight_dtype == kUint4) {
      pack_uint4(half);
      continue;
    }
    if (args.weight_dtype == kInt8) find_scales(&half);
    for (int64_t segment = 0; segment < args.segments; segment++, half.packed += segment_bytes) {
      const int64_t first = segment * size;
      switch (args.weight_dtype) {
        case kFloat32: pack_float(half, first, size); break;
        case kBFloat16: pack_bf16(half, first, size); break;
        default: pack_int8(half, first, size);
      }
    }
  }
}

}  // namespace
}  // namespace octavo

OCTAVO_EXPORT void octavo_pack_linear(const octavo_pack_linear_args* args) {
  using namespace octavo;
  const int64_t panels = num_panels(args->num_outputs, args->is_gated != 0);
  prefer_large_pages(args->packed, panels * args->segments * bytes_of_segment(*args));
  parallel_for(panels, [&](int64_t panel, int) { pack_panel(*args, panel); });
}
