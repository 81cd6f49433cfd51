// The choice among a product's variants: of few rows, or of tiles of some width. Host only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/call_options.h"
#include "cuda/gemm/few_rows_config.h"
#include "cuda/runtime/choose_variant.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem::cuda::gemm {

/// Says why a variant takes no problem of this dtype and number of rows, "" when it may.
template <class Variant>
std::string reason_against_rows(const Variant& variant, DType dtype, std::int64_t M) {
  if (dtype != variant.dtype) {
    return "takes " + to_string(variant.dtype) + ", got " + to_string(dtype);
  }
  if (variant.most_rows > 0 && M > variant.most_rows) {
    return "takes up to " + std::to_string(variant.most_rows) + " rows, got M " + std::to_string(M);
  }
  return "";
}

/// Returns the first variant for few rows that accepts a problem of up to kStreamRows, else the one
/// with the shortest predict_forward; in a batch-invariant call the one that is_invariant. A
/// variant has most_rows, 0 for any number, and columns of a tile.
template <class Variant, class Problem, class IsInvariant>
const Variant& choose_product(const char* call, const std::vector<Variant>& table,
                              const Problem& problem, const DeviceProperties& device,
                              const CallOptions& options, IsInvariant is_invariant) {
  const Variant* quickest = nullptr;
  const auto find_quickest = [&] {
    const auto time = [&](const Variant& one) { return predict_forward(one, problem, device); };
    for (const Variant& one : table) {
      if (!reason_against(one, problem).empty()) continue;
      if (quickest == nullptr || time(one) < time(*quickest)) quickest = &one;
    }
  };
  return choose_variant(call, table, device, options, [&](const Variant& one) -> std::string {
    std::string reason = reason_against(one, problem);
    if (!reason.empty()) return reason;
    if (options.batch_invariant) {
      return is_invariant(one) ? "" : "is not the one of batch-invariant calls";
    }
    if (options.variant == one.name) return "";
    if (problem.M <= std::min(one.most_rows, kStreamRows)) return "";
    if (quickest == nullptr) find_quickest();
    return &one == quickest ? "" : "is slower here than " + quickest->name;
  });
}

}  // namespace tandem::cuda::gemm
