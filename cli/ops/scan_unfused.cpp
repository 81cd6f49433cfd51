// The scans' unfused baselines for the tools.
#include "bench/cuda/scan.h"

#include <algorithm>

#include "cli/calls/arguments.h"
#include "cli/calls/gpu.h"
#include "cli/ops/scan.h"
#include "ops/gated_scan.h"
#include "ops/linear_scan.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

GatedScanForwardProblem gated_problem(const TensorSet& set, const std::vector<void*>& bases,
                                      Device device) {
  return make_problem(
      arguments_of<GatedScanForwardArgs>(gated_scan_forward_signature(), set, bases, device));
}

LinearScanForwardProblem linear_problem(const TensorSet& set, const std::vector<void*>& bases,
                                        Device device) {
  return make_problem(
      arguments_of<LinearScanForwardArgs>(linear_scan_forward_signature(), set, bases, device));
}

tandem_bench_tokens tokens(const TokenTensor& x) { return {x.data, x.batch_stride, x.time_stride}; }

/// Fills what both ops have.
tandem_bench_scan describe(const ScanRecurrence& scan, const TokenTensor& out, float* final_state) {
  if (scan.cu_seqlens != nullptr) {
    throw Unsupported("the unfused baseline is for dense batches, not for cu_seqlens");
  }
  if (scan.dtype == DType::kFloat32) {
    throw Unsupported("the unfused baseline is for bf16 and fp16, not for fp32");
  }
  tandem_bench_scan call{};
  call.device = scan.device.index;
  call.dtype = scan.dtype == DType::kBFloat16 ? TANDEM_BENCH_BF16 : TANDEM_BENCH_FP16;
  call.fp32_decay = scan.decay_dtype == DType::kFloat32;
  call.log_decay = scan.log_decay;
  call.B = scan.B;
  call.T = scan.T;
  call.D = scan.D;
  call.decay = tokens(scan.decay);
  call.gate = tokens(scan.gate);
  call.out = tokens(out);
  call.initial_state = scan.initial_state;
  call.final_state = final_state;
  call.N = scan.N;
  return call;
}

tandem_bench_scan describe(const GatedScanForwardProblem& problem) {
  tandem_bench_scan call = describe(problem, problem.out, problem.final_state);
  call.x = tokens(problem.x);
  return call;
}

tandem_bench_scan describe(const LinearScanForwardProblem& problem) {
  tandem_bench_scan call = describe(problem, problem.out, problem.final_state);
  call.d = problem.d;
  call.u = tokens(problem.u);
  call.weight = problem.weight.data;
  call.weight_stride = problem.weight.row_stride;
  return call;
}

using Sizes = int (*)(const tandem_bench_scan*, std::size_t*);

std::size_t workspace_bytes(const tandem_bench_scan& call,
                            Sizes sizes = tandem_bench_unfused_scan_workspace_bytes) {
  std::size_t bytes = 0;
  if (sizes(&call, &bytes) != 0) throw Unsupported(tandem_bench_last_error());
  return bytes;
}

/// Calls `run` with the context's workspace or, for the time of the call, with one of its own.
template <class Run>
void with_workspace(const Context& context, Device device, std::size_t bytes, const Run& run) {
  if (context.workspace.data != nullptr) return run(context.workspace);
  const gpu::Memory memory(device.index, std::max<std::size_t>(bytes, 256));
  run(Workspace{memory.data(), bytes});
  gpu::synchronize(device.index);  // the memory ends with this call
}

void require(int status) {
  if (status != 0) throw CudaError(tandem_bench_last_error());
}

void run_unfused(const tandem_bench_scan& call, Device device, const Context& context) {
  with_workspace(context, device, workspace_bytes(call), [&](const Workspace& workspace) {
    require(tandem_bench_unfused_scan_forward(&call, workspace.data, workspace.bytes,
                                              context.stream.handle));
  });
}

/// Lays out the workspace of the product and of the gated_scan that follows, one behind the other.
struct TwoKernels {
  TwoKernels(const TensorSet& set, const std::vector<void*>& bases, Device device) {
    const LinearScanForwardProblem problem = linear_problem(set, bases, device);
    product = describe(problem);
    static_cast<ScanRecurrence&>(scan) = problem;
    scan.x = {nullptr, problem.T * problem.D, problem.D};
    scan.out = problem.out;
    scan.final_state = problem.final_state;
    product_bytes = workspace_bytes(product, tandem_bench_projection_workspace_bytes);
    scan_bytes = cuda::gated_scan_forward_workspace_bytes(scan, device_properties(device));
  }

  tandem_bench_scan product;
  GatedScanForwardProblem scan;  // x is where the product's workspace begins
  std::size_t product_bytes, scan_bytes;
};

}  // namespace

std::size_t unfused_gated_scan_workspace_bytes(const TensorSet& set,
                                               const std::vector<void*>& bases, Device device) {
  return workspace_bytes(describe(gated_problem(set, bases, device)));
}

void unfused_gated_scan(const TensorSet& set, const std::vector<void*>& bases, Device device,
                        const Context& context) {
  run_unfused(describe(gated_problem(set, bases, device)), device, context);
}

std::size_t unfused_linear_scan_workspace_bytes(const TensorSet& set,
                                                const std::vector<void*>& bases, Device device) {
  return workspace_bytes(describe(linear_problem(set, bases, device)));
}

void unfused_linear_scan(const TensorSet& set, const std::vector<void*>& bases, Device device,
                         const Context& context) {
  run_unfused(describe(linear_problem(set, bases, device)), device, context);
}

std::size_t unfused_two_linear_scan_workspace_bytes(const TensorSet& set,
                                                    const std::vector<void*>& bases,
                                                    Device device) {
  const TwoKernels two(set, bases, device);
  return two.product_bytes + two.scan_bytes;
}

void unfused_two_linear_scan(const TensorSet& set, const std::vector<void*>& bases, Device device,
                             const Context& context) {
  TwoKernels two(set, bases, device);
  const std::size_t bytes = two.product_bytes + two.scan_bytes;
  with_workspace(context, device, bytes, [&](const Workspace& workspace) {
    if (workspace.bytes < bytes) throw InvalidArgument("the workspace is too small");
    require(tandem_bench_projection_forward(&two.product, workspace.data, two.product_bytes,
                                            context.stream.handle));
    two.scan.x.data = workspace.data;
    const Workspace rest{static_cast<char*>(workspace.data) + two.product_bytes, two.scan_bytes};
    cuda::gated_scan_forward(two.scan, {.stream = context.stream, .workspace = rest});
  });
}

}  // namespace tandem::tools
