// The variants of attention_backward on CUDA, and the launches that make up a call. Host only.
#include "cuda/attention/backward.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/attention/clear_outside.h"
#include "cuda/attention/forward.h"
#include "cuda/attention/operands.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "ops/attention.h"

namespace tandem::cuda::attention {
namespace {

constexpr const char* kOp = "attention_backward";

template <class Element>
void add_variants(std::vector<BackwardVariant>& table, DType dtype, bool copies) {
  const auto add = [&]<int kKeyDim, int kValueDim>() {
    table.push_back({variant_name(kOp, dtype, kKeyDim, kValueDim, copies), dtype, kKeyDim,
                     kValueDim, copies, &launch_attention_backward<Element, kKeyDim, kValueDim>});
  };
  add.template operator()<64, 64>();
  add.template operator()<96, 96>();
  add.template operator()<128, 128>();
  add.template operator()<192, 128>();
}

/// Extents of the tensors of a call, as what they belong to has them.
struct Extents {
  explicit Extents(const AttentionSizes& p)
      : q{p.B, p.TQ, p.H, p.K},
        k{p.B, p.TK, p.HKV, p.K},
        v{p.B, p.TK, p.HKV, p.V},
        o{p.B, p.TQ, p.H, p.V} {}

  TileExtents q, k, v, o;
};

Operands operands_of(AttentionBackwardProblem& problem) {
  AttentionForwardProblem& forward = problem.forward;
  const Extents extents(forward);
  Operands operands(forward.dtype);
  operands.add_input("q", forward.q, extents.q);
  operands.add_input("k", forward.k, extents.k);
  operands.add_input("v", forward.v, extents.v);
  operands.add_input("o", forward.o, extents.o);
  operands.add_input("d_o", problem.d_o, extents.o);
  operands.add_output("dq", problem.dq, extents.q);
  operands.add_output("dk", problem.dk, extents.k);
  operands.add_output("dv", problem.dv, extents.v);
  return operands;
}

/// How a call runs, and its workspace: the kernels', then the copies. The problem is the kernels'.
/// Not to be moved: the operands point into it.
struct Plan {
  Plan(const AttentionBackwardProblem& given, const DeviceProperties& device,
       const CallOptions& options)
      : problem(given), operands(operands_of(problem)), variant(choose(device, options)) {
    WorkspaceLayout workspace(plan_backward_workspace(problem.forward, variant.key_dim).bytes);
    if (variant.copies) operands.plan_copies(workspace);
    workspace_bytes = workspace.bytes();
  }
  Plan(const Plan&) = delete;

  AttentionBackwardProblem problem;
  Operands operands;
  const BackwardVariant& variant;
  std::size_t workspace_bytes = 0;

 private:
  const BackwardVariant& choose(const DeviceProperties& device, const CallOptions& options) const {
    const std::string misfit = operands.misfit();
    return choose_variant(
        kOp, backward_variants(), device, options,
        [&](const BackwardVariant& one) { return reason_against(one, problem, misfit); });
  }
};

void clear_outside(const std::string& name, const AttentionBackwardProblem& problem, void* stream) {
  const AttentionForwardProblem& p = problem.forward;
  const auto clear = [&](const std::int32_t* cu_seqlens, const StridedTensor& tensor,
                         const TileExtents& extents) {
    if (tensor.data == nullptr || extents.time == 0) return;
    launch_clear_outside(name.c_str(),
                         {cu_seqlens, p.N, extents.time, tensor, static_cast<int>(extents.heads),
                          static_cast<int>(extents.dim)},
                         stream);
  };
  const Extents extents(p);
  clear(p.cu_seqlens_q, problem.dq, extents.q);
  clear(p.cu_seqlens_k, problem.dk, extents.k);
  clear(p.cu_seqlens_k, problem.dv, extents.v);
}

/// The kernels' maps; of what has no elements nobody reads, so that any address will do.
void encode_maps(AttentionBackwardParams& params, int key_dim, const void* any) {
  const AttentionForwardProblem& p = params.problem.forward;
  const Extents extents(p);
  const int queries = backward_queries(key_dim);
  params.q_map = encode_rows(p.q, p.dtype, extents.q, queries, any);
  params.k_map = encode_rows(p.k, p.dtype, extents.k, kBackwardKeys, any);
  params.v_map = encode_rows(p.v, p.dtype, extents.v, kBackwardKeys, any);
  params.d_o_map = encode_rows(params.problem.d_o, p.dtype, extents.o, queries, any);
}

void run(const AttentionBackwardProblem& given, const Context& context,
         const CallOptions& options) {
  Plan plan(given, device_properties(given.forward.device), options);
  const AttentionForwardProblem& forward = plan.problem.forward;
  const BackwardVariant& variant = plan.variant;
  if (forward.B == 0 || (forward.TQ == 0 && forward.TK == 0)) return;
  const CallScope scope(variant.name, forward.device.index);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* stream = context.stream.handle;
  plan.operands.copy_inputs(variant.name, scratch, stream);
  if (forward.cu_seqlens_q != nullptr) clear_outside(variant.name, plan.problem, stream);
  if (forward.N > 0) {
    AttentionBackwardParams params;
    set_backward_params(params, plan.problem, variant.key_dim, scratch.at<void>(0));
    encode_maps(params, variant.key_dim, scratch.at<void>(0));
    variant.launch(variant.name.c_str(), params, stream);
  }
  plan.operands.copy_outputs(variant.name, stream);
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const std::vector<BackwardVariant> table = [] {
    std::vector<BackwardVariant> rows;
    for (const bool copies : {false, true}) {
      add_variants<__nv_bfloat16>(rows, DType::kBFloat16, copies);
#ifndef TANDEM_CUDA_DEV
      add_variants<__half>(rows, DType::kFloat16, copies);
#endif
    }
    return rows;
  }();
  return table;
}

std::string reason_against(const BackwardVariant& variant, const AttentionBackwardProblem& problem,
                           const std::string& misfit) {
  std::string reason = common_reason(variant.dtype, problem.forward);
  if (reason.empty()) reason = dims_reason(problem.forward, variant.key_dim, variant.value_dim);
  return reason.empty() && !variant.copies ? misfit : reason;
}

}  // namespace tandem::cuda::attention

namespace tandem::cuda {

void attention_backward(const AttentionBackwardProblem& problem, const Context& context,
                        const CallOptions& options) {
  attention::run(problem, context, options);
}

std::size_t attention_backward_workspace_bytes(const AttentionBackwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options) {
  return attention::Plan(problem, device, options).workspace_bytes;
}

std::vector<VariantInfo> attention_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> all;
  const auto add = [&](const auto& table) {
    for (const auto& variant : table) {
      all.push_back({"attention", variant.name, sm90_problem(device)});
    }
  };
  add(attention::forward_variants());
  add(attention::backward_variants());
  return all;
}

}  // namespace tandem::cuda
