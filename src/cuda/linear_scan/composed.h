// linear_scan_forward of two calls: x = u W^T in two parts by projection, and the scan of it by
// gated_scan's kernels. Host only.
#pragma once

#include <cstddef>

#include "ops/linear_scan_problem.h"
#include "tandem/context.h"
#include "tandem/device.h"

namespace tandem::cuda::linear_scan {

/// What a call keeps in its workspace: offsets in bytes. What is not needed has no bytes.
struct ComposedPlan {
  bool copies_u = false;  // its tokens are not the rows of one matrix
  bool makes_x = false;   // nothing is kept, or it does not lie as a matrix does
  // Matrices of 16 bits, rows padded to 16 bytes.
  std::size_t u = 0;
  std::size_t x = 0;  // its parts (cuda/parts/two_parts.cuh)
  std::size_t x_rest = 0;
  std::size_t product = 0;
  std::size_t product_bytes = 0;
  std::size_t workspace_bytes = 0;
};

/// Throws Unsupported when one of the two calls does not take the problem.
ComposedPlan plan_composed(const LinearScanForwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant);

/// In a batch-invariant call a sequence is a CTA's.
void run_composed(const LinearScanForwardProblem& problem, const ComposedPlan& plan,
                  const Context& context, bool batch_invariant);

}  // namespace tandem::cuda::linear_scan
