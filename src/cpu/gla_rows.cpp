#include "cpu/gla_rows.h"

#include "cpu/elementwise.h"
#include "cpu/sequences.h"

namespace tandem::cpu {

void check_cu_seqlens(const char* op, const GlaRecurrence& p) {
  check_cu_seqlens(op, p.cu_seqlens, p.N, p.T);
}

std::vector<GlaRow> gla_rows(const GlaRecurrence& p) {
  std::vector<GlaRow> rows;
  for (const Sequence& one : sequences_of(p.cu_seqlens, p.N, p.T)) {
    for (int h = 0; h < p.H; ++h) rows.push_back({one.n, h, one.b, one.begin, one.end});
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
