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

/// Whether a variant may take a problem of this dtype and number of rows.
template <class Variant>
bool takes_rows(const Variant& variant, DType dtype, std::int64_t M) {
  return dtype == variant.dtype && (variant.most_rows == 0 || M <= variant.most_rows);
}

/// Says why not, "" where it may.
template <class Variant>
std::string reason_against_rows(const Variant& variant, DType dtype, std::int64_t M) {
  if (takes_rows(variant, dtype, M)) return "";
  if (dtype != variant.dtype) {
    return "takes " + to_string(variant.dtype) + ", got " + to_string(dtype);
  }
  return "takes up to " + std::to_string(variant.most_rows) + " rows, got M " + std::to_string(M);
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
    double least = 0.0;
    for (const Variant& one : table) {
      // why asked twice: most variants fail the first, and reasons in words take the host its time.
      if (!takes_rows(one, problem.dtype, problem.M)) continue;
      if (!reason_against(one, problem).empty()) continue;
      const double time = predict_forward(one, problem, device);
      if (quickest != nullptr && !(time < least)) continue;
      quickest = &one;
      least = time;
    }
  };
  if (options.variant.empty() && !options.batch_invariant && problem.M > kStreamRows) {
    find_quickest();
  }
  return choose_variant(call, table, device, options, [&](const Variant& one) -> std::string {
    constexpr const char* kSlower = "is slower here";
    if (quickest != nullptr) return &one == quickest ? "" : kSlower;
    std::string reason = reason_against(one, problem);
    if (!reason.empty()) return reason;
    if (options.batch_invariant) {
      return is_invariant(one) ? "" : "is not the one of batch-invariant calls";
    }
    if (options.variant == one.name) return "";
    if (problem.M <= std::min(one.most_rows, kStreamRows)) return "";
    find_quickest();
    return &one == quickest ? "" : kSlower;
  });
}

}  // namespace tandem::cuda::gemm
