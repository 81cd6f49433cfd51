// The variants of attention_forward on CUDA, and the launches that make up a call. Host only.
#include <algorithm>

#include "cuda/attention/operands.h"
#include "cuda/attention/variants.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/clear.h"
#include "ops/attention.h"

namespace tandem::cuda::attention {
namespace {

constexpr const char* kOp = "attention_forward";

/// The tensors of a problem that the kernel copies by TMA, and o.
Operands operands_of(AttentionForwardProblem& problem) {
  Operands operands(problem.dtype);
  operands.add_input("q", problem.q, {problem.B, problem.TQ, problem.H, problem.K});
  operands.add_input("k", problem.k, {problem.B, problem.TK, problem.HKV, problem.K});
  operands.add_input("v", problem.v, {problem.B, problem.TK, problem.HKV, problem.V});
  operands.add_output("o", problem.o, {problem.B, problem.TQ, problem.H, problem.V});
  return operands;
}

/// How a call runs, and its workspace. The problem is the kernel's: copies stand for what was
/// given. Not to be moved: the operands point into it.
struct Plan {
  Plan(const AttentionForwardProblem& given, const DeviceProperties& device,
       const CallOptions& options)
      : problem(given),
        operands(operands_of(problem)),
        variant(choose(kOp, forward_variants(), problem, operands.misfit(), device, options)) {
    WorkspaceLayout workspace;
    if (variant.copies) operands.plan_copies(workspace);
    if (is_uneven()) ticket = workspace.add(sizeof(unsigned));
    workspace_bytes = workspace.bytes();
  }
  Plan(const Plan&) = delete;

  /// Whether tiles of queries see different numbers of keys: each multiprocessor then takes the
  /// next one when it is free.
  bool is_uneven() const {
    return is_bounded(problem.mask) || problem.cu_seqlens_q != nullptr ||
           problem.lengths_k != nullptr;
  }

  AttentionForwardProblem problem;
  Operands operands;
  const ForwardVariant& variant;
  std::size_t ticket = 0;
  std::size_t workspace_bytes = 0;
};

/// Key heads of a section of tiles (forward_items.cuh). Even tiles go head by head, so that those
/// that read the same keys do at the same time, unless all keys are few: then tiles side by side
/// share lines of queries. Uneven ones need many to choose the longest from, as many as have their
/// keys and values in the L2.
int heads_together(const AttentionForwardProblem& problem, bool uneven) {
  constexpr std::int64_t kKept = 32 << 20, kFew = 8 << 20, kMost = 1 << 20;
  const std::int64_t head_bytes = problem.TK * (problem.K + problem.V) * 2;
  if (!uneven && problem.B * problem.HKV * head_bytes > kFew) return 1;
  return static_cast<int>(
      std::clamp<std::int64_t>(kKept / std::max<std::int64_t>(head_bytes, 1), 1, kMost));
}

void run(const AttentionForwardProblem& given, const Context& context, const CallOptions& options) {
  const DeviceProperties& device = device_properties(given.device);
  Plan plan(given, device, options);
  const AttentionForwardProblem& problem = plan.problem;
  const ForwardVariant& variant = plan.variant;
  if (problem.B == 0 || problem.TQ == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* stream = context.stream.handle;
  AttentionForwardParams params;
  if (plan.is_uneven()) {
    params.ticket = scratch.at<unsigned>(plan.ticket);
    launch_clear(kOp, params.ticket, 1, stream);
  }
  plan.operands.copy_inputs(variant.name, scratch, stream);
  const ForwardTile tile = forward_tile(variant.key_dim, variant.value_dim);
  const auto map = [&](const StridedTensor& tensor, std::int64_t T, int heads, int dim, int rows) {
    return encode_rows(tensor, problem.dtype, {problem.B, T, heads, dim}, rows, problem.q.data);
  };
  constexpr int kWarpgroupRows = 64;
  params.problem = problem;
  params.q_map = map(problem.q, problem.TQ, problem.H, problem.K, kWarpgroupRows);
  params.k_map = map(problem.k, problem.TK, problem.HKV, problem.K, tile.keys);
  params.v_map = map(problem.v, problem.TK, problem.HKV, problem.V, tile.keys);
  params.multiprocessors = device.multiprocessors;
  params.heads_together = heads_together(problem, plan.is_uneven());
  variant.launch(variant.name.c_str(), params, stream);
  plan.operands.copy_outputs(variant.name, stream);
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const auto table =
      make_table<AttentionForwardLaunch>(kOp, []<class Element>(const auto& add) {
        add(64, 64, &launch_attention_forward<Element, 64, 64>);
        add(96, 96, &launch_attention_forward<Element, 96, 96>);
        add(128, 128, &launch_attention_forward<Element, 128, 128>);
        add(192, 128, &launch_attention_forward<Element, 192, 128>);
        add(192, 192, &launch_attention_forward<Element, 192, 192>);
        add(256, 256, &launch_attention_forward<Element, 256, 256>);
      });
  return table;
}

}  // namespace tandem::cuda::attention

namespace tandem::cuda {

void attention_forward(const AttentionForwardProblem& problem, const Context& context,
                       const CallOptions& options) {
  attention::run(problem, context, options);
}

std::size_t attention_forward_workspace_bytes(const AttentionForwardProblem& problem,
                                              const DeviceProperties& device,
                                              const CallOptions& options) {
  return attention::Plan(problem, device, options).workspace_bytes;
}

}  // namespace tandem::cuda
