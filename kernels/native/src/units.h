// Units of work for all threads: each begins at its own share, so it streams through memory, and helps the others
// when it is done. Which thread computes a unit changes no bit.
#pragma once

#include <atomic>

#include "common.h"

namespace octavo {

constexpr int kMaxShares = 64;

// What one thread takes its units from: its own share first, then the others' rests.
class Units {
 public:
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };

  Units(Share* shares, int64_t count, int64_t own) : shares_(shares), count_(count), own_(own) {}

  // The next unit, or -1 when there are no more.
  int64_t take() {
    for (; passed_ < count_; passed_++) {
      Share& share = shares_[(own_ + passed_) % count_];
      const int64_t unit = share.next.fetch_add(1, std::memory_order_relaxed);
      if (unit < share.end) return unit;
    }
    return -1;
  }

 private:
  Share* shares_;
  int64_t count_, own_, passed_ = 0;
};

// body(units) on every thread that can have one of the units 0 ... count - 1.
template <typename Body>
static inline void share_units(int64_t count, const Body& body) {
  Units::Share shares[kMaxShares];
  int64_t num_shares = num_threads() < kMaxShares ? num_threads() : kMaxShares;
  if (num_shares > count) num_shares = count;
  for (int64_t i = 0; i < num_shares; i++) {
    shares[i].next.store(count * i / num_shares, std::memory_order_relaxed);
    shares[i].end = count * (i + 1) / num_shares;
  }
  parallel_for(num_shares, [&](int64_t own, int) { body(Units(shares, num_shares, own)); });
}

}  // namespace octavo
