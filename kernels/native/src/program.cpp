// A step recorded once and replayed as one call: instructions in order, each a function and its arguments.
//
// Buffers keep their addresses between replays; what changes from step to step are a few counts, which are written
// into the arguments before the run.
#include "common.h"

namespace {

using Function = void (*)(const void* args);

struct Instruction {
  Function function;
  const void* args;
};

struct Patch {
  int64_t* field;  // inside the arguments of some instruction
  int64_t value;   // index into the values of a run
};

}  // namespace

struct octavo_program {
  const Instruction* instructions;
  int64_t num_instructions;
  const Patch* patches;
  int64_t num_patches;
  int64_t num_done;  // counts instructions over all runs; another thread reads it to see that there is progress
};

OCTAVO_EXPORT void octavo_run(octavo_program* program, const int64_t* values) {
  for (int64_t i = 0; i < program->num_patches; i++) *program->patches[i].field = values[program->patches[i].value];
  for (int64_t i = 0; i < program->num_instructions; i++) {
    program->instructions[i].function(program->instructions[i].args);
    __atomic_fetch_add(&program->num_done, 1, __ATOMIC_RELAXED);
  }
}
