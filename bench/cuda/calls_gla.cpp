#include <cstdio>

#include "calls.h"
#include "commit.h"
#include "status.h"
#include "tandem/ops/gla.h"
#include "tandem/variants.h"

namespace tandem::bench {
namespace {

thread_local std::string last_error;

TensorView view(const tandem_bench_activation& x, DType dtype, const Dims& shape, Device device) {
  return {x.data, dtype, shape, {x.batch_stride, x.time_stride, x.head_stride, 1}, device};
}

GlaForwardArgs arguments(const tandem_bench_gla& call) {
  const Device device = Device::cuda(call.device);
  const DType dtype = call.dtype == TANDEM_BENCH_BF16 ? DType::kBFloat16 : DType::kFloat16;
  const Dims qk{call.B, call.T, call.HQ, call.K}, v{call.B, call.T, call.H, call.V};
  const Dims state{call.N, call.H, call.K, call.V};
  GlaForwardArgs args;
  args.q = view(call.q, dtype, qk, device);
  args.k = view(call.k, dtype, qk, device);
  args.v = view(call.v, dtype, v, device);
  args.o = view(call.o, dtype, v, device);
  args.scale = call.scale;
  if (const tandem_bench_activation& g = call.log_decay; g.data != nullptr) {
    const bool constant = g.batch_stride == 0 && g.time_stride == 0;
    args.log_decay = constant
                         ? TensorView{g.data, DType::kFloat32, {call.H}, {g.head_stride}, device}
                         : TensorView{g.data,
                                      DType::kFloat32,
                                      {call.B, call.T, call.H},
                                      {g.batch_stride, g.time_stride, g.head_stride},
                                      device};
  }
  const auto states = [&](const float* data) {
    return TensorView::contiguous(const_cast<float*>(data), DType::kFloat32, state, device);
  };
  if (call.initial_state) args.initial_state = states(call.initial_state);
  if (call.final_state) args.final_state = states(call.final_state);
  if (call.cu_seqlens) {
    args.cu_seqlens = TensorView::contiguous(const_cast<int*>(call.cu_seqlens), DType::kInt32,
                                             {call.N + 1}, device);
  }
  return args;
}

}  // namespace

void set_last_error(const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();  // out of memory for the message
  }
}

}  // namespace tandem::bench

using tandem::bench::arguments;
using tandem::bench::guarded;

const char* tandem_bench_last_error(void) { return tandem::bench::last_error.c_str(); }

const char* tandem_bench_commit(void) { return TANDEM_COMMIT; }

int tandem_bench_gla_workspace_bytes(const tandem_bench_gla* call, size_t* bytes) {
  return guarded([&] {
    const auto device = tandem::device_properties(tandem::Device::cuda(call->device));
    *bytes = tandem::gla_forward_workspace_bytes(arguments(*call), device);
  });
}

int tandem_bench_gla_forward(const tandem_bench_gla* call, void* workspace, size_t workspace_bytes,
                             void* stream) {
  return guarded([&] {
    tandem::gla_forward(arguments(*call),
                        {.stream = {stream}, .workspace = {workspace, workspace_bytes}});
  });
}

int tandem_bench_gla_variant(const tandem_bench_gla* call, void* workspace, size_t workspace_bytes,
                             void* stream, char name[128]) {
  return guarded([&] {
    tandem::gla_forward(arguments(*call),
                        {.stream = {stream}, .workspace = {workspace, workspace_bytes}});
    std::snprintf(name, 128, "%s", tandem::last_variant().c_str());
  });
}
