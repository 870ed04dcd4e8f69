// Which instruction set this process uses.
#include "isa.h"

#include <atomic>
#include <cstring>

namespace octavo {
namespace {

constexpr int kNumIsas = 3;
const char* const kNames[kNumIsas] = {"generic", "avx2", "avx512"};

bool is_supported(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kGeneric:
      return true;
  }
  return false;
#else
  return isa == Isa::kGeneric;
#endif
}

int best_isa() {
  int isa = kNumIsas - 1;
  while (!is_supported(static_cast<Isa>(isa))) isa--;
  return isa;
}

std::atomic<int> selected{-1};

}  // namespace

Isa selected_isa() {
  int isa = selected.load(std::memory_order_relaxed);
  if (isa < 0) selected.store(isa = best_isa(), std::memory_order_relaxed);
  return static_cast<Isa>(isa);
}

}  // namespace octavo

// Choose by name, or the best for a null name. 0 if this host cannot run it or the name is unknown.
OCTAVO_EXPORT int64_t octavo_select(const char* name) {
  using namespace octavo;
  if (name == nullptr) {
    selected.store(best_isa());
    return 1;
  }
  for (int isa = 0; isa < kNumIsas; isa++) {
    if (std::strcmp(name, kNames[isa]) == 0 && is_supported(static_cast<Isa>(isa))) {
      selected.store(isa);
      return 1;
    }
  }
  return 0;
}

OCTAVO_EXPORT const char* octavo_isa() { return octavo::kNames[static_cast<int>(octavo::selected_isa())]; }
