#include <cstdio>
#include <string>

#include "calls.h"
#include "status.h"
#include "tandem/ops/gated_scan.h"
#include "tandem/ops/linear_scan.h"
#include "tandem/variants.h"

namespace tandem::bench {
namespace {

/// Fills the views that both ops have.
struct Views {
  explicit Views(const tandem_bench_scan& call)
      : call(call),
        device(Device::cuda(call.device)),
        dtype(call.dtype == TANDEM_BENCH_BF16 ? DType::kBFloat16 : DType::kFloat16) {}

  TensorView tokens(const tandem_bench_tokens& x, std::int64_t width, DType of) const {
    return {x.data, of, {call.B, call.T, width}, {x.batch_stride, x.time_stride, 1}, device};
  }

  template <class Args>
  void fill(Args& args) const {
    const TensorView decay = tokens(call.decay, call.D, call.fp32_decay ? DType::kFloat32 : dtype);
    (call.log_decay ? args.log_decay : args.decay) = decay;
    if (call.gate.data) args.gate = tokens(call.gate, call.D, dtype);
    args.out = tokens(call.out, call.D, dtype);
    const auto state = [&](const float* data) {
      return TensorView::contiguous(const_cast<float*>(data), DType::kFloat32, {call.N, call.D},
                                    device);
    };
    if (call.initial_state) args.initial_state = state(call.initial_state);
    if (call.final_state) args.final_state = state(call.final_state);
    if (call.cu_seqlens) {
      args.cu_seqlens = TensorView::contiguous(const_cast<int*>(call.cu_seqlens), DType::kInt32,
                                               {call.N + 1}, device);
    }
  }

  GatedScanForwardArgs gated_scan() const {
    GatedScanForwardArgs args;
    args.x = tokens(call.x, call.D, dtype);
    fill(args);
    return args;
  }

  LinearScanForwardArgs linear_scan() const {
    LinearScanForwardArgs args;
    args.u = tokens(call.u, call.d, dtype);
    args.weight = {call.weight, dtype, {call.D, call.d}, {call.weight_stride, 1}, device};
    fill(args);
    return args;
  }

  const tandem_bench_scan& call;
  Device device;
  DType dtype;
};

void forward(const tandem_bench_scan& call, const Context& context) {
  const Views views(call);
  if (call.d > 0) {
    linear_scan_forward(views.linear_scan(), context);
  } else {
    gated_scan_forward(views.gated_scan(), context);
  }
}

}  // namespace
}  // namespace tandem::bench

using tandem::bench::forward;
using tandem::bench::guarded;

int tandem_bench_scan_workspace_bytes(const tandem_bench_scan* call, size_t* bytes) {
  return guarded([&] {
    const tandem::bench::Views views(*call);
    const auto device = tandem::device_properties(views.device);
    *bytes = call->d > 0 ? tandem::linear_scan_forward_workspace_bytes(views.linear_scan(), device)
                         : tandem::gated_scan_forward_workspace_bytes(views.gated_scan(), device);
  });
}

int tandem_bench_scan_forward(const tandem_bench_scan* call, void* workspace,
                              size_t workspace_bytes, void* stream) {
  return guarded([&] {
    forward(*call, {.stream = {stream}, .workspace = {workspace, workspace_bytes}});
  });
}

int tandem_bench_scan_variant(const tandem_bench_scan* call, void* workspace,
                              size_t workspace_bytes, void* stream, char name[128]) {
  return guarded([&] {
    forward(*call, {.stream = {stream}, .workspace = {workspace, workspace_bytes}});
    std::snprintf(name, 128, "%s", tandem::last_variant().c_str());
  });
}
