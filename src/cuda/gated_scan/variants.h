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

/// The scan of an x [B,T,D] in two parts, as a product leaves it (cuda/parts/two_parts.cuh).
struct OfProductProblem : GatedScanForwardProblem {
  TokenTensor x_rest;  // [B,T,D] of dtype
};

struct ForwardVariant : VariantOf<ForwardKernel> {
  /// "" when the variant can run the problem, else why not.
  std::string supports(const GatedScanForwardProblem& problem) const;
  std::string supports(const OfProductProblem& problem) const;
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

const std::vector<ForwardVariant>& forward_variants();
const std::vector<BackwardVariant>& backward_variants();

/// The table for scans of products, the choice in it as above, and the launch of what is chosen.
const std::vector<ForwardVariant>& of_product_variants();
const ForwardVariant& choose(const OfProductProblem& problem, const DeviceProperties& device,
                             const CallOptions& options = {});
void run(const OfProductProblem& problem, const Context& context, const CallOptions& options = {});

/// The shortest predicted time of such a scan, in microseconds, by what copies 16 bytes at once.
double predict_of_product(const ScanRecurrence& problem, const DeviceProperties& device);

}  // namespace tandem::cuda::gated_scan
