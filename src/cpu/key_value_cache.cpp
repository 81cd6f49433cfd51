#include "ops/key_value_cache.h"

#include <cstring>

#include "cpu/parallel.h"

namespace tandem::cpu {

void append_to_cache(const AppendProblem& p) {
  const auto copy = [&](const void* from, void* cache, std::int64_t b, std::int64_t place) {
    const std::int64_t bytes = p.T * p.row_bytes;
    std::memcpy(static_cast<char*>(cache) + (b * p.capacity + place) * p.row_bytes,
                static_cast<const char*>(from) + b * bytes, bytes);
  };
  parallel_for(p.B, parallel_threads(), Schedule::kStatic, [&](std::int64_t b, int) {
    const std::int64_t place = p.steps ? p.lengths[b] : 0;
    if (place < 0 || place + p.T > p.capacity) return;
    copy(p.k, p.cache_k, b, place);
    copy(p.v, p.cache_v, b, place);
    p.lengths[b] = static_cast<std::int32_t>(place + p.T);
  });
}

}  // namespace tandem::cpu
