// The tables behind cuda::linear_scan_forward, for their tests.
#pragma once

#include <string>
#include <vector>

#include "core/call_options.h"
#include "cuda/linear_scan/composed.h"
#include "cuda/linear_scan/forward_params.h"
#include "cuda/linear_scan/forward_plan.h"
#include "cuda/runtime/tensor_map.h"

namespace tandem::cuda::linear_scan {

/// One way to run the op. Tried in the table's order.
struct ForwardVariant {
  using Launch = void (*)(const char*, const ForwardParams&, unsigned blocks, void*);

  std::string name;
  DType dtype;
  Tiling tiling;
  Launch launch;          // of Tiling::kComposed null, as the next
  Launch launch_keeping;  // for calls that keep x or states
};

const std::vector<ForwardVariant>& forward_variants();

/// Plans of the copies that TMA would make; `problem` says why it cannot make all of them, "" when
/// it can. Absent tensors are not looked at.
struct TilePlans {
  TensorMapPlan u, weight, decay, gate, out, x;
  std::string problem;
};
TilePlans plan_tiles(const LinearScanForwardProblem& problem, Tiling tiling);
/// Sets the maps of params, whose problem is set.
void set_maps(const TilePlans& plans, ForwardParams& params);

/// "" when the variant should run the problem, else why not. The only one that the options allow
/// need not be the quickest, `best`: choose_tiling(problem, device). In a batch-invariant call it
/// is the composed one, whose plan goes to `composed`.
std::string reason_against(const ForwardVariant& variant, const LinearScanForwardProblem& problem,
                           const DeviceProperties& device, Tiling best,
                           const CallOptions& options = {}, ComposedPlan* composed = nullptr);

}  // namespace tandem::cuda::linear_scan
