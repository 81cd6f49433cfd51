// The fp64 definition of linear_scan and its gradients: reference/gated_scan.h over x = u W^T, as
// plain as the formula. Trusted as that is: tests/cpp/test_linear_scan_definition.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/linear_scan_problem.h"
#include "reference/gated_scan.h"

namespace tandem::reference {

/// Reads row t of u in its span.
inline std::vector<double> read_u(const LinearScanForwardProblem& p, const Span& span,
                                  std::int64_t t) {
  std::vector<double> row(p.d);
  const std::int64_t at = span.b * p.u.batch_stride + (span.begin + t) * p.u.time_stride;
  for (int i = 0; i < p.d; ++i) row[i] = element(p.dtype, p.u.data, at + i);
  return row;
}

/// Reads W at channel d.
inline std::vector<double> read_weight(const LinearScanForwardProblem& p, int d) {
  std::vector<double> row(p.d);
  for (int i = 0; i < p.d; ++i) {
    row[i] = element(p.dtype, p.weight.data, d * p.weight.row_stride + i);
  }
  return row;
}

/// Computes x of a channel of one sequence, over its own tokens.
inline std::vector<double> project_one(const LinearScanForwardProblem& p, std::int64_t n, int d) {
  const Span span = span_of(p, n);
  const std::vector<double> weight = read_weight(p, d);
  std::vector<double> x(span.length());
  for (std::int64_t t = 0; t < span.length(); ++t) {
    const std::int64_t at = span.b * p.u.batch_stride + (span.begin + t) * p.u.time_stride;
    for (int i = 0; i < p.d; ++i) x[t] += element(p.dtype, p.u.data, at + i) * weight[i];
  }
  return x;
}

inline ScanChannel linear_scan_forward_one(const LinearScanForwardProblem& p, std::int64_t n,
                                           int d) {
  return scan_forward_one(p, project_one(p, n, d), n, d);
}

/// du and d_weight follow from dx: du_t = sum over d of dx_t[d] W[d], d_weight[d] = sum over all
/// tokens of dx_t[d] u_t.
inline ScanChannelGradients linear_scan_backward_one(const LinearScanBackwardProblem& problem,
                                                     std::int64_t n, int d) {
  const LinearScanForwardProblem& p = problem.forward;
  const double d_final =
      problem.d_final_state ? real(p.dtype, problem.d_final_state, n * p.D + d) : 0.0;
  return scan_backward_one(p, linear_scan_forward_one(p, n, d),
                           read_channel(p.dtype, problem.d_out, span_of(p, n), d), d_final);
}

/// Computes dx alone, which does not depend on x.
inline std::vector<double> linear_scan_dx_one(const LinearScanBackwardProblem& problem,
                                              std::int64_t n, int d) {
  const LinearScanForwardProblem& p = problem.forward;
  const Span span = span_of(p, n);
  const double d_final =
      problem.d_final_state ? real(p.dtype, problem.d_final_state, n * p.D + d) : 0.0;
  const ScanChannel c = scan_forward_one(p, std::vector<double>(span.length()), n, d);
  return scan_backward_one(p, c, read_channel(p.dtype, problem.d_out, span, d), d_final).dx;
}

}  // namespace tandem::reference
