#include "cpu/gla_rows.h"

#include <string>

#include "core/check.h"
#include "cpu/elementwise.h"

namespace tandem::cpu {

void check_cu_seqlens(const char* op, const GlaRecurrence& p) {
  if (!p.cu_seqlens) return;
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i <= p.N; ++i) {
    const std::int64_t value = p.cu_seqlens[i];
    const std::string got = "got cu_seqlens[" + std::to_string(i) + "] = " + std::to_string(value);
    if (value < 0 || value > p.T) {
      refuse(op, "cu_seqlens must lie in [0,T] = [0," + std::to_string(p.T) + "], " + got);
    }
    if (value < previous) {
      refuse(op, "cu_seqlens must not decrease, " + got + " after " + std::to_string(previous));
    }
    previous = value;
  }
}

std::vector<GlaRow> gla_rows(const GlaRecurrence& p) {
  std::vector<GlaRow> rows;
  for (std::int64_t n = 0; n < p.N; ++n) {
    const std::int64_t begin = p.cu_seqlens ? p.cu_seqlens[n] : 0;
    const std::int64_t end = p.cu_seqlens ? p.cu_seqlens[n + 1] : p.T;
    for (int h = 0; h < p.H; ++h) rows.push_back({n, h, p.cu_seqlens ? 0 : n, begin, end});
  }
  return rows;
}

void clear_outside(const GlaRecurrence& p, const StridedTensor& tensor, int heads, int dim) {
  if (!p.cu_seqlens) return;
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      void* row = element_at(p.dtype, tensor.data, t * tensor.time_stride);
      fill_rows_with_zero(heads, dim, {p.dtype, row, tensor.head_stride});
    }
  };
  clear(0, p.cu_seqlens[0]);
  clear(p.cu_seqlens[p.N], p.T);
}

}  // namespace tandem::cpu
