// What the register tiles of every instruction set take.
//
// A tile multiplies R rows, packed as [step][R], with one segment of one panel and writes float32 [R][32]. Each lane
// adds its products in the order of K in one accumulator, so its bits do not depend on R.
#pragma once

#include "linear.h"
#include "vec.h"

namespace octavo {
namespace OCTAVO_ISA {

// Where the next weights lie: every step asks for one step's worth, so that memory works while the tile computes.
struct Ahead {
  const char* next;
  int64_t stride;

  template <int R>
  inline __attribute__((always_inline)) void fetch() {
    // Three and four rows compute about as fast as memory delivers: there it pays to ask the nearest cache.
    constexpr int kLocality = R == 3 || R == 4 ? 3 : 2;
    __builtin_prefetch(next, 0, kLocality);
    __builtin_prefetch(next + 64, 0, kLocality);
    next += stride;
  }

  // The factors of a group, half a step's worth.
  inline __attribute__((always_inline)) void fetch_factors() {
    __builtin_prefetch(next, 0, 2);
    next += stride / 2;
  }
};

// How far ahead of itself a lone tile asks, in bytes. The less it computes, the better the hardware does it alone.
static inline int64_t prefetch_distance(int64_t rows) { return rows <= 2 ? 4096 : rows <= 4 ? 4096 : 12288; }

// Of the quantized rows: [group][R] each. A correction is minus the sum of the group's quantized inputs, times 128 for
// int8, which undoes the 128 added to every weight; for uint4 it is yet to be multiplied by every lane's zero.
struct GroupScales {
  const float* scales;
  const int32_t* corrections;
  int64_t steps;  // of a group
};

}  // namespace OCTAVO_ISA
}  // namespace octavo
