// The variants of attention_weights_backward on CUDA, and the launches that make up a call. Host
// only.
#include "cuda/attention/operands.h"
#include "cuda/attention_weights/variants.h"
#include "cuda/runtime/call_scope.h"

namespace tandem::cuda::attention_weights {
namespace {

constexpr const char* kOp = "attention_weights_backward";

attention::Operands operands_of(AttentionWeightsBackwardProblem& problem) {
  AttentionWeightsForwardProblem& forward = problem.forward;
  const Extents extents(forward);
  attention::Operands operands(forward.dtype);
  operands.add_input("q", forward.q, extents.q);
  operands.add_input("k", forward.k, extents.k);
  operands.add_input("w", forward.w, extents.w);
  operands.add_input("d_w", problem.d_w, extents.w);
  operands.add_output("dq", problem.dq, extents.q);
  operands.add_output("dk", problem.dk, extents.k);
  return operands;
}

/// How a call runs, and its workspace: the rows' means, then copies. The problem is the kernels'.
/// Not to be moved: the operands point into it.
struct Plan {
  Plan(const AttentionWeightsBackwardProblem& given, const DeviceProperties& device,
       const CallOptions& options)
      : problem(given),
        operands(operands_of(problem)),
        variant(attention::choose(kOp, backward_variants(), problem.forward, operands.misfit(),
                                  device, options)) {
    WorkspaceLayout workspace;
    const AttentionSizes& p = problem.forward;
    row_means = workspace.add(p.B * p.H * padded_queries(p.TQ) * 4);
    if (variant.copies) operands.plan_copies(workspace);
    workspace_bytes = workspace.bytes();
  }
  Plan(const Plan&) = delete;

  AttentionWeightsBackwardProblem problem;
  attention::Operands operands;
  const BackwardVariant& variant;
  std::size_t row_means = 0;
  std::size_t workspace_bytes = 0;
};

void run(const AttentionWeightsBackwardProblem& given, const Context& context,
         const CallOptions& options) {
  const DeviceProperties& device = device_properties(given.forward.device);
  Plan plan(given, device, options);
  const AttentionWeightsForwardProblem& forward = plan.problem.forward;
  const BackwardVariant& variant = plan.variant;
  if (forward.B == 0 || (forward.TQ == 0 && forward.TK == 0)) return;
  const CallScope scope(variant.name, forward.device.index);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* stream = context.stream.handle;
  plan.operands.copy_inputs(variant.name, scratch, stream);
  BackwardParams params;
  params.problem = plan.problem;
  params.row_means = scratch.at<float>(plan.row_means);
  params.multiprocessors = device.multiprocessors;
  const Extents extents(forward);
  const void* any = forward.TQ > 0 ? forward.q.data : forward.k.data;
  const auto map = [&](const StridedTensor& tensor, const TileExtents& of) {
    return attention::encode_rows(tensor, forward.dtype, of, 64, any);
  };
  params.q_map = map(forward.q, extents.q);
  params.k_map = map(forward.k, extents.k);
  params.w_map = map(forward.w, extents.w);
  params.d_w_map = map(plan.problem.d_w, extents.w);
  variant.launch(variant.name.c_str(), params, stream);
  plan.operands.copy_outputs(variant.name, stream);
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const auto table =
      attention::make_table<BackwardLaunch>(kOp, []<class Element>(const auto& add) {
        add(64, 0, &launch_backward<Element, 64>);
        add(128, 0, &launch_backward<Element, 128>);
        add(256, 0, &launch_backward<Element, 256>);
      });
  return table;
}

}  // namespace tandem::cuda::attention_weights

namespace tandem::cuda {

void attention_weights_backward(const AttentionWeightsBackwardProblem& problem,
                                const Context& context, const CallOptions& options) {
  attention_weights::run(problem, context, options);
}

std::size_t attention_weights_backward_workspace_bytes(
    const AttentionWeightsBackwardProblem& problem, const DeviceProperties& device,
    const CallOptions& options) {
  return attention_weights::Plan(problem, device, options).workspace_bytes;
}

std::vector<VariantInfo> attention_weights_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> all;
  const auto add = [&](const auto& table) {
    for (const auto& variant : table) {
      all.push_back({"attention_weights", variant.name, sm90_problem(device)});
    }
  };
  add(attention_weights::forward_variants());
  add(attention_weights::backward_variants());
  return all;
}

}  // namespace tandem::cuda
