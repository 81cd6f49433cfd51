// gated_output_forward's variants and plan, for the call and its tests. Host only.
#pragma once

#include <string>
#include <vector>

#include "cuda/gated_output/forward_params.h"
#include "cuda/gated_output/gate_rows.h"
#include "cuda/gemm/matrix.h"
#include "cuda/row_norm/row_norm.h"
#include "ops/gated_output_problem.h"
#include "tandem/device.h"

namespace tandem::cuda::gated_output {

/// Tiles of 128 rows by `columns`, of a product alone or of whole rows with their norm; or of
/// `few_rows`.
struct ForwardVariant {
  using Launch = void (*)(const ForwardParams&, int multiprocessors, void* stream);
  using LaunchWholeRows = void (*)(const WholeRowsParams&, int multiprocessors, void* stream);
  template <class Params>
  using Rows = void (*)(const char*, const Params&, void* stream);

  std::string name;
  DType dtype;
  int columns;
  int most_rows;               // that it takes; 0: any number
  int few_rows;                // of a tile of gemm/few_rows.cuh, up to
  Launch launch;               // or
  LaunchWholeRows whole_rows;  // which `gates` in the kernel, or takes a as it is
  bool gates;
  Rows<GateParams> gate;
  Rows<row_norm::NormalizeParams> normalize;
  bool splits = false;  // each tile's depth among the CTAs of a cluster
};

const std::vector<ForwardVariant>& forward_variants();

/// "" when the variant can run the problem, else why not.
std::string reason_against(const ForwardVariant& variant, const GatedOutputForwardProblem& problem);

/// What a call keeps in its workspace: offsets in bytes, rows padded to 16 bytes. What is not
/// needed has no bytes.
struct ForwardPlan {
  bool gates = false;     // a is made before the product, as `gated` or in the workspace
  bool copies_a = false;  // TMA cannot read o, or `gated`
  bool copies_weight = false;
  bool copies_residual = false;
  std::size_t a = 0;
  std::size_t weight = 0;
  std::size_t residual = 0;
  std::size_t parts = 0;  // what tiles of whole rows exchange
  std::size_t arrived = 0;
  std::size_t workspace_bytes = 0;
};
ForwardPlan plan_forward(const ForwardVariant& variant, const GatedOutputForwardProblem& problem);

/// Predicted microseconds of a variant for any number of rows, which decide between these.
double predict_forward(const ForwardVariant& variant, const GatedOutputForwardProblem& problem,
                       const DeviceProperties& device);

}  // namespace tandem::cuda::gated_output
