// x = u W^T of linear_scan on the CPU, computed tile by tile.
#pragma once

#include <cstdint>
#include <vector>

#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/matmul.h"
#include "cpu/parallel.h"
#include "cpu/scan_chunks.h"
#include "ops/linear_scan_problem.h"

namespace tandem::cpu {

/// Computes tiles of x in Real (core/real.h). bf16 goes in as it is where the machine multiplies it
/// natively; other dtypes are converted to Real.
template <typename Real>
class LinearScanProjection {
 public:
  LinearScanProjection(const LinearScanForwardProblem& problem, MatmulProvider provider)
      : p_(problem), provider_(provider), rows_(parallel_threads()) {
    const bool as_it_lies = p_.dtype == kRealType<Real> ||
                            (p_.dtype == DType::kBFloat16 && matmul_prefers_bf16(provider));
    operand_dtype_ = as_it_lies ? p_.dtype : kRealType<Real>;
    weight_ = {p_.weight.data, p_.weight.row_stride, true};
    if (as_it_lies) return;
    for (std::vector<Real>& rows : rows_) rows.resize(std::int64_t{kScanRows} * p_.d);
    real_weight_.resize(std::int64_t{p_.D} * p_.d);
    rows_to_float({p_.dtype, p_.weight.data, p_.weight.row_stride}, p_.D, p_.d, real_weight_.data(),
                  p_.d);
    weight_ = {real_weight_.data(), p_.d, true};
  }
  LinearScanProjection(const LinearScanProjection&) = delete;

  /// Computes a tile of x, for ScanWalk's load_x.
  void operator()(const ScanTile& tile, int thread, Real* x) const {
    const ScanChunk& chunk = tile.chunk;
    const std::int64_t at = chunk.sequence->b * p_.u.batch_stride + chunk.begin * p_.u.time_stride;
    MatmulOperand rows{element_at(p_.dtype, p_.u.data, at), p_.u.time_stride};
    if (operand_dtype_ != p_.dtype) {
      rows_to_float({p_.dtype, rows.data, rows.stride}, chunk.rows, p_.d, rows_[thread].data(),
                    p_.d);
      rows = {rows_[thread].data(), p_.d};
    }
    MatmulOperand weight = weight_;
    weight.data = element_at(operand_dtype_, weight_.data, tile.block.first * weight_.stride);
    matmul(provider_, {.M = chunk.rows,
                       .N = tile.block.columns,
                       .K = p_.d,
                       .dtype = operand_dtype_,
                       .a = rows,
                       .b = weight,
                       .c = x,
                       .c_stride = kScanColumns});
  }

 private:
  const LinearScanForwardProblem& p_;
  MatmulProvider provider_;
  DType operand_dtype_;
  MatmulOperand weight_;                         // [d,D], transposed
  std::vector<Real> real_weight_;                // where the weight is converted
  mutable std::vector<std::vector<Real>> rows_;  // of u, of each thread, where they are converted
};

}  // namespace tandem::cpu
