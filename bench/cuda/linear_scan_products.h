// linear_scan's three matrix products by cuBLASLt, for its baselines. x and dx [B,T,D] have the
// call's 16 bits and no gaps.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/linear_scan_problem.h"

namespace tandem::bench {

/// Throws Unsupported where no baseline takes the call, or an operand of its products has gaps or
/// begins off the multiples of 256 bytes.
void check_products(const LinearScanForwardProblem& problem);
void check_products(const LinearScanBackwardProblem& problem);

/// x = u W^T. `workspace` has kMatmulWorkspaceBytes, here and below.
void multiply_x(const LinearScanForwardProblem& problem, void* x, void* workspace,
                cudaStream_t stream);

/// du = dx W and d_weight = dx^T u, each where it is wanted.
void multiply_gradients(const LinearScanBackwardProblem& problem, const void* dx, void* workspace,
                        cudaStream_t stream);

}  // namespace tandem::bench
