// linear_scan composed of cuBLASLt's products and Tandem's gated_scan.
//
//   forward    x = u W^T                    cuBLASLt
//              out, final_state             gated_scan_forward
//   backward   x = u W^T                    cuBLASLt, where a gradient needs x and none was kept
//              dx and the other gradients   gated_scan_backward
//              du = dx W, d_weight = dx^T u cuBLASLt
//
// A forward with its backward keeps x for it. x and dx have 16 bits.
#include <algorithm>
#include <cstdint>

#include "batched_matmul.h"
#include "bench/cuda/linear_scan_products.h"
#include "bench/cuda/unfused.h"
#include "cuda/runtime/workspace.h"
#include "ops/gated_scan.h"

namespace tandem::bench {
namespace {

constexpr const char* kName = "composed linear_scan";  // in errors

/// A [B,T,D] tensor without gaps.
TokenTensor dense(const ScanRecurrence& call, void* data) {
  return {data, call.T * call.D, call.D};
}

/// Makes the scan behind the product x.
GatedScanForwardProblem scan_of(const LinearScanForwardProblem& problem, void* x) {
  GatedScanForwardProblem scan;
  static_cast<ScanRecurrence&>(scan) = problem;
  scan.x = dense(problem, x);
  scan.out = problem.out;
  scan.final_state = problem.final_state;
  return scan;
}

bool needs_dx(const LinearScanBackwardProblem& problem) {
  return problem.du.data != nullptr || problem.d_weight.data != nullptr;
}

GatedScanBackwardProblem scan_of(const LinearScanBackwardProblem& problem, void* x, void* dx) {
  GatedScanBackwardProblem scan;
  static_cast<ScanGradients&>(scan) = problem;
  scan.states = nullptr;  // gated_scan's calls do not hand states on
  scan.forward = scan_of(problem.forward, x);
  if (needs_dx(problem)) scan.dx = dense(problem.forward, dx);
  return scan;
}

/// A forward, a backward, or a forward with its backward.
class Composed {
 public:
  Composed(const LinearScanForwardProblem* forward, const LinearScanBackwardProblem* backward)
      : forward_(forward),
        backward_(backward),
        inputs_(forward ? *forward : backward->forward),
        kept_x_(forward ? forward->x.data : backward->x.data) {
    check();
    makes_x_ = forward || (!kept_x_ && backward_scan(nullptr).needs_states());
    const std::int64_t tensor = inputs_.B * inputs_.T * inputs_.D * 2;
    cuda::WorkspaceLayout layout;
    x_ = layout.add(makes_x_ && !kept_x_ ? tensor : 0);
    dx_ = layout.add(backward && needs_dx(*backward) ? tensor : 0);
    matmul_ = layout.add(kMatmulWorkspaceBytes);
    scan_ = layout.bytes();
    scan_bytes_ = plan_scans(reinterpret_cast<char*>(cuda::kWorkspaceAlignment));
  }

  std::size_t workspace_bytes() const { return scan_ + scan_bytes_; }

  void run(const Context& context) const {
    const cuda::DeviceGuard guard(inputs_.device.index);
    const cuda::ScratchMemory scratch(kName, context, workspace_bytes());
    const auto stream = static_cast<cudaStream_t>(context.stream.handle);
    char* const base = scratch.at<char>(0);
    const Context of_scan = {.stream = context.stream, .workspace = {base + scan_, scan_bytes_}};
    if (makes_x_) multiply_x(inputs_, x_at(base), base + matmul_, stream);
    if (forward_) cuda::gated_scan_forward(forward_scan(base), of_scan);
    if (!backward_) return;
    cuda::gated_scan_backward(backward_scan(base), of_scan);
    multiply_gradients(*backward_, base + dx_, base + matmul_, stream);
  }

 private:
  void check() const {
    if (backward_) check_products(*backward_);
    if (forward_) check_products(*forward_);
  }

  void* x_at(char* base) const { return kept_x_ ? kept_x_ : base + x_; }
  GatedScanForwardProblem forward_scan(char* base) const { return scan_of(*forward_, x_at(base)); }
  GatedScanBackwardProblem backward_scan(char* base) const {
    return scan_of(*backward_, x_at(base), base + dx_);
  }

  /// Returns the larger workspace of the two scans.
  std::size_t plan_scans(char* base) const {
    const DeviceProperties& device = device_properties(inputs_.device);
    std::size_t bytes = 0;
    if (forward_) bytes = cuda::gated_scan_forward_workspace_bytes(forward_scan(base), device);
    if (!backward_) return bytes;
    return std::max(bytes, cuda::gated_scan_backward_workspace_bytes(backward_scan(base), device));
  }

  const LinearScanForwardProblem* forward_;    // or null
  const LinearScanBackwardProblem* backward_;  // or null
  const LinearScanForwardProblem& inputs_;     // what both read
  void* kept_x_;                               // the caller's, or null
  bool makes_x_ = false;
  std::size_t x_ = 0, dx_ = 0, matmul_ = 0, scan_ = 0, scan_bytes_ = 0;
};

}  // namespace

void composed_linear_scan(const LinearScanForwardProblem& problem, const Context& context) {
  Composed(&problem, nullptr).run(context);
}

std::size_t composed_linear_scan_workspace_bytes(const LinearScanForwardProblem& problem) {
  return Composed(&problem, nullptr).workspace_bytes();
}

void composed_linear_scan_backward(const LinearScanBackwardProblem& problem,
                                   const Context& context) {
  Composed(nullptr, &problem).run(context);
}

std::size_t composed_linear_scan_backward_workspace_bytes(
    const LinearScanBackwardProblem& problem) {
  return Composed(nullptr, &problem).workspace_bytes();
}

void composed_linear_scan_both(const LinearScanForwardProblem& forward,
                               const LinearScanBackwardProblem& backward, const Context& context) {
  Composed(&forward, &backward).run(context);
}

std::size_t composed_linear_scan_both_workspace_bytes(const LinearScanForwardProblem& forward,
                                                      const LinearScanBackwardProblem& backward) {
  return Composed(&forward, &backward).workspace_bytes();
}

}  // namespace tandem::bench
