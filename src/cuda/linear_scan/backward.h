// The table behind cuda::linear_scan_backward and the plan of a call, for their tests.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ops/linear_scan_problem.h"
#include "tandem/device.h"

namespace tandem::cuda::linear_scan {

struct BackwardVariant {
  std::string name;
  DType dtype;
};

const std::vector<BackwardVariant>& backward_variants();

/// What a call keeps in its workspace: offsets in bytes. What is not needed has no bytes.
struct BackwardPlan {
  bool projects = false;   // x, which the forward has not kept, for the states
  bool needs_dx = false;   // for du or d_weight
  bool copies_u = false;   // its tokens are not the rows of one matrix
  bool copies_du = false;  // the same of du
  std::size_t u = 0;       // u to du: 16 bits, rows padded to 16 bytes
  std::size_t x = 0;
  std::size_t dx = 0;
  std::size_t du = 0;
  std::size_t inner = 0;  // the workspace of the calls it is made of, one after the other
  std::size_t inner_bytes = 0;
  std::size_t workspace_bytes = 0;
};

/// Throws Unsupported when one of those calls does not take the problem.
BackwardPlan plan_backward(const LinearScanBackwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant = false);

}  // namespace tandem::cuda::linear_scan
