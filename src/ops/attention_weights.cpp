// attention_weights: its tables, and arguments -> checked problem. Host only.
#include "ops/attention_weights.h"

#include "ops/attention_heads.h"
#include "ops/call.h"
#include "ops/views.h"

namespace tandem {
namespace {

using Forward = AttentionWeightsForwardArgs;
using Backward = AttentionWeightsBackwardArgs;

/// [B,H,TQ,TK]: its rows are queries.
StridedTensor rows_of_queries(const TensorView& w) {
  return {w.data, w.strides[0], w.strides[2], w.strides[1]};
}

/// What a forward and its backward have in common.
template <class Args>
AttentionWeightsForwardProblem inputs_of(const Signature& signature, const Args& args) {
  check_head_groups(signature, args);
  signature.check(&args);
  AttentionWeightsForwardProblem problem;
  set_sizes(signature, args, problem);
  if (args.causal) problem.mask.right = 0;
  problem.q = strided_tensor(args.q);
  problem.k = strided_tensor(args.k);
  problem.w = rows_of_queries(args.w);
  return problem;
}

}  // namespace

const Signature& attention_weights_forward_signature() {
  static const Signature signature = make_signature<Forward>(
      "attention_weights_forward",
      {input<&Forward::q>("q", "B,TQ,H,K", Element::kMatrix).tiled(),
       input<&Forward::k>("k", "B,TK,HKV,K").tiled(), number<&Forward::scale>("scale"),
       choice_of_two<&Forward::causal>("causal"), output<&Forward::w>("w", "B,H,TQ,TK")},
      {cpu::attention_weights_forward, TANDEM_CUDA_ENTRY(attention_weights_forward),
       TANDEM_CUDA_ENTRY(attention_weights_forward_workspace_bytes)});
  return signature;
}

const Signature& attention_weights_backward_signature() {
  static const Signature signature = make_signature<Backward>(
      "attention_weights_backward",
      {input<&Backward::q>("q", "B,TQ,H,K", Element::kMatrix).tiled(),
       input<&Backward::k>("k", "B,TK,HKV,K").tiled(), number<&Backward::scale>("scale"),
       choice_of_two<&Backward::causal>("causal"), input<&Backward::w>("w", "B,H,TQ,TK"),
       input<&Backward::d_w>("d_w", "B,H,TQ,TK"), gradient<&Backward::dq>("dq", "q"),
       gradient<&Backward::dk>("dk", "k")},
      {cpu::attention_weights_backward, TANDEM_CUDA_ENTRY(attention_weights_backward),
       TANDEM_CUDA_ENTRY(attention_weights_backward_workspace_bytes)});
  return signature;
}

AttentionWeightsForwardProblem make_problem(const AttentionWeightsForwardArgs& args) {
  return inputs_of(attention_weights_forward_signature(), args);
}

AttentionWeightsBackwardProblem make_problem(const AttentionWeightsBackwardArgs& args) {
  AttentionWeightsBackwardProblem problem;
  problem.forward = inputs_of(attention_weights_backward_signature(), args);
  problem.d_w = rows_of_queries(args.d_w);
  problem.dq = strided_tensor(args.dq);
  problem.dk = strided_tensor(args.dk);
  return problem;
}

void attention_weights_forward(const AttentionWeightsForwardArgs& args, const Context& context) {
  run(attention_weights_forward_signature(), &args, context);
}

std::size_t attention_weights_forward_workspace_bytes(const AttentionWeightsForwardArgs& args,
                                                      const DeviceProperties& device,
                                                      bool batch_invariant) {
  return workspace_bytes(attention_weights_forward_signature(), &args, device, batch_invariant);
}

void attention_weights_backward(const AttentionWeightsBackwardArgs& args, const Context& context) {
  run(attention_weights_backward_signature(), &args, context);
}

std::size_t attention_weights_backward_workspace_bytes(const AttentionWeightsBackwardArgs& args,
                                                       const DeviceProperties& device,
                                                       bool batch_invariant) {
  return workspace_bytes(attention_weights_backward_signature(), &args, device, batch_invariant);
}

}  // namespace tandem
