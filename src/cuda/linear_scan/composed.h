// linear_scan_forward of several launches, for batch-invariant calls: x = u W^T in fp32, and
// gated_scan_forward, a sequence per CTA, over fp32 tensors. A row of a product does not depend on
// where it lies, as the tiles of linear_scan_forward_kernel, which many sequences share, do. Host
// only.
#pragma once

#include <cstddef>

#include "cuda/linear_scan/projection.h"
#include "tandem/context.h"

namespace tandem::cuda::linear_scan {

/// What a call keeps in its workspace: offsets in bytes. What is not needed has no bytes.
struct ComposedPlan {
  bool copies_u = false;  // TMA cannot read it
  bool copies_weight = false;
  std::size_t u = 0;  // copies, rows padded to 16 bytes
  std::size_t weight = 0;
  std::size_t x = 0;  // x and the next three: fp32 [B,T,D]
  std::size_t decay = 0;
  std::size_t gate = 0;
  std::size_t out = 0;
  std::size_t workspace_bytes = 0;
};

ComposedPlan plan_composed(const LinearScanForwardProblem& problem);

void run_composed(const char* op, const LinearScanForwardProblem& problem, const Context& context);

/// "" when the dtype's kernels can run the problem, else why not.
std::string reason_against_composed(DType dtype, const LinearScanForwardProblem& problem,
                                    const DeviceProperties& device);

}  // namespace tandem::cuda::linear_scan
