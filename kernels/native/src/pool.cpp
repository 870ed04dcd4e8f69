// The threads: started when first needed, spinning for a moment after each job and then asleep.
//
// A job is taken task by task from one counter that carries the job's number, so a thread that wakes too late for a
// job finds it closed and nobody waits for it. Only a thread that is inside a task is waited for.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "common.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

constexpr int kMaxThreads = 256;
constexpr int64_t kSpinNanoseconds = 50'000;
constexpr int kTaskBits = 32;  // as many for the job's number, which may wrap around
constexpr uint64_t kClosed = (uint64_t{1} << kTaskBits) - 1;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as the condition holds, false when it still does not after kSpinNanoseconds.
template <typename Condition>
bool spin_until(const Condition& holds) {
  const int64_t deadline = now() + kSpinNanoseconds;
  do {
    for (int i = 0; i < 16; i++) {
      if (holds()) return true;
      pause_briefly();
    }
  } while (now() < deadline);
  return holds();
}

// Rounding to nearest, denormals kept, nothing trapped: the same in every thread that computes.
#if defined(__x86_64__)
constexpr uint32_t kDefaultControl = 0x1F80, kStickyFlags = 0x3F;
uint32_t read_control() { return _mm_getcsr(); }
void write_control(uint32_t value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
constexpr uint32_t kDefaultControl = 0, kStickyFlags = 0;
uint32_t read_control() {
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return static_cast<uint32_t>(value);
}
void write_control(uint32_t value) { asm volatile("msr fpcr, %0" : : "r"(uint64_t{value})); }
#else
constexpr uint32_t kDefaultControl = 0, kStickyFlags = 0;
uint32_t read_control() { return 0; }
void write_control(uint32_t) {}
#endif

class DefaultRounding {
 public:
  DefaultRounding() : before_(read_control()) {
    if ((before_ & ~kStickyFlags) != kDefaultControl) write_control(kDefaultControl);
  }
  ~DefaultRounding() {
    if ((before_ & ~kStickyFlags) != kDefaultControl) write_control(before_);
  }

 private:
  uint32_t before_;
};

struct Scratch {
  void* data = nullptr;
  size_t size = 0;
};

// Never destroyed: threads may still look at it while the process exits.
struct Pool {
  explicit Pool(int threads) : size(threads) {}

  const int size;
  int num_started = 1;  // the caller is thread 0
  std::mutex callers;   // one job at a time

  alignas(64) std::atomic<uint64_t> ticket{kClosed};  // job number << 32 | next task
  std::atomic<Task> task{nullptr};
  std::atomic<const void*> context{nullptr};
  std::atomic<int64_t> num_tasks{0};
  std::atomic<bool> is_stopping{false};

  alignas(64) std::atomic<int64_t> num_done{0};
  std::atomic<bool> caller_sleeps{false};
  std::atomic<int> num_sleeping{0};

  std::mutex sleep;
  std::condition_variable work, done;

  void run(int64_t count, Task body, const void* argument);
  void take_tasks(uint64_t job, int thread);
  void work_forever(int thread);
  void start_threads();
  void wake_workers(int64_t count);
  void stop();
};

Pool* pool = new Pool(1);
Scratch scratches[kMaxThreads];

uint64_t job_of(uint64_t ticket) { return ticket >> kTaskBits; }

// Fields are read before the ticket is taken: taking it proves that the job was still open, so they are the job's.
void Pool::take_tasks(uint64_t job, int thread) {
  int64_t finished = 0, total = 0;
  uint64_t seen = ticket.load(std::memory_order_acquire);
  while (job_of(seen) == job && (seen & kClosed) != kClosed) {
    const Task body = task.load(std::memory_order_relaxed);
    const void* argument = context.load(std::memory_order_relaxed);
    const int64_t count = num_tasks.load(std::memory_order_relaxed);
    const int64_t index = static_cast<int64_t>(seen & kClosed);
    if (index >= count) break;
    if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    total = count;
    body(argument, index, thread);
    finished++;
    seen = ticket.load(std::memory_order_acquire);
  }
  if (finished == 0) return;
  const int64_t before = num_done.fetch_add(finished, std::memory_order_seq_cst);
  if (thread != 0 && before + finished == total && caller_sleeps.load(std::memory_order_seq_cst)) {
    std::lock_guard<std::mutex> lock(sleep);
    done.notify_one();
  }
}

void Pool::work_forever(int thread) {
  write_control(kDefaultControl);
  uint64_t last = job_of(ticket.load(std::memory_order_acquire)) - 1;
  const auto has_news = [&] {
    return job_of(ticket.load(std::memory_order_seq_cst)) != last || is_stopping.load(std::memory_order_relaxed);
  };
  for (;;) {
    if (!spin_until(has_news)) {
      std::unique_lock<std::mutex> lock(sleep);
      num_sleeping.fetch_add(1, std::memory_order_seq_cst);
      work.wait(lock, has_news);
      num_sleeping.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (is_stopping.load(std::memory_order_acquire)) return;
    const uint64_t seen = ticket.load(std::memory_order_acquire);
    last = job_of(seen);
    take_tasks(last, thread);
  }
}

void Pool::wake_workers(int64_t count) {
  const int sleeping = num_sleeping.load(std::memory_order_seq_cst);
  if (sleeping == 0) return;
  { std::lock_guard<std::mutex> lock(sleep); }
  if (count >= sleeping) return work.notify_all();
  for (int64_t i = 0; i < count; i++) work.notify_one();
}

// Signals go to the threads of the program, not to ours.
void Pool::start_threads() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (; num_started < size; num_started++) {
    const int thread = num_started;
    std::thread([this, thread] { work_forever(thread); }).detach();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pool::run(int64_t count, Task body, const void* argument) {
  std::lock_guard<std::mutex> lock(callers);
  DefaultRounding rounding;
  if (size == 1 || count == 1) {
    for (int64_t i = 0; i < count; i++) body(argument, i, 0);
    return;
  }
  if (num_started < size) start_threads();
  const uint64_t job = (job_of(ticket.load(std::memory_order_relaxed)) + 1) & kClosed;
  num_done.store(0, std::memory_order_relaxed);
  task.store(body, std::memory_order_relaxed);
  context.store(argument, std::memory_order_relaxed);
  num_tasks.store(count, std::memory_order_relaxed);
  ticket.store(job << kTaskBits, std::memory_order_seq_cst);
  wake_workers(count - 1);
  take_tasks(job, 0);
  const auto all_done = [&] { return num_done.load(std::memory_order_seq_cst) == count; };
  if (!all_done() && !spin_until(all_done)) {
    std::unique_lock<std::mutex> sleeping(sleep);
    caller_sleeps.store(true, std::memory_order_seq_cst);
    done.wait(sleeping, all_done);
    caller_sleeps.store(false, std::memory_order_relaxed);
  }
  ticket.store(job << kTaskBits | kClosed, std::memory_order_release);
}

void Pool::stop() {
  std::lock_guard<std::mutex> lock(sleep);
  is_stopping.store(true, std::memory_order_seq_cst);
  work.notify_all();
}

// A forked child has the caller's thread alone: it gets a pool that starts its own when it needs them.
void replace_after_fork() { pool = new Pool(pool->size); }

}  // namespace

void run_tasks(int64_t num_tasks, Task task, const void* context) {
  if (num_tasks > 0) pool->run(num_tasks, task, context);
}

int num_threads() { return pool->size; }

void* thread_scratch(int thread, size_t bytes) {
  Scratch& scratch = scratches[thread];
  if (scratch.size < bytes) {
    const size_t size = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    free(scratch.data);
    scratch.data = aligned_alloc(64, size);
    if (scratch.data == nullptr) abort();
    scratch.size = size;
  }
  return scratch.data;
}

}  // namespace octavo

// Between jobs only. The old threads end by themselves.
OCTAVO_EXPORT void octavo_set_num_threads(int64_t count) {
  using namespace octavo;
  static const int registered = pthread_atfork(nullptr, nullptr, replace_after_fork);
  (void)registered;
  const int size = static_cast<int>(count < 1 ? 1 : count > kMaxThreads ? kMaxThreads : count);
  if (size == pool->size) return;
  Pool* old = pool;
  pool = new Pool(size);
  old->stop();
}

OCTAVO_EXPORT int64_t octavo_num_threads() { return octavo::num_threads(); }

// The pool by itself: body(context, task, thread) for each task.
OCTAVO_EXPORT void octavo_run_tasks(int64_t num_tasks, octavo::Task body, const void* context) {
  octavo::run_tasks(num_tasks, body, context);
}
