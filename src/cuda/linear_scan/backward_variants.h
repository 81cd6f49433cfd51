// The table behind cuda::linear_scan_backward and the plan of a call, for their tests.
#pragma once

#include <string>
#include <vector>

#include "cuda/gemm/matrix.h"
#include "cuda/linear_scan/product.h"
#include "ops/linear_scan_problem.h"
#include "tandem/device.h"

namespace tandem::cuda::linear_scan {

/// The products and conversions in one dtype.
struct BackwardVariant {
  using Launch = void (*)(const char* name, const ProductParams&, int multiprocessors,
                          void* stream);
  using Convert = void (*)(const char* name, const gemm::ConvertParams&, void* stream);

  std::string name;
  DType dtype;
  Launch project, input, weight, weight_wide;
  Convert widen, narrow;
  gemm::SumSlices sum_slices;
};

const std::vector<BackwardVariant>& backward_variants();

/// "" when the variant can run the problem, else why not.
std::string reason_against(const BackwardVariant& variant,
                           const LinearScanBackwardProblem& problem);

/// What a call keeps in its workspace: offsets in bytes. What is not needed has no bytes.
struct BackwardPlan {
  bool projects = false;  // x, which the forward has not kept, for the states
  bool needs_dx = false;  // for du or d_weight
  bool copies_u = false;  // TMA cannot read it
  bool copies_weight = false;
  int weight_columns = kProductColumns;  // of a tile of d_weight
  int weight_slices = 0;                 // slices into which tokens are cut for d_weight
  std::size_t u = 0;                     // u to dx: 16 bits, rows padded to 16 bytes
  std::size_t weight = 0;
  std::size_t x = 0;
  std::size_t dx = 0;
  std::size_t partial_sums = 0;  // fp32 [weight_slices,D,d]
  std::size_t scan = 0;          // gated_scan_backward's workspace
  std::size_t scan_bytes = 0;
  std::size_t workspace_bytes = 0;
};
BackwardPlan plan_backward(const LinearScanBackwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant = false);

}  // namespace tandem::cuda::linear_scan
