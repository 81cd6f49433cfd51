// The variants of attention_backward on CUDA, and the launches that make up a call. Host only.
#include "cuda/attention/choose_parts.h"
#include "cuda/attention/clear_outside.h"
#include "cuda/attention/operands.h"
#include "cuda/attention/variants.h"
#include "cuda/runtime/call_scope.h"
#include "ops/attention.h"

namespace tandem::cuda::attention {
namespace {

constexpr const char* kOp = "attention_backward";

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
      : problem(given),
        operands(operands_of(problem)),
        variant(
            choose(kOp, backward_variants(), problem.forward, operands.misfit(), device, options)),
        parts(options.batch_invariant
                  ? BackwardParts{}
                  : choose_parts(problem.forward, tile(), device.multiprocessors)) {
    WorkspaceLayout workspace(plan_backward_workspace(problem.forward, tile(), parts).bytes);
    if (variant.copies) operands.plan_copies(workspace);
    workspace_bytes = workspace.bytes();
  }
  Plan(const Plan&) = delete;

  BackwardTile tile() const { return backward_tile(variant.key_dim, variant.value_dim); }

  AttentionBackwardProblem problem;
  Operands operands;
  const BackwardVariant& variant;
  BackwardParts parts;
  std::size_t workspace_bytes = 0;
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
void encode_maps(AttentionBackwardParams& params, const BackwardTile& tile, const void* any) {
  const AttentionForwardProblem& p = params.problem.forward;
  const Extents extents(p);
  params.q_map = encode_rows(p.q, p.dtype, extents.q, tile.queries, any);
  params.k_map = encode_rows(p.k, p.dtype, extents.k, tile.keys, any);
  params.v_map = encode_rows(p.v, p.dtype, extents.v, tile.keys, any);
  params.d_o_map = encode_rows(params.problem.d_o, p.dtype, extents.o, tile.queries, any);
}

void run(const AttentionBackwardProblem& given, const Context& context,
         const CallOptions& options) {
  const DeviceProperties& device = device_properties(given.forward.device);
  Plan plan(given, device, options);
  const AttentionForwardProblem& forward = plan.problem.forward;
  const BackwardVariant& variant = plan.variant;
  if (forward.B == 0 || (forward.TQ == 0 && forward.TK == 0)) return;
  const CallScope scope(variant.name, forward.device.index);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* stream = context.stream.handle;
  plan.operands.copy_inputs(variant.name, scratch, stream);
  if (forward.N > 0) {
    AttentionBackwardParams params;
    set_backward_params(params, plan.problem, plan.tile(), plan.parts, device.multiprocessors,
                        scratch.at<void>(0));
    encode_maps(params, plan.tile(), scratch.at<void>(0));
    variant.launch(variant.name.c_str(), params, stream);
  }
  // Behind the kernels, which leave anything there where there are parts.
  if (forward.cu_seqlens_q != nullptr) clear_outside(variant.name, plan.problem, stream);
  plan.operands.copy_outputs(variant.name, stream);
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const auto table =
      make_table<AttentionBackwardLaunch>(kOp, []<class Element>(const auto& add) {
        add(64, 64, &launch_attention_backward<Element, 64, 64>);
        add(96, 96, &launch_attention_backward<Element, 96, 96>);
        add(128, 128, &launch_attention_backward<Element, 128, 128>);
        add(192, 128, &launch_attention_backward<Element, 192, 128>);
        add(192, 192, &launch_attention_backward<Element, 192, 192>);
        add(256, 256, &launch_attention_backward<Element, 256, 256>);
      });
  return table;
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

}  // namespace tandem::cuda
