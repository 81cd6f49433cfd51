// Rows of tokens, as the definitions of blocks compute with them, in fp64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "reference/element.h"
#include "reference/rms_norm.h"
#include "tandem/tensor.h"

namespace tandem::reference {

using Row = std::vector<double>;

inline Row product(const TensorView& weight, const std::optional<TensorView>& bias, const Row& x) {
  Row z = bias ? read_vector(*bias) : Row(weight.shape[0], 0.0);
  for (std::size_t i = 0; i < z.size(); ++i) {
    const Row w = read_row(weight, static_cast<std::int64_t>(i), 0, weight.shape[1]);
    for (std::size_t j = 0; j < x.size(); ++j) z[i] += w[j] * x[j];
  }
  return z;
}

inline Row norm(const TensorView& weight, double eps, const Row& x) {
  return rms_norm_row(x, rms_norm_rstd(x, eps), read_vector(weight));
}

}  // namespace tandem::reference
