#include "cpu/attention_spans.h"

#include <string>

#include "core/check.h"
#include "cpu/elementwise.h"
#include "cpu/sequences.h"

namespace tandem::cpu {

void check_attention_lengths(const char* op, const AttentionSizes& p) {
  check_cu_seqlens(op, p.cu_seqlens_q, p.N, p.TQ, "cu_seqlens_q", "TQ");
  check_cu_seqlens(op, p.cu_seqlens_k, p.N, p.TK, "cu_seqlens_k", "TK");
  for (std::int64_t b = 0; p.lengths_k && b < p.B; ++b) {
    const std::int64_t length = p.lengths_k[b];
    if (length >= 0 && length <= p.TK) continue;
    refuse(op, "lengths_k must lie in [0,TK] = [0," + std::to_string(p.TK) + "], got lengths_k[" +
                   std::to_string(b) + "] = " + std::to_string(length));
  }
}

std::vector<AttentionSpan> attention_spans(const AttentionSizes& p) {
  std::vector<AttentionSpan> spans;
  for (std::int64_t n = 0; n < p.N; ++n) {
    if (p.cu_seqlens_q) {
      const Range q{p.cu_seqlens_q[n], p.cu_seqlens_q[n + 1]};
      const Range k{p.cu_seqlens_k[n], p.cu_seqlens_k[n + 1]};
      spans.push_back({0, q, k, p.mask});
    } else {
      spans.push_back({n, {0, p.TQ}, {0, p.lengths_k ? p.lengths_k[n] : p.TK}, p.mask});
    }
  }
  return spans;
}

void clear_outside(const AttentionSizes& p, const StridedTensor& tensor, bool of_keys, int heads,
                   int dim) {
  const std::int64_t T = of_keys ? p.TK : p.TQ;
  const auto clear = [&](std::int64_t b, Range tokens) {
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
      void* row =
          element_at(p.dtype, tensor.data, b * tensor.batch_stride + t * tensor.time_stride);
      fill_rows_with_zero(heads, dim, {p.dtype, row, tensor.head_stride});
    }
  };
  if (const std::int32_t* offsets = of_keys ? p.cu_seqlens_k : p.cu_seqlens_q) {
    clear(0, {0, offsets[0]});
    clear(0, {offsets[p.N], T});
  }
  for (std::int64_t b = 0; of_keys && p.lengths_k && b < p.B; ++b) clear(b, {p.lengths_k[b], T});
}

}  // namespace tandem::cpu
