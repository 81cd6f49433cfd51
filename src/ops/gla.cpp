// gla: its tables, and arguments -> checked problem. Host only.
#include "ops/gla.h"

#include <string>

#include "ops/call.h"
#include "ops/scale.h"
#include "ops/views.h"

namespace tandem {
namespace {

using Forward = GlaForwardArgs;
using Backward = GlaBackwardArgs;
using StateForward = GlaStateForwardArgs;
using StateBackward = GlaStateBackwardArgs;
using Step = GlaStepArgs;

constexpr Layout kState = Layout::kContiguous;
constexpr const char* kSavedStates = "B,T/128,H,V,K";
static_assert(kSavedStateTokens == 128);

template <class Args>
Parameter log_decay_row() {
  return input<&Args::log_decay>("log_decay", "H|B,T,H", Element::kFp32, Layout::kFree);
}

/// Refuses a log_decay of one axis more than it has at most; `axes` are the shapes that it may
/// have.
void refuse_channel_decay(const char* op, const std::optional<TensorView>& log_decay,
                          const char* axes, int most_axes) {
  if (!log_decay || log_decay->shape.rank() != most_axes + 1) return;
  throw Unsupported("[" + std::string(op) + "] log_decay must have shape " + axes + ", got " +
                    to_string(log_decay->shape) + ": a decay per key channel is not built yet");
}

/// Checks that HQ divides H, where there are any; `keys` is q, or k where there is no q. Their
/// heads are the last axis but one.
void check_head_groups(const Signature& signature, const char* keys_name, const TensorView& keys,
                       const TensorView& values) {
  const int axis = keys.shape.rank() - 2;
  if (axis < 0 || values.shape.rank() != keys.shape.rank()) return;  // refused with its shape
  const std::int64_t HQ = keys.shape[axis], H = values.shape[axis];
  if (HQ < 1 || H < 1 || H % HQ == 0) return;
  refuse(signature.name(), std::string(keys_name) +
                               " must have a number of heads HQ that divides H = " +
                               std::to_string(H) + ", got HQ = " + std::to_string(HQ));
}

/// Checks what the table of a call over tokens says, and what it cannot say.
template <class Args>
void check(const Signature& signature, const Args& args, const char* keys_name,
           const TensorView& keys, const TensorView& values) {
  refuse_channel_decay(signature.name(), args.log_decay, "[H] or [B,T,H]", 3);
  check_head_groups(signature, keys_name, keys, values);
  signature.check(&args);
}

/// Strides by the rank: [H], [B,H] or [B,T,H].
DecayTensor decay_tensor(const std::optional<TensorView>& log_decay) {
  if (!log_decay) return {};
  const auto* data = static_cast<const float*>(log_decay->data);
  const Dims& strides = log_decay->strides;
  switch (strides.rank()) {
    case 1: return {data, 0, 0, strides[0]};
    case 2: return {data, strides[0], 0, strides[1]};
    default: return {data, strides[0], strides[1], strides[2]};
  }
}

DecayGradient decay_gradient(const std::optional<TensorView>& d_log_decay) {
  if (!d_log_decay) return {};
  const DecayTensor like = decay_tensor(d_log_decay);
  return {static_cast<float*>(d_log_decay->data), like.batch_stride, like.time_stride,
          like.head_stride, d_log_decay->shape.rank() == 3};
}

/// The recurrence of checked arguments. `keys` and `values` are its k and v.
template <class Args>
GlaRecurrence recurrence_of(const Args& args, const TensorView& keys, const TensorView& values) {
  GlaRecurrence recurrence;
  recurrence.dtype = keys.dtype;
  recurrence.device = keys.device;
  recurrence.B = keys.shape[0];
  recurrence.T = keys.shape[1];
  recurrence.N = sequence_count(args.cu_seqlens, recurrence.B);
  recurrence.HQ = static_cast<int>(keys.shape[2]);
  recurrence.K = static_cast<int>(keys.shape[3]);
  recurrence.H = static_cast<int>(values.shape[2]);
  recurrence.V = static_cast<int>(values.shape[3]);
  recurrence.k = strided_tensor(keys);
  recurrence.v = strided_tensor(values);
  recurrence.log_decay = decay_tensor(args.log_decay);
  recurrence.cu_seqlens = offsets_data(args.cu_seqlens);
  return recurrence;
}

/// What a forward and its backward have in common.
template <class Args>
GlaForwardProblem inputs_of(const Signature& signature, const Args& args) {
  GlaForwardProblem problem;
  static_cast<GlaRecurrence&>(problem) = recurrence_of(args, args.k, args.v);
  set_scale(signature, args.scale, problem);
  problem.q = strided_tensor(args.q);
  problem.initial_state = state_data(args.initial_state);
  if (args.saved_states) {
    if (args.cu_seqlens) refuse(signature.name(), "saved_states cannot go with cu_seqlens");
    problem.saved_states = args.saved_states->data;
  }
  return problem;
}

}  // namespace

const Signature& gla_forward_signature() {
  static const Signature signature = make_signature<Forward>(
      "gla_forward",
      {input<&Forward::q>("q", "B,T,HQ,K", Element::kMatrix).tiled(),
       input<&Forward::k>("k", "B,T,HQ,K").tiled(), input<&Forward::v>("v", "B,T,H,V").tiled(),
       log_decay_row<Forward>(), number<&Forward::scale>("scale"),
       input<&Forward::initial_state>("initial_state", "N,H,K,V", Element::kFp32, kState),
       output<&Forward::o>("o", "B,T,H,V"),
       output<&Forward::final_state>("final_state", "N,H,K,V", Element::kFp32, kState)
           .or_in("initial_state"),
       cu_seqlens<&Forward::cu_seqlens>(),
       output<&Forward::saved_states>("saved_states", kSavedStates, Element::kSame, kState)},
      {cpu::gla_forward, TANDEM_CUDA_ENTRY(gla_forward),
       TANDEM_CUDA_ENTRY(gla_forward_workspace_bytes)});
  return signature;
}

const Signature& gla_backward_signature() {
  static const Signature signature = make_signature<Backward>(
      "gla_backward",
      {input<&Backward::q>("q", "B,T,HQ,K", Element::kMatrix).tiled(),
       input<&Backward::k>("k", "B,T,HQ,K").tiled(), input<&Backward::v>("v", "B,T,H,V").tiled(),
       log_decay_row<Backward>(), number<&Backward::scale>("scale"),
       input<&Backward::initial_state>("initial_state", "N,H,K,V", Element::kFp32, kState),
       cu_seqlens<&Backward::cu_seqlens>(),
       input<&Backward::saved_states>("saved_states", kSavedStates, Element::kSame, kState),
       input<&Backward::d_o>("d_o", "B,T,H,V").tiled(),
       input<&Backward::d_final_state>("d_final_state", "N,H,K,V", Element::kFp32, kState),
       gradient<&Backward::dq>("dq", "q"), gradient<&Backward::dk>("dk", "k"),
       gradient<&Backward::dv>("dv", "v"),
       gradient<&Backward::d_log_decay>("d_log_decay", "log_decay"),
       gradient<&Backward::d_initial_state>("d_initial_state", "initial_state", false)},
      {cpu::gla_backward, TANDEM_CUDA_ENTRY(gla_backward),
       TANDEM_CUDA_ENTRY(gla_backward_workspace_bytes)});
  return signature;
}

const Signature& gla_state_forward_signature() {
  static const Signature signature = make_signature<StateForward>(
      "gla_state_forward",
      {input<&StateForward::k>("k", "B,T,HQ,K", Element::kMatrix).tiled(),
       input<&StateForward::v>("v", "B,T,H,V").tiled(), log_decay_row<StateForward>(),
       cu_seqlens<&StateForward::cu_seqlens>(),
       output<&StateForward::state>("state", "N,H,K,V", Element::kFp32, kState),
       output<&StateForward::total_log_decay>("total_log_decay", "N,H", Element::kFp32, kState)},
      {cpu::gla_state_forward, TANDEM_CUDA_ENTRY(gla_state_forward),
       TANDEM_CUDA_ENTRY(gla_state_forward_workspace_bytes)});
  return signature;
}

const Signature& gla_state_backward_signature() {
  static const Signature signature = make_signature<StateBackward>(
      "gla_state_backward",
      {input<&StateBackward::q>("q", "B,T,HQ,K", Element::kMatrix).tiled(),
       input<&StateBackward::d_o>("d_o", "B,T,H,V").tiled(), log_decay_row<StateBackward>(),
       number<&StateBackward::scale>("scale"), cu_seqlens<&StateBackward::cu_seqlens>(),
       output<&StateBackward::d_state>("d_state", "N,H,K,V", Element::kFp32, kState),
       output<&StateBackward::total_log_decay>("total_log_decay", "N,H", Element::kFp32, kState)},
      {cpu::gla_state_backward, TANDEM_CUDA_ENTRY(gla_state_backward),
       TANDEM_CUDA_ENTRY(gla_state_backward_workspace_bytes)});
  return signature;
}

const Signature& gla_step_signature() {
  static const Signature signature = make_signature<Step>(
      "gla_step",
      {input<&Step::q>("q", "B,HQ,K", Element::kMatrix), input<&Step::k>("k", "B,HQ,K"),
       input<&Step::v>("v", "B,H,V"),
       input<&Step::log_decay>("log_decay", "H|B,H", Element::kFp32, Layout::kFree),
       number<&Step::scale>("scale"), output<&Step::o>("o", "B,H,V"),
       in_place<&Step::state>("state", "B,H,K,V", Element::kFp32OrBf16)},
      {cpu::gla_step, TANDEM_CUDA_ENTRY(gla_step)});
  return signature;
}

GlaForwardProblem make_problem(const GlaForwardArgs& args) {
  const Signature& signature = gla_forward_signature();
  check(signature, args, "q", args.q, args.v);
  GlaForwardProblem problem = inputs_of(signature, args);
  problem.o = strided_tensor(args.o);
  problem.final_state = state_data(args.final_state);
  return problem;
}

GlaBackwardProblem make_problem(const GlaBackwardArgs& args) {
  const Signature& signature = gla_backward_signature();
  check(signature, args, "q", args.q, args.v);
  GlaBackwardProblem problem;
  problem.forward = inputs_of(signature, args);
  problem.d_o = strided_tensor(args.d_o);
  problem.d_final_state = state_data(args.d_final_state);
  problem.dq = strided_tensor(args.dq);
  problem.dk = strided_tensor(args.dk);
  problem.dv = strided_tensor(args.dv);
  problem.d_log_decay = decay_gradient(args.d_log_decay);
  problem.d_initial_state = state_data(args.d_initial_state);
  return problem;
}

GlaStateForwardProblem make_problem(const GlaStateForwardArgs& args) {
  check(gla_state_forward_signature(), args, "k", args.k, args.v);
  GlaStateForwardProblem problem;
  static_cast<GlaRecurrence&>(problem) = recurrence_of(args, args.k, args.v);
  problem.state = state_data(args.state);
  problem.total_log_decay = state_data(args.total_log_decay);
  return problem;
}

GlaStateBackwardProblem make_problem(const GlaStateBackwardArgs& args) {
  const Signature& signature = gla_state_backward_signature();
  check(signature, args, "q", args.q, args.d_o);
  GlaStateBackwardProblem problem;
  static_cast<GlaRecurrence&>(problem) = recurrence_of(args, args.q, args.d_o);
  set_scale(signature, args.scale, problem);
  problem.d_state = state_data(args.d_state);
  problem.total_log_decay = state_data(args.total_log_decay);
  return problem;
}

GlaStepProblem make_problem(const GlaStepArgs& args) {
  const Signature& signature = gla_step_signature();
  refuse_channel_decay(signature.name(), args.log_decay, "[H] or [B,H]", 2);
  check_head_groups(signature, "q", args.q, args.v);
  signature.check(&args);
  GlaStepProblem problem;
  problem.dtype = args.q.dtype;
  problem.device = args.q.device;
  problem.B = problem.N = args.q.shape[0];
  problem.T = 1;
  problem.HQ = static_cast<int>(args.q.shape[1]);
  problem.K = static_cast<int>(args.q.shape[2]);
  problem.H = static_cast<int>(args.v.shape[1]);
  problem.V = static_cast<int>(args.v.shape[2]);
  set_scale(signature, args.scale, problem);
  problem.log_decay = decay_tensor(args.log_decay);
  const auto token = [](const TensorView& view) {
    return StridedTensor{view.data, view.strides[0], 0, view.strides[1]};
  };
  problem.q = token(args.q);
  problem.k = token(args.k);
  problem.v = token(args.v);
  problem.o = token(args.o);
  problem.state_dtype = args.state.dtype;
  problem.state = {args.state.data, args.state.strides[0], args.state.strides[1],
                   args.state.strides[2]};
  return problem;
}

void gla_forward(const GlaForwardArgs& args, const Context& context) {
  run(gla_forward_signature(), &args, context);
}

std::size_t gla_forward_workspace_bytes(const GlaForwardArgs& args, const DeviceProperties& device,
                                        bool batch_invariant) {
  return workspace_bytes(gla_forward_signature(), &args, device, batch_invariant);
}

void gla_backward(const GlaBackwardArgs& args, const Context& context) {
  run(gla_backward_signature(), &args, context);
}

std::size_t gla_backward_workspace_bytes(const GlaBackwardArgs& args,
                                         const DeviceProperties& device, bool batch_invariant) {
  return workspace_bytes(gla_backward_signature(), &args, device, batch_invariant);
}

void gla_state_forward(const GlaStateForwardArgs& args, const Context& context) {
  run(gla_state_forward_signature(), &args, context);
}

std::size_t gla_state_forward_workspace_bytes(const GlaStateForwardArgs& args,
                                              const DeviceProperties& device,
                                              bool batch_invariant) {
  return workspace_bytes(gla_state_forward_signature(), &args, device, batch_invariant);
}

void gla_state_backward(const GlaStateBackwardArgs& args, const Context& context) {
  run(gla_state_backward_signature(), &args, context);
}

std::size_t gla_state_backward_workspace_bytes(const GlaStateBackwardArgs& args,
                                               const DeviceProperties& device,
                                               bool batch_invariant) {
  return workspace_bytes(gla_state_backward_signature(), &args, device, batch_invariant);
}

void gla_step(const GlaStepArgs& args, const Context& context) {
  run(gla_step_signature(), &args, context);
}

}  // namespace tandem
