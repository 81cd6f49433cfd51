// gated_scan for the tools, split over gated_scan.cpp ("forward"), gated_scan_backward.cpp,
// gated_scan_forward_backward.cpp and gated_scan_expect.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "ops/gated_scan.h"

namespace tandem::tools {

std::unique_ptr<Expectation> expect_gated_scan(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gated_scan_backward(const TensorSet& set, bool sampled);

/// Makes the checked problem with each buffer of the set at `bases[i]` on `device`.
GatedScanForwardProblem scan_problem_at(const TensorSet& set, const std::vector<void*>& bases,
                                        Device device);

/// Makes the checked problem over the set's own buffers, to be read only.
GatedScanForwardProblem host_scan_problem(const TensorSet& set);
GatedScanBackwardProblem host_scan_backward_problem(const TensorSet& set);

/// Returns "B8 T4096 D1024".
std::string scan_shape(const Dims& x);

}  // namespace tandem::tools
