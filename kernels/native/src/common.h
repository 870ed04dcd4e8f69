// What all native sources share: row arrays, dtype codes and the pool.
#pragma once

#include <cstddef>
#include <cstdint>

#define OCTAVO_EXPORT extern "C" __attribute__((visibility("default")))

namespace octavo {

// Row r begins at data + r * stride; the stride is in bytes. Views of wider buffers are normal.
struct Rows {
  void* data;
  int64_t stride;

  template <typename T>
  T* row(int64_t r) const {
    return reinterpret_cast<T*>(static_cast<char*>(data) + r * stride);
  }
};

enum Dtype : int64_t { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2, kUint4 = 3 };

// The pool: task numbers 0 ... num_tasks - 1 are taken from a shared counter by all threads, the caller's
// included. Returns when all are done. Results must not depend on which thread takes a task. Not reentrant.
using Task = void (*)(const void* context, int64_t task, int thread);
void run_tasks(int64_t num_tasks, Task task, const void* context);
int num_threads();

// body(task, thread) for each task; a single task runs on the caller without waking anyone.
template <typename Body>
inline void parallel_for(int64_t num_tasks, const Body& body) {
  run_tasks(
      num_tasks,
      [](const void* context, int64_t task, int thread) { (*static_cast<const Body*>(context))(task, thread); }, &body);
}

// Scratch memory of one pool thread, at least `bytes` long, aligned to 64; kept and grown, never shared.
void* thread_scratch(int thread, size_t bytes);

}  // namespace octavo
