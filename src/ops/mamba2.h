// The element-wise passes around Mamba-2's recurrence, for the block.
#pragma once

#include <cstddef>
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

/// The gradients through both passes, from dv, d_log_decay and d_o behind the skip.
///
///   dx = dv dt + D d_o    d_dt = sum over a head's columns of dv x - exp(A_log) d_log_decay
///   d_A_log = sum over tokens of d_log_decay log_decay    d_D = sum over tokens and columns of d_o
///   x
struct Mamba2BackwardProblem : Mamba2Heads {
  const float* dt = nullptr;           // fp32 [M,H]
  const float* log_decay = nullptr;    // fp32 [M,H]
  WeightVector A_log, D;               // [H]
  MatrixTensor d_o, dv;                // [M,H*P]
  const float* d_log_decay = nullptr;  // fp32 [M,H]
  MatrixTensor dx;                     // [M,H*P]
  float* d_dt = nullptr;               // fp32 [M,H]
  WeightVectorGradient d_A_log, d_D;   // [H] or null
};

namespace cpu {
void mamba2_backward(const Mamba2BackwardProblem& problem);
void discretize(const DiscretizeProblem& problem);
void add_skip(const SkipProblem& problem);
}  // namespace cpu

namespace cuda {
/// In context.workspace, which the block gives.
void mamba2_backward(const Mamba2BackwardProblem& problem, const Context& context);
std::size_t mamba2_backward_workspace_bytes(const Mamba2BackwardProblem& problem);
void discretize(const DiscretizeProblem& problem, const Context& context);
void add_skip(const SkipProblem& problem, const Context& context);
}  // namespace cuda

}  // namespace tandem
