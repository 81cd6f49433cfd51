// The tables behind cuda::gated_scan_*, for their tests.
#pragma once

#include <string>
#include <vector>

#include "core/call_options.h"
#include "cuda/gated_scan/kernels.h"
#include "ops/gated_scan_problem.h"

namespace tandem::cuda {

template <class Kernel>
struct ScanVariant {
  std::string name;
  DType dtype;
  DType decay_dtype;
  bool aligned;  // loads 16 bytes, or 8, at once
  Kernel kernel;
};

struct ScanForwardVariant : ScanVariant<ScanForwardKernel> {
  /// "" when the variant can run the problem, else why not.
  std::string supports(const GatedScanForwardProblem& problem) const;
};

struct ScanBackwardVariant : ScanVariant<ScanBackwardKernel> {
  // The forward's kernel that leaves the states before each tile; its launch is null where the
  // backward's kernel computes them itself.
  ScanForwardKernel states_kernel;

  std::string supports(const GatedScanBackwardProblem& problem) const;
};

/// Chooses the fastest variant for a problem, by plan_scan; throws Unsupported if none can run it.
const ScanForwardVariant& choose_scan_variant(const GatedScanForwardProblem& problem,
                                              const DeviceProperties& device,
                                              const CallOptions& options = {});
const ScanBackwardVariant& choose_scan_variant(const GatedScanBackwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options = {});

const std::vector<ScanForwardVariant>& scan_forward_variants();
const std::vector<ScanBackwardVariant>& scan_backward_variants();

}  // namespace tandem::cuda
