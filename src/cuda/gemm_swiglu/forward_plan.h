// gemm_swiglu_forward's variants and plan, for the call and its tests. Host only.
#pragma once

#include <string>
#include <vector>

#include "cuda/gemm/matrix.h"
#include "cuda/gemm_swiglu/forward_params.h"
#include "cuda/row_norm/row_norm.h"
#include "ops/gemm_swiglu_problem.h"
#include "tandem/device.h"

namespace tandem::cuda::gemm_swiglu {

/// Tiles of 128 rows, or of `few_rows`, by `columns` products.
struct ForwardVariant {
  using Launch = void (*)(const ForwardParams&, int multiprocessors, void* stream);
  using Normalize = void (*)(const char*, const row_norm::NormalizeParams&, void* stream);

  std::string name;
  DType dtype;
  int columns;    // of a tile: half of them results
  int most_rows;  // that it takes; 0: any number
  int few_rows;   // of a tile of gemm/few_rows.cuh, up to
  Launch launch;
  Normalize normalize;
};

const std::vector<ForwardVariant>& forward_variants();

/// "" when the variant can run the problem, else why not.
std::string reason_against(const ForwardVariant& variant, const GemmSwigluForwardProblem& problem);

/// What a call keeps in its workspace: offsets in bytes. What is not needed has no bytes.
struct ForwardPlan {
  bool copies_x = false;  // TMA cannot read it; with a norm n stands there
  bool copies_gate_weight = false;
  bool copies_up_weight = false;
  std::size_t x = 0;  // rows padded to 16 bytes, as those of the next two
  std::size_t gate_weight = 0;
  std::size_t up_weight = 0;
  std::size_t workspace_bytes = 0;
};
ForwardPlan plan_forward(const GemmSwigluForwardProblem& problem);

/// Predicted microseconds of a variant for any number of rows, which decide between these.
double predict_forward(const ForwardVariant& variant, const GemmSwigluForwardProblem& problem,
                       const DeviceProperties& device);

}  // namespace tandem::cuda::gemm_swiglu
