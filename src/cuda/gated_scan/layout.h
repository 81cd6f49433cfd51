// How tensors of a gated scan must lie for accesses of 16 bytes. Host only.
#pragma once

#include <cstdint>
#include <string>

#include "ops/gated_scan_problem.h"

namespace tandem::cuda::gated_scan {

/// Says why a tensor cannot be read or written 16 bytes at a time, "" when it can.
inline std::string layout_problem(const char* name, const TokenTensor& tensor, DType dtype,
                                  const ScanRecurrence& problem) {
  const std::string argument = name;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) {
    return argument + " does not start at a multiple of 16 bytes";
  }
  const auto check = [&](const char* axis, std::int64_t extent, std::int64_t stride) {
    const std::int64_t bytes = stride * size_of(dtype);
    return extent <= 1 || bytes % 16 == 0
               ? ""
               : argument + " has a " + axis + " stride of " + std::to_string(bytes) +
                     " bytes, not a multiple of 16";
  };
  const std::string reason = check("batch", problem.B, tensor.batch_stride);
  return reason.empty() ? check("time", problem.T, tensor.time_stride) : reason;
}

}  // namespace tandem::cuda::gated_scan
