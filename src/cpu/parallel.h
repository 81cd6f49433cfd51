// Loops over all cores. One OpenMP pool; who runs what never changes a result, only the time.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <queue>
#include <vector>

namespace tandem::cpu {

/// Returns how many threads a parallel loop started here would use: 1 inside another one.
inline int parallel_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

enum class Schedule {
  kStatic,   ///< thread i takes the i-th share, every time: what a thread wrote is in its cache
  kDynamic,  ///< a free thread takes the next item: for items of unequal length, the longest first
};

/// Calls body(index, thread) for each index in [0, count), thread < threads. Rethrows one of the
/// exceptions that the calls threw, after all have ended; an exception must not leave an OpenMP
/// region.
template <typename Body>
void parallel_for(std::int64_t count, int threads, Schedule schedule, const Body& body) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  std::exception_ptr error;
  std::atomic<bool> failed = false;
  const auto guarded = [&](std::int64_t i) {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      body(i, omp_get_thread_num());
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  if (schedule == Schedule::kStatic) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::int64_t i = 0; i < count; ++i) guarded(i);
  } else {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (std::int64_t i = 0; i < count; ++i) guarded(i);
  }
  if (error) std::rethrow_exception(error);
}

/// Whether items of these loads, the largest first, handed to whichever thread is free, keep all
/// threads busy: the last is done after at most `allowance` times a fair share of the work.
inline bool fills_threads(const std::vector<std::int64_t>& loads, int threads, double allowance) {
  std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> busy;
  for (int i = 0; i < threads; ++i) busy.push(0);
  std::int64_t total = 0, longest = 0;
  for (const std::int64_t load : loads) {
    const std::int64_t until = busy.top() + load;
    busy.pop();
    busy.push(until);
    longest = std::max(longest, until);
    total += load;
  }
  return static_cast<double>(longest) * threads <= allowance * static_cast<double>(total);
}

}  // namespace tandem::cpu
