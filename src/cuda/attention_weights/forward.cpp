// The variants of attention_weights_forward on CUDA, and the launches that make up a call. Host
// only.
#include "cuda/attention/operands.h"
#include "cuda/attention_weights/variants.h"
#include "cuda/runtime/call_scope.h"

namespace tandem::cuda::attention_weights {
namespace {

constexpr const char* kOp = "attention_weights_forward";

attention::Operands inputs_of(AttentionWeightsForwardProblem& problem) {
  const Extents extents(problem);
  attention::Operands operands(problem.dtype);
  operands.add_input("q", problem.q, extents.q);
  operands.add_input("k", problem.k, extents.k);
  return operands;
}
/// Whether w can be written 16 bytes at a time.
bool has_whole_pieces(AttentionWeightsForwardProblem problem) {
  attention::Operands operands(problem.dtype);
  operands.add_output("w", problem.w, Extents(problem).w);
  return operands.misfit().empty();
}

/// Says of a variant why it cannot take so many keys.
auto reason_against(std::int64_t keys) {
  return [keys](const ForwardVariant& variant) -> std::string {
    const std::int64_t most = variant.launch.most_keys;
    if (keys <= most) return "";
    return "takes TK <= " + std::to_string(most) + ", got " + std::to_string(keys);
  };
}

/// How a call runs, and its workspace, which is copies of q and k. The problem is the kernel's. Not
/// to be moved: the operands point into it.
struct Plan {
  Plan(const AttentionWeightsForwardProblem& given, const DeviceProperties& device,
       const CallOptions& options)
      : problem(given),
        operands(inputs_of(problem)),
        variant(attention::choose(kOp, forward_variants(), problem, operands.misfit(), device,
                                  options, reason_against(problem.TK))) {
    WorkspaceLayout workspace;
    if (variant.copies) operands.plan_copies(workspace);
    workspace_bytes = workspace.bytes();
  }
  Plan(const Plan&) = delete;

  AttentionWeightsForwardProblem problem;
  attention::Operands operands;
  const ForwardVariant& variant;
  std::size_t workspace_bytes = 0;
};

void run(const AttentionWeightsForwardProblem& given, const Context& context,
         const CallOptions& options) {
  const DeviceProperties& device = device_properties(given.device);
  Plan plan(given, device, options);
  const AttentionWeightsForwardProblem& problem = plan.problem;
  const ForwardVariant& variant = plan.variant;
  if (problem.B == 0 || problem.TQ == 0 || problem.TK == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* stream = context.stream.handle;
  plan.operands.copy_inputs(variant.name, scratch, stream);
  ForwardParams params;
  params.problem = problem;
  const Extents extents(problem);
  const auto map = [&](const StridedTensor& tensor, const TileExtents& of, int rows) {
    return attention::encode_rows(tensor, problem.dtype, of, rows, problem.q.data);
  };
  const ForwardKernel& kernel = variant.launch;
  params.q_map = map(problem.q, extents.q, kernel.query_rows);
  params.k_map = map(problem.k, extents.k, kernel.key_rows);
  params.whole_pieces = has_whole_pieces(problem);
  if (kernel.kind == ForwardKernel::kStrips) {
    params.strip = choose_strip(problem, device.multiprocessors);
  }
  if (kernel.kind == ForwardKernel::kWholeRows && params.whole_pieces) {
    params.w_map = map(problem.w, extents.w, kernel.query_rows);
  }
  params.multiprocessors = device.multiprocessors;
  kernel.launch(variant.name.c_str(), params, stream);
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const auto table =
      attention::make_table<ForwardKernel>(kOp, []<class Element>(const auto& add) {
        const auto add_rows = [&](int keys, auto launch, int query_rows, int key_rows, auto kind) {
          add(64, 0, {launch, query_rows, key_rows, keys, kind}, ".keys" + std::to_string(keys));
        };
        const auto add_short_rows = [&]<int kGroups>() {
          add_rows(kShortRowsKeys * kGroups, &launch_short_rows<Element, kGroups>,
                   kShortRowsQueries, kShortRowsKeys, ForwardKernel::kShortRows);
        };
        add_short_rows.template operator()<1>();
        add_short_rows.template operator()<2>();
        add_short_rows.template operator()<3>();
        const auto add_whole_rows = [&]<int kWarps>() {
          add_rows(whole_rows_keys(kWarps), &launch_whole_rows<Element, 64, kWarps>,
                   kWholeRowsQueries, kWholeRowsBox, ForwardKernel::kWholeRows);
        };
        add_whole_rows.template operator()<8>();
        add_whole_rows.template operator()<12>();
        add_whole_rows.template operator()<16>();
        const auto add_any = [&]<int kKeyDim>() {
          add(kKeyDim, 0,
              {&launch_forward<Element, kKeyDim>, 64, forward_stage_keys(kKeyDim), kMaxIndex,
               ForwardKernel::kStrips});
        };
        add_any.template operator()<64>();
        add_any.template operator()<128>();
        add_any.template operator()<256>();
      });
  return table;
}

}  // namespace tandem::cuda::attention_weights

namespace tandem::cuda {

void attention_weights_forward(const AttentionWeightsForwardProblem& problem,
                               const Context& context, const CallOptions& options) {
  attention_weights::run(problem, context, options);
}

std::size_t attention_weights_forward_workspace_bytes(const AttentionWeightsForwardProblem& problem,
                                                      const DeviceProperties& device,
                                                      const CallOptions& options) {
  return attention_weights::Plan(problem, device, options).workspace_bytes;
}

}  // namespace tandem::cuda
