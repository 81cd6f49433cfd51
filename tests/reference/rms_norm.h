// The fp64 definition of the RMS norm of a row and of its gradient, as plain as the formula.
// Trusted as that is: tests/cpp/test_rms_norm.cpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace tandem::reference {

inline double rms_norm_rstd(const std::vector<double>& x, double eps) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

inline std::vector<double> rms_norm_row(const std::vector<double>& x, double rstd,
                                        const std::vector<double>& weight) {
  std::vector<double> n;
  n.reserve(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) n.push_back(x[i] * rstd * weight[i]);
  return n;
}

/// The gradients of a row, rstd being a function of x.
struct RmsNormRowGradient {
  std::vector<double> dx, d_weight;
};

inline RmsNormRowGradient rms_norm_row_gradient(const std::vector<double>& x, double rstd,
                                                const std::vector<double>& weight,
                                                const std::vector<double>& dn) {
  double along = 0;
  for (std::size_t i = 0; i < x.size(); ++i) along += dn[i] * weight[i] * x[i] * rstd;
  const double mean = along / static_cast<double>(x.size());
  RmsNormRowGradient gradient;
  for (std::size_t i = 0; i < x.size(); ++i) {
    gradient.dx.push_back(rstd * (dn[i] * weight[i] - x[i] * rstd * mean));
    gradient.d_weight.push_back(dn[i] * x[i] * rstd);
  }
  return gradient;
}

}  // namespace tandem::reference
