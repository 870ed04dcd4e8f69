// The instruction sets a source may be compiled for, and how a function is sent to the one chosen at run time.
//
// A source that names OCTAVO_ISA is compiled once for each: its functions live in namespace octavo::OCTAVO_ISA and it
// ends with OCTAVO_DISPATCH(name, Args). What it shares with other sources must be static or always inlined. AMX is
// AVX512 with matrix tiles: only a source that ends with OCTAVO_DISPATCH_WITH_AMX is compiled for it, with
// OCTAVO_ISA_AVX512 defined too; of all others the AVX512 functions are taken.
#pragma once

#include "common.h"

namespace octavo {

enum class Isa : int { kGeneric, kAvx2, kAvx512, kAmx };

// The best that this host has, or the one that octavo_select was given.
Isa selected_isa();

}  // namespace octavo

#if defined(__x86_64__)
#define OCTAVO_DECLARE(isa, name, Args) \
  namespace octavo {                    \
  namespace isa {                       \
  void name(const Args*);               \
  }                                     \
  }
#define OCTAVO_DISPATCH_TO(name, Args, best)                                                            \
  OCTAVO_DECLARE(generic, name, Args)                                                                   \
  OCTAVO_DECLARE(avx2, name, Args)                                                                      \
  OCTAVO_DECLARE(avx512, name, Args)                                                                    \
  OCTAVO_DECLARE(best, name, Args)                                                                      \
  OCTAVO_EXPORT void octavo_##name(const Args* args) {                                                  \
    static void (*const functions[])(const Args*) = {octavo::generic::name, octavo::avx2::name,         \
                                                     octavo::avx512::name, octavo::best::name};         \
    functions[static_cast<int>(octavo::selected_isa())](args);                                          \
  }
#else
#define OCTAVO_DISPATCH_TO(name, Args, best) \
  OCTAVO_EXPORT void octavo_##name(const Args* args) { octavo::generic::name(args); }
#endif
#define OCTAVO_DISPATCH_ALWAYS(name, Args) OCTAVO_DISPATCH_TO(name, Args, avx512)

// extern "C" void octavo_NAME(const Args*), defined by the generic compilation alone.
#if defined(OCTAVO_ISA_GENERIC)
#define OCTAVO_DISPATCH(name, Args) OCTAVO_DISPATCH_TO(name, Args, avx512)
#define OCTAVO_DISPATCH_WITH_AMX(name, Args) OCTAVO_DISPATCH_TO(name, Args, amx)
#else
#define OCTAVO_DISPATCH(name, Args)
#define OCTAVO_DISPATCH_WITH_AMX(name, Args)
#endif
