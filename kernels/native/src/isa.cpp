// Which instruction set this process uses.
#include "isa.h"

#include <atomic>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

constexpr int kNumIsas = 4;
const char* const kNames[kNumIsas] = {"generic", "avx2", "avx512", "amx"};

#if defined(__x86_64__)
// Of a processor with matrix tiles for bfloat16 and int8. Linux lets a process use them once it has asked.
bool may_use_amx() {
  unsigned int a, b, c, d;
  constexpr unsigned int kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

bool is_supported(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kAmx:
      return is_supported(Isa::kAvx512) && may_use_amx();
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
