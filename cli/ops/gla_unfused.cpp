// gla's unfused baseline for the tools.
#include "bench/cuda/gla.h"

#include "cli/calls/arguments.h"
#include "cli/calls/gpu.h"
#include "cli/ops/gla.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

tandem_bench_activation activation(const StridedTensor& x) {
  return {x.data, x.batch_stride, x.time_stride, x.head_stride};
}

tandem_bench_gla describe(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  const GlaForwardProblem problem =
      make_problem(arguments_of<GlaForwardArgs>(gla_forward_signature(), set, bases, device));
  if (problem.cu_seqlens != nullptr) {
    throw Unsupported("the unfused baseline is for dense batches, not for cu_seqlens");
  }
  if (problem.K % 8 != 0 || problem.V % 8 != 0) {
    throw Unsupported("the unfused baseline needs K and V to be multiples of 8");
  }
  const DecayTensor& g = problem.log_decay;
  tandem_bench_gla call{};
  call.device = device.index;
  call.dtype = problem.dtype == DType::kBFloat16 ? TANDEM_BENCH_BF16 : TANDEM_BENCH_FP16;
  call.B = problem.B;
  call.T = problem.T;
  call.H = problem.H;
  call.HQ = problem.HQ;
  call.K = problem.K;
  call.V = problem.V;
  call.scale = problem.scale;
  call.q = activation(problem.q);
  call.k = activation(problem.k);
  call.v = activation(problem.v);
  call.o = activation(problem.o);
  call.log_decay = {const_cast<float*>(g.data), g.batch_stride, g.time_stride, g.head_stride};
  call.initial_state = problem.initial_state;
  call.final_state = problem.final_state;
  call.N = problem.N;
  call.cu_seqlens = problem.cu_seqlens;
  return call;
}

std::size_t workspace_bytes(const tandem_bench_gla& call) {
  std::size_t bytes = 0;
  if (tandem_bench_unfused_gla_workspace_bytes(&call, &bytes) != 0) {
    throw Unsupported(tandem_bench_last_error());
  }
  return bytes;
}

}  // namespace

std::size_t unfused_gla_workspace_bytes(const TensorSet& set, const std::vector<void*>& bases,
                                        Device device) {
  return workspace_bytes(describe(set, bases, device));
}

void unfused_gla(const TensorSet& set, const std::vector<void*>& bases, Device device,
                 const Context& context) {
  const tandem_bench_gla call = describe(set, bases, device);
  const auto run = [&](const Workspace& workspace) {
    if (tandem_bench_unfused_gla_forward(&call, workspace.data, workspace.bytes,
                                         context.stream.handle) != 0) {
      throw CudaError(tandem_bench_last_error());
    }
  };
  if (context.workspace.data != nullptr) return run(context.workspace);
  const std::size_t bytes = workspace_bytes(call);
  const gpu::Memory memory(device.index, bytes);
  run({memory.data(), bytes});
  gpu::synchronize(device.index);  // the memory ends with this call
}

}  // namespace tandem::tools
