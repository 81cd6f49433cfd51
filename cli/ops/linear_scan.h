// linear_scan for the tools, split over linear_scan.cpp ("forward"), linear_scan_backward.cpp,
// linear_scan_forward_backward.cpp and linear_scan_expect.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "ops/linear_scan.h"

namespace tandem::tools {

TensorSet make_linear_scan(const Case& one, DType dtype, std::uint64_t seed);
std::unique_ptr<Expectation> expect_linear_scan(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_linear_scan_backward(const TensorSet& set, bool sampled);

/// Makes the checked problem with each buffer of the set at `bases[i]` on `device`.
LinearScanForwardProblem linear_problem_at(const TensorSet& set, const std::vector<void*>& bases,
                                           Device device);

/// Makes the checked problem over the set's own buffers, to be read only.
LinearScanForwardProblem host_linear_problem(const TensorSet& set);
LinearScanBackwardProblem host_linear_backward_problem(const TensorSet& set);

/// Returns "B8 T4096 d256 D1024".
std::string linear_scan_shape(const TensorSet& set);

/// Flops of one product of all tokens with W.
double projection_flops(const TensorSet& set);

}  // namespace tandem::tools
