#include "bench/cuda/linear_scan_products.h"

#include <cstdint>
#include <string>

#include "batched_matmul.h"
#include "bench/cuda/unfused.h"
#include "cuda/runtime/cuda_check.h"

namespace tandem::bench {
namespace {

// why: for less, cuBLASLt's heuristic proposes slower algorithms.
constexpr std::uintptr_t kAlignment = 256;

/// Refuses an operand; a null one is not there.
void check(const char* name, const void* data, bool no_gaps) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0;
  if (data == nullptr || (no_gaps && aligned)) return;
  throw Unsupported("[linear_scan by cuBLASLt] " + std::string(name) +
                    " must have no gaps and begin at a multiple of 256 bytes");
}

void check_tokens(const char* name, const TokenTensor& tensor, const ScanRecurrence& call,
                  int columns) {
  const bool rows = tensor.time_stride == columns || call.T < 2;
  const bool batches = tensor.batch_stride == call.T * columns || call.B < 2 || call.T == 0;
  check(name, tensor.data, rows && batches);
}

void check_matrix(const char* name, const MatrixTensor& matrix, int rows, int columns) {
  check(name, matrix.data, matrix.row_stride == columns || rows < 2);
}

}  // namespace

void check_products(const LinearScanForwardProblem& problem) {
  check_baseline(problem);
  check_tokens("u", problem.u, problem, problem.d);
  check_matrix("weight", problem.weight, problem.D, problem.d);
  check_tokens("x", problem.x, problem, problem.D);
}

void check_products(const LinearScanBackwardProblem& problem) {
  const LinearScanForwardProblem& forward = problem.forward;
  check_products(forward);
  check_tokens("x", problem.x, forward, forward.D);
  check_tokens("du", problem.du, forward, forward.d);
  check_matrix("d_weight", problem.d_weight, forward.D, forward.d);
}

void multiply_x(const LinearScanForwardProblem& problem, void* x, void* workspace,
                cudaStream_t stream) {
  const std::int64_t tokens = problem.B * problem.T;
  if (tokens == 0) return;
  multiply({.dtype = cuda_type(problem.dtype),
            .batch = 1,
            .M = tokens,
            .N = problem.D,
            .K = problem.d,
            .alpha = 1.0f,
            .a = {problem.u.data},
            .b = {problem.weight.data, true},
            .d = x},
           workspace, stream);
}

void multiply_gradients(const LinearScanBackwardProblem& problem, const void* dx, void* workspace,
                        cudaStream_t stream) {
  const LinearScanForwardProblem& forward = problem.forward;
  const cudaDataType_t dtype = cuda_type(forward.dtype);
  const std::int64_t tokens = forward.B * forward.T;
  if (problem.du.data != nullptr && tokens > 0) {
    multiply({.dtype = dtype,
              .batch = 1,
              .M = tokens,
              .N = forward.d,
              .K = forward.D,
              .alpha = 1.0f,
              .a = {dx},
              .b = {forward.weight.data},
              .d = problem.du.data},
             workspace, stream);
  }
  if (problem.d_weight.data != nullptr && tokens > 0) {
    multiply({.dtype = dtype,
              .batch = 1,
              .M = forward.D,
              .N = forward.d,
              .K = tokens,
              .alpha = 1.0f,
              .a = {dx, true},
              .b = {forward.u.data},
              .d = problem.d_weight.data},
             workspace, stream);
  } else if (problem.d_weight.data != nullptr) {
    const std::size_t bytes = size_of(forward.dtype) * forward.D * forward.d;
    cuda::cuda_check(cudaMemsetAsync(problem.d_weight.data, 0, bytes, stream), "cudaMemsetAsync");
  }
}

}  // namespace tandem::bench
