// The element-wise passes around Mamba-2's recurrence, for the block.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "ops/gated_output_problem.h"
#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// What both passes go over: M tokens, H heads of P columns.
struct Mamba2Heads {
  DType dtype = DType::kBFloat16;  // of matrices
  Device device;
  std::int64_t M = 0;
  int H = 0;
  int P = 0;
  MatrixTensor x;  // [M,H*P]
};

/// Steps of the length dt: v = x dt, rounded once, and log_decay = -exp(A_log) dt.
struct DiscretizeProblem : Mamba2Heads {
  const float* dt = nullptr;   // fp32 [M,H]
  WeightVector A_log;          // [H]
  MatrixTensor v;              // [M,H*P]
  float* log_decay = nullptr;  // fp32 [M,H]
};

/// o = o + D x, in place.
struct SkipProblem : Mamba2Heads {
  WeightVector D;  // [H]
  MatrixTensor o;  // [M,H*P]
};

namespace cpu {
void discretize(const DiscretizeProblem& problem);
void add_skip(const SkipProblem& problem);
}  // namespace cpu

namespace cuda {
void discretize(const DiscretizeProblem& problem, const Stream& stream);
void add_skip(const SkipProblem& problem, const Stream& stream);
}  // namespace cuda

}  // namespace tandem
