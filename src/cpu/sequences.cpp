#include "cpu/sequences.h"

#include <string>

#include "core/check.h"

namespace tandem::cpu {

void check_cu_seqlens(const char* op, const std::int32_t* cu_seqlens, std::int64_t N,
                      std::int64_t T, const char* name, const char* axis) {
  if (!cu_seqlens) return;
  const std::string offsets = name, end = axis;
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i <= N; ++i) {
    const std::int64_t value = cu_seqlens[i];
    const std::string got =
        "got " + offsets + "[" + std::to_string(i) + "] = " + std::to_string(value);
    if (value < 0 || value > T) {
      refuse(op, offsets + " must lie in [0," + end + "] = [0," + std::to_string(T) + "], " + got);
    }
    if (value < previous) {
      refuse(op, offsets + " must not decrease, " + got + " after " + std::to_string(previous));
    }
    previous = value;
  }
}

std::vector<Sequence> sequences_of(const std::int32_t* cu_seqlens, std::int64_t N, std::int64_t T) {
  std::vector<Sequence> sequences;
  for (std::int64_t n = 0; n < N; ++n) {
    if (cu_seqlens) {
      sequences.push_back({n, 0, cu_seqlens[n], cu_seqlens[n + 1]});
    } else {
      sequences.push_back({n, n, 0, T});
    }
  }
  return sequences;
}

}  // namespace tandem::cpu
