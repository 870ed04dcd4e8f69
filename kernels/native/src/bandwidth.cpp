// Reading memory and adding it up: the most that this machine's memory gives to any kernel, whatever that computes.
//
// No single loop is the fastest everywhere, so there are several; whoever measures takes the best.
#include <atomic>

#include "isa.h"
#include "vec.h"

struct octavo_read_memory_args {
  const void* data;    // whole vectors of 64 bytes
  int64_t num_bytes;
  int64_t loop;        // see kLoops
  int64_t* sum;        // of all 32-bit words, modulo 2^32
};

namespace octavo {
namespace OCTAVO_ISA {
namespace {

constexpr int64_t kVector = 64, kPart = 1 << 18;  // bytes; a part is one task

uint32_t add_lanes(UintVec v) {
  uint32_t sum = 0;
  for (int lane = 0; lane < kLanes; lane++) sum += v[lane];
  return sum;
}

// kStreams equal stretches side by side, kUnroll vectors of each a turn, prefetched kAhead bytes before they are read.
template <int kStreams, int kUnroll, int64_t kAhead>
uint32_t read_part(const char* data, int64_t num_bytes) {
  constexpr int64_t kTurn = kUnroll * kVector;
  const int64_t stretch = num_bytes / (kStreams * kTurn) * kTurn;
  UintVec sums[kStreams * kUnroll] = {};
  for (int64_t offset = 0; offset < stretch; offset += kTurn) {
    for (int stream = 0; stream < kStreams; stream++) {
      const char* from = data + stream * stretch + offset;
      for (int i = 0; i < kUnroll; i++) {
        if (kAhead > 0) __builtin_prefetch(from + i * kVector + kAhead);
        UintVec v;
        std::memcpy(&v, from + i * kVector, sizeof v);
        sums[stream * kUnroll + i] += v;
      }
    }
  }
  for (int64_t offset = kStreams * stretch; offset < num_bytes; offset += kVector) {
    UintVec v;
    std::memcpy(&v, data + offset, sizeof v);
    sums[0] += v;
  }
  uint32_t sum = 0;
  for (const UintVec& v : sums) sum += add_lanes(v);
  return sum;
}

using Loop = uint32_t (*)(const char*, int64_t);

// bandwidth.py names them, in this order.
constexpr Loop kLoops[] = {read_part<1, 1, 0>,    read_part<1, 4, 0>, read_part<1, 4, 1024>,
                           read_part<1, 4, 4096>, read_part<4, 1, 0>, read_part<4, 1, 1024>,
                           read_part<4, 2, 0>,    read_part<8, 1, 0>};

}  // namespace

void read_memory(const octavo_read_memory_args* args) {
  const char* data = static_cast<const char*>(args->data);
  const Loop loop = kLoops[args->loop];
  std::atomic<uint32_t> sum{0};
  parallel_for((args->num_bytes + kPart - 1) / kPart, [&](int64_t part, int) {
    const int64_t start = part * kPart, left = args->num_bytes - start;
    sum.fetch_add(loop(data + start, left < kPart ? left : kPart), std::memory_order_relaxed);
  });
  *args->sum = sum.load();
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

OCTAVO_DISPATCH(read_memory, octavo_read_memory_args)
