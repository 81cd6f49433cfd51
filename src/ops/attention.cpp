// attention: its tables, and arguments -> checked problem. Host only.
#include "ops/attention.h"

#include <string>

#include "ops/attention_heads.h"
#include "ops/call.h"
#include "ops/views.h"

namespace tandem {
namespace {

using Forward = AttentionForwardArgs;
using Backward = AttentionBackwardArgs;

constexpr Layout kDense = Layout::kContiguous;

/// The rows that a forward and its backward share.
template <class Args>
std::vector<Parameter> inputs_table() {
  return {input<&Args::q>("q", "B,TQ,H,K", Element::kMatrix).tiled(),
          input<&Args::k>("k", "B,TK,HKV,K").tiled(),
          input<&Args::v>("v", "B,TK,HKV,V").tiled(),
          number<&Args::scale>("scale"),
          choice_of_two<&Args::causal>("causal"),
          whole_number<&Args::window_left>("window_left"),
          whole_number<&Args::window_right>("window_right"),
          cu_seqlens<&Args::cu_seqlens_q>("cu_seqlens_q"),
          cu_seqlens<&Args::cu_seqlens_k>("cu_seqlens_k"),
          input<&Args::lengths_k>("lengths_k", "B", Element::kPositions, kDense)};
}

std::vector<Parameter> joined(std::vector<Parameter> table, const std::vector<Parameter>& more) {
  table.insert(table.end(), more.begin(), more.end());
  return table;
}

/// Checks what lists lengths: both of cu_seqlens or neither, and not lengths_k beside them.
template <class Args>
void check_lengths(const Signature& signature, const Args& args) {
  if (args.cu_seqlens_q.has_value() != args.cu_seqlens_k.has_value()) {
    const bool has_q = args.cu_seqlens_q.has_value();
    refuse(signature.name(),
           std::string("cu_seqlens_q and cu_seqlens_k must be given together, got only ") +
               (has_q ? "cu_seqlens_q" : "cu_seqlens_k"));
  }
  if (args.cu_seqlens_k && args.lengths_k) {
    refuse(signature.name(), "lengths_k must not be given beside cu_seqlens_k");
  }
}

/// Returns the mask of a call's numbers.
template <class Args>
AttentionMask mask_of(const Signature& signature, const Args& args) {
  const auto check = [&](const char* name, const std::optional<std::int64_t>& window) {
    if (!window || *window >= 0) return;
    refuse(signature.name(), std::string(name) + " must be a whole number in [0,2^31), got " +
                                 std::to_string(*window));
  };
  check("window_left", args.window_left);
  check("window_right", args.window_right);
  if (args.causal && args.window_right.value_or(0) > 0) {
    refuse(signature.name(), "window_right must be absent or 0 beside causal, got " +
                                 std::to_string(*args.window_right));
  }
  const std::int64_t right = args.window_right.value_or(AttentionMask::kUnlimited);
  return {args.window_left.value_or(AttentionMask::kUnlimited), args.causal ? 0 : right};
}

/// What a forward and its backward have in common.
template <class Args>
AttentionForwardProblem inputs_of(const Signature& signature, const Args& args) {
  check_head_groups(signature, args);
  signature.check(&args);
  check_lengths(signature, args);
  AttentionForwardProblem problem;
  set_sizes(signature, args, problem);
  problem.N = sequence_count(args.cu_seqlens_q, problem.B);
  problem.V = static_cast<int>(args.v.shape[3]);
  problem.mask = mask_of(signature, args);
  problem.cu_seqlens_q = offsets_data(args.cu_seqlens_q);
  problem.cu_seqlens_k = offsets_data(args.cu_seqlens_k);
  problem.lengths_k = offsets_data(args.lengths_k);
  problem.q = strided_tensor(args.q);
  problem.k = strided_tensor(args.k);
  problem.v = strided_tensor(args.v);
  problem.o = strided_tensor(args.o);
  problem.log_sum_exp = state_data(args.log_sum_exp);
  return problem;
}

}  // namespace

const Signature& attention_forward_signature() {
  static const Signature signature = make_signature<Forward>(
      "attention_forward",
      joined(inputs_table<Forward>(),
             {output<&Forward::o>("o", "B,TQ,H,V"),
              output<&Forward::log_sum_exp>("log_sum_exp", "B,H,TQ", Element::kFp32, kDense)}),
      {cpu::attention_forward, TANDEM_CUDA_ENTRY(attention_forward),
       TANDEM_CUDA_ENTRY(attention_forward_workspace_bytes)});
  return signature;
}

const Signature& attention_backward_signature() {
  static const Signature signature = make_signature<Backward>(
      "attention_backward",
      joined(inputs_table<Backward>(),
             {input<&Backward::o>("o", "B,TQ,H,V").tiled(),
              input<&Backward::log_sum_exp>("log_sum_exp", "B,H,TQ", Element::kFp32, kDense),
              input<&Backward::d_o>("d_o", "B,TQ,H,V").tiled(),
              input<&Backward::d_log_sum_exp>("d_log_sum_exp", "B,H,TQ", Element::kFp32, kDense),
              gradient<&Backward::dq>("dq", "q"), gradient<&Backward::dk>("dk", "k"),
              gradient<&Backward::dv>("dv", "v")}),
      {cpu::attention_backward, TANDEM_CUDA_ENTRY(attention_backward),
       TANDEM_CUDA_ENTRY(attention_backward_workspace_bytes)});
  return signature;
}

AttentionForwardProblem make_problem(const AttentionForwardArgs& args) {
  return inputs_of(attention_forward_signature(), args);
}

AttentionBackwardProblem make_problem(const AttentionBackwardArgs& args) {
  AttentionBackwardProblem problem;
  problem.forward = inputs_of(attention_backward_signature(), args);
  problem.d_o = strided_tensor(args.d_o);
  problem.d_log_sum_exp = state_data(args.d_log_sum_exp);
  problem.dq = strided_tensor(args.dq);
  problem.dk = strided_tensor(args.dk);
  problem.dv = strided_tensor(args.dv);
  return problem;
}

void attention_forward(const AttentionForwardArgs& args, const Context& context) {
  run(attention_forward_signature(), &args, context);
}

std::size_t attention_forward_workspace_bytes(const AttentionForwardArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant) {
  return workspace_bytes(attention_forward_signature(), &args, device, batch_invariant);
}

void attention_backward(const AttentionBackwardArgs& args, const Context& context) {
  run(attention_backward_signature(), &args, context);
}

std::size_t attention_backward_workspace_bytes(const AttentionBackwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant) {
  return workspace_bytes(attention_backward_signature(), &args, device, batch_invariant);
}

}  // namespace tandem
