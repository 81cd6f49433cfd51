// What attention's forward and backward on the CPU have in common: blocks of queries and keys,
// read as the numbers that products take, and the work that threads share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/real.h"
#include "cpu/attention_spans.h"
#include "cpu/attention_tile.h"
#include "cpu/elementwise.h"
#include "cpu/isa.h"
#include "cpu/matmul.h"
#include "cpu/parallel.h"
#include "ops/attention_problem.h"

namespace tandem::cpu {

constexpr std::int64_t kQueryBlock = 128;
constexpr std::int64_t kKeyBlock = 256;

/// Calls body(block) for the blocks of at most `size` that a range is cut into; the first begins at
/// a multiple of `size`, so that a block is the same whoever asks.
template <typename Body>
void for_each_block(Range range, std::int64_t size, const Body& body) {
  for (std::int64_t i = range.begin / size * size; i < range.end; i += size) {
    body(Range{std::max(i, range.begin), std::min(i + size, range.end)});
  }
}

/// Queries, or keys, of one head of one sequence.
struct AttentionItem {
  const AttentionSpan* span;
  int head;
  Range rows;
  std::int64_t cost;  // how many of the others it meets
};

/// Runs body(item, thread) for all items, the longest first. Items share nothing that is written.
template <typename Body>
void run_items(std::vector<AttentionItem> items, int threads, const Body& body) {
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return a.cost > b.cost; });
  parallel_for(std::ssize(items), threads, Schedule::kDynamic,
               [&](std::int64_t i, int thread) { body(items[i], thread); });
}

template <typename Real>
class AttentionBlocks {
 public:
  AttentionBlocks(const AttentionForwardProblem& problem, MatmulProvider provider)
      : p_(problem), provider_(provider), spans_(attention_spans(problem)) {}

  const std::vector<AttentionSpan>& spans() const { return spans_; }

  /// Every block of at most `size` queries, of every head.
  std::vector<AttentionItem> query_items(std::int64_t size = kQueryBlock) const {
    std::vector<AttentionItem> items;
    for (const AttentionSpan& span : spans_) {
      for (int h = 0; h < p_.H; ++h) {
        for_each_block({0, span.q.size()}, size, [&](Range block) {
          items.push_back({&span, h, block, span.keys_of(block).size()});
        });
      }
    }
    return items;
  }

  /// Every block of keys, of every key head.
  std::vector<AttentionItem> key_items() const {
    std::vector<AttentionItem> items;
    for (const AttentionSpan& span : spans_) {
      for (int h = 0; h < p_.HKV; ++h) {
        for_each_block({0, span.k.size()}, kKeyBlock, [&](Range block) {
          items.push_back({&span, h, block, span.queries_of(block).size()});
        });
      }
    }
    return items;
  }

  /// The rows of a block in a tensor of queries, [rows,dim] as `to`.
  void read_queries(const StridedTensor& x, const AttentionSpan& span, int head, Range rows,
                    int dim, Real* to) const {
    read(x, span.b, span.q.begin + rows.begin, head, rows.size(), dim, to);
  }
  void read_keys(const StridedTensor& x, const AttentionSpan& span, int head, Range rows, int dim,
                 Real* to) const {
    read(x, span.b, span.k.begin + rows.begin, head, rows.size(), dim, to);
  }
  /// q times the scale.
  void read_scaled_queries(const AttentionSpan& span, int head, Range rows, Real* to) const {
    read_queries(p_.q, span, head, rows, p_.K, to);
    const Real scale = scale_of<Real>(p_);
    for (std::int64_t i = 0; i < rows.size() * p_.K; ++i) to[i] *= scale;
  }

  void write_queries(const Real* from, const AttentionSpan& span, int head, Range rows, int dim,
                     Real factor, const StridedTensor& x) const {
    rows_from_float(from, dim, rows.size(), dim, factor,
                    rows_of(x, span.b, span.q.begin + rows.begin, head));
  }
  void write_keys(const Real* from, const AttentionSpan& span, int head, Range rows, int dim,
                  const StridedTensor& x) const {
    rows_from_float(from, dim, rows.size(), dim, Real{1},
                    rows_of(x, span.b, span.k.begin + rows.begin, head));
  }

  /// c [M,N] = a b^T, of a [M,K] and b [N,K]; rows of c are `c_stride` apart.
  void multiply_by_rows(std::int64_t M, std::int64_t N, std::int64_t K, const Real* a,
                        const Real* b, Real* c, std::int64_t c_stride) const {
    multiply(M, N, K, {a, K}, {b, K, true}, c, c_stride, false);
  }
  /// c [M,N] = a b (+ c), of a [M,K] and b [K,N].
  void multiply_by(std::int64_t M, std::int64_t N, std::int64_t K, const Real* a, const Real* b,
                   Real* c, bool accumulate) const {
    multiply(M, N, K, {a, K}, {b, N}, c, N, accumulate);
  }
  /// c [M,N] = a^T b (+ c), of a [K,M] and b [K,N].
  void multiply_columns_by(std::int64_t M, std::int64_t N, std::int64_t K, const Real* a,
                           const Real* b, Real* c, bool accumulate) const {
    multiply(M, N, K, {a, M, true}, {b, N}, c, N, accumulate);
  }

  /// The place of a query in a [B,H,TQ] tensor.
  std::int64_t place(const AttentionSpan& span, int head, std::int64_t query) const {
    return (span.b * p_.H + head) * p_.TQ + span.q.begin + query;
  }

 private:
  Rows rows_of(const StridedTensor& x, std::int64_t b, std::int64_t token, int head) const {
    const std::int64_t first = b * x.batch_stride + token * x.time_stride + head * x.head_stride;
    return {p_.dtype, element_at(p_.dtype, x.data, first), x.time_stride};
  }
  void read(const StridedTensor& x, std::int64_t b, std::int64_t token, int head, std::int64_t rows,
            int dim, Real* to) const {
    const Rows from = rows_of(x, b, token, head);
    rows_to_float({from.dtype, from.data, from.stride}, rows, dim, to, dim);
  }
  void multiply(std::int64_t M, std::int64_t N, std::int64_t K, const MatmulOperand& a,
                const MatmulOperand& b, Real* c, std::int64_t c_stride, bool accumulate) const {
    matmul(provider_, {.M = M,
                       .N = N,
                       .K = K,
                       .dtype = kRealType<Real>,
                       .a = a,
                       .b = b,
                       .c = c,
                       .c_stride = c_stride,
                       .accumulate = accumulate});
  }

  const AttentionForwardProblem& p_;
  MatmulProvider provider_;
  std::vector<AttentionSpan> spans_;
};

}  // namespace tandem::cpu
