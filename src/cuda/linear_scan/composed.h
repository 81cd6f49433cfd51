// linear_scan_forward of two launches, x = u W^T and gated_scan_forward over x. Host only.
//
// In fp32, a sequence per CTA, for batch-invariant calls: a row of a product does not depend on
// where it lies, as the tiles of linear_scan_forward_kernel, which many sequences share, do. In 16
// bits, through the x that is kept for the backward: where that kernel, which has the tensor cores
// wait for the scan and the scan for them, has nothing left to save.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/linear_scan/projection.h"
#include "tandem/context.h"

namespace tandem::cuda::linear_scan {

enum class Composition { kNone, kFp32, kKeptX };

/// What a call keeps in its workspace: offsets in bytes. What is not needed has no bytes.
struct ComposedPlan {
  bool copies_u = false;  // TMA cannot read it
  bool copies_weight = false;
  std::size_t u = 0;  // copies, rows padded to 16 bytes
  std::size_t weight = 0;
  std::size_t x = 0;  // x and the next three, of kFp32: [B,T,D]
  std::size_t decay = 0;
  std::size_t gate = 0;
  std::size_t out = 0;
  std::size_t workspace_bytes = 0;
};

ComposedPlan plan_composed(const LinearScanForwardProblem& problem, Composition composition);

void run_composed(const char* op, const LinearScanForwardProblem& problem, Composition composition,
                  const Context& context);

/// "" when the dtype's kernels can run the problem, else why not.
std::string reason_against_composed(DType dtype, const LinearScanForwardProblem& problem,
                                    Composition composition, const DeviceProperties& device);

}  // namespace tandem::cuda::linear_scan
