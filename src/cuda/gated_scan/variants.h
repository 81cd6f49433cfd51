// The tables behind cuda::gated_scan_*, for their tests.
#pragma once

#include <string>
#include <vector>

#include "cuda/gated_scan/kernels.h"
#include "ops/gated_scan.h"

namespace tandem::cuda {

struct ScanForwardVariant {
  std::string name;
  DType dtype;
  DType decay_dtype;
  bool aligned;                // loads 16 bytes at once
  std::int64_t fewest_chains;  // fewer are left to narrower tiles
  ScanForwardKernel kernel;

  /// "" when the variant can run the problem, else why not.
  std::string supports(const GatedScanForwardProblem& problem) const;
};

const std::vector<ScanForwardVariant>& scan_forward_variants();

}  // namespace tandem::cuda
