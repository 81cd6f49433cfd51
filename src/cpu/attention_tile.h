// What attention on the CPU does with one tile of scores, row by row: queries by keys. Every row
// has a range of columns that its query sees; outside it weights are 0, whatever the scores are.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/attention_spans.h"

namespace tandem::cpu {

/// A tile [rows,columns], its rows one behind the other.
template <typename Real>
struct ScoreTile {
  Real* scores;
  std::int64_t columns;
  std::vector<Range> seen;  // of each row, in [0,columns]
};

/// Sets `seen` for these queries and keys of a span.
template <typename Real>
void see(const AttentionSpan& span, Range queries, Range keys, ScoreTile<Real>& tile) {
  tile.columns = keys.size();
  tile.seen.clear();
  for (std::int64_t i = queries.begin; i < queries.end; ++i) {
    const Range of_row = span.keys_of(i);
    const std::int64_t begin = std::clamp(of_row.begin, keys.begin, keys.end);
    const std::int64_t end = std::clamp(of_row.end, begin, keys.end);
    tile.seen.push_back({begin - keys.begin, end - keys.begin});
  }
}

/// A row's softmax over the tiles so far.
template <typename Real>
struct SoftmaxRow {
  Real most;  // the largest score; -inf before any
  Real sum;   // of exp(score - most)
};

/// Turns scores into exp(score - most), and adds the tile to each row's softmax. `factors` is what
/// each row's results of earlier tiles are to be multiplied by: their weights were measured by a
/// smaller `most`.
void softmax_tile(const ScoreTile<float>& tile, SoftmaxRow<float>* rows, float* factors);
void softmax_tile(const ScoreTile<double>& tile, SoftmaxRow<double>* rows, double* factors);

/// Turns scores into weights p = exp(score - log_sum_exp), and the weights' gradients, of the same
/// shape, into the scores': ds = p (dp - mean), with a value of each row.
void gradient_tile(const ScoreTile<float>& tile, const float* log_sum_exp, const float* mean,
                   float* gradients);
void gradient_tile(const ScoreTile<double>& tile, const double* log_sum_exp, const double* mean,
                   double* gradients);

}  // namespace tandem::cpu
