// The tables behind cuda::gated_scan_*, for their tests.
#pragma once

#include <string>
#include <vector>

#include "core/call_options.h"
#include "cuda/gated_scan/kernels.h"
#include "ops/gated_scan_problem.h"
#include "tandem/context.h"

namespace tandem::cuda::gated_scan {

template <class Kernel>
struct VariantOf {
  std::string name;
  DType dtype;
  DType decay_dtype;
  bool aligned;       // loads 16 bytes, or 8, at once
  bool per_sequence;  // for batch-invariant calls: a chain is a sequence's, with a CTA of its own
  Kernel kernel;
};

struct ForwardVariant : VariantOf<ForwardKernel> {
  /// "" when the variant can run the problem, else why not.
  std::string supports(const GatedScanForwardProblem& problem) const;
};

struct BackwardVariant : VariantOf<BackwardKernel> {
  // The forward's kernel that leaves the states before each tile; its launch is null where the
  // backward's kernel computes them itself.
  ForwardKernel states_kernel;

  std::string supports(const GatedScanBackwardProblem& problem) const;
};

/// Chooses the fastest variant for a problem, by plan_scan, or the one whose chains are sequences
/// for a batch-invariant call; throws Unsupported if none can run it.
const ForwardVariant& choose(const GatedScanForwardProblem& problem, const DeviceProperties& device,
                             const CallOptions& options = {});
const BackwardVariant& choose(const GatedScanBackwardProblem& problem,
                              const DeviceProperties& device, const CallOptions& options = {});

/// Computes the states that a forward keeps (ScanGradients) by a walk of its own, for a forward
/// whose own walk has none at these tokens.
void keep_states(const GatedScanForwardProblem& problem, float* states, const Context& context);

const std::vector<ForwardVariant>& forward_variants();
const std::vector<BackwardVariant>& backward_variants();

}  // namespace tandem::cuda::gated_scan
