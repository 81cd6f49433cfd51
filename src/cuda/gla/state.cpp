// The variants of gla_state_forward and gla_state_backward on CUDA, and the launches that make up a
// call. Host only.
#include "cuda/gla/state.h"

#include "cuda/gla/state/config.h"
#include "cuda/gla/state/plan.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/workspace.h"
#include "ops/gla.h"

namespace tandem::cuda::gla {
namespace {

constexpr const char* kForward = "gla_state_forward";
constexpr const char* kBackward = "gla_state_backward";

template <class Element, bool kReverse>
void add_variants(std::vector<StateVariant>& table, DType dtype, bool tma) {
  const auto add = [&]<int kKeyDim, int kValueDim>() {
    using Config = StateConfig<Element, kKeyDim, kValueDim, kReverse>;
    static_assert(Config::kChunk == kChunk);
    table.push_back({variant_name(kReverse ? kBackward : kForward, dtype, kKeyDim, kValueDim, tma),
                     dtype, kKeyDim, kValueDim, tma, &launch_state<Config>});
  };
#ifndef TANDEM_CUDA_DEV
  add.template operator()<64, 64>();
  add.template operator()<64, 128>();
  add.template operator()<128, 64>();
#endif
  add.template operator()<128, 128>();
}

/// A call in either direction; in a backward, k is q, v is d_o, and the state is its gradient.
struct StateCall {
  const char* op;
  const char* k;  // what the arguments are called
  const char* v;
  const std::vector<StateVariant>& table;
  GlaStateForwardProblem problem;
  float scale;
};

StateCall call_of(const GlaStateForwardProblem& problem) {
  return {kForward, "k", "v", state_forward_variants(), problem, 1.0f};
}

StateCall call_of(const GlaStateBackwardProblem& problem) {
  GlaStateForwardProblem walk;
  static_cast<GlaRecurrence&>(walk) = problem;
  walk.state = problem.d_state;
  walk.total_log_decay = problem.total_log_decay;
  return {kBackward, "q", "d_o", state_backward_variants(), walk, problem.scale};
}

Choice<StateVariant, StatePlan> choose(const StateCall& call, const DeviceProperties& device,
                                       const CallOptions& options) {
  return make_choice(call.op, call.table, call.problem, plan_tiles(call.problem, call.k, call.v),
                     device, options, plan_state);
}

void run(const StateCall& call, const Context& context, const CallOptions& options) {
  const GlaStateForwardProblem& problem = call.problem;
  const auto& [tiles, variant, plan] = choose(call, device_properties(problem.device), options);
  if (problem.N == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(call.op, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;

  StateParams params;
  params.tma = variant.tma;
  if (params.tma) {
    params.k_map = encode(tiles.plans[0]);
    params.v_map = encode(tiles.plans[1]);
  }
  params.problem = problem;
  params.scale = call.scale;
  params.segments = plan.segments;
  params.states = plan.split() ? scratch.at<float>(plan.states) : problem.state;
  params.total_log_decay =
      plan.split() ? scratch.at<float>(plan.total_log_decay) : problem.total_log_decay;
  variant.launch(variant.name.c_str(), params, stream);
  if (!plan.split()) return;

  StateCombineParams combine;
  combine.sequence_heads = problem.N * problem.H;
  combine.state_size = std::int64_t{problem.K} * problem.V;
  combine.segments = plan.segments;
  combine.segment_states = params.states;
  combine.segment_log_decay = params.total_log_decay;
  combine.state = problem.state;
  combine.total_log_decay = problem.total_log_decay;
  launch_state_combine(combine, stream);
}

template <bool kReverse>
std::vector<StateVariant> make_table() {
  return table_of_variants<StateVariant>([]<class Element>(auto& rows, DType dtype, bool tma) {
    add_variants<Element, kReverse>(rows, dtype, tma);
  });
}

}  // namespace

const std::vector<StateVariant>& state_forward_variants() {
  static const auto table = make_table<false>();
  return table;
}

const std::vector<StateVariant>& state_backward_variants() {
  static const auto table = make_table<true>();
  return table;
}

TilePlans plan_tiles(const GlaStateForwardProblem& problem, const char* k, const char* v) {
  TilePlans tiles;
  tiles.add(k, problem.k, problem, problem.HQ, problem.K);
  tiles.add(v, problem.v, problem, problem.H, problem.V);
  return tiles;
}

std::string reason_against(const StateVariant& variant, const GlaStateForwardProblem& problem,
                           const TilePlans& tiles) {
  // Wider states are several tiles: a tile of 64 columns leaves them to the wider tile.
  std::string reason;
  if (variant.key_dim == 64) reason = width_reason("K", problem.K, 64);
  if (reason.empty() && variant.value_dim == 64) reason = width_reason("V", problem.V, 64);
  return reason.empty() ? common_reason(variant.dtype, variant.tma, problem, tiles) : reason;
}

}  // namespace tandem::cuda::gla

namespace tandem::cuda {

void gla_state_forward(const GlaStateForwardProblem& problem, const Context& context,
                       const CallOptions& options) {
  gla::run(gla::call_of(problem), context, options);
}

void gla_state_backward(const GlaStateBackwardProblem& problem, const Context& context,
                        const CallOptions& options) {
  gla::run(gla::call_of(problem), context, options);
}

std::size_t gla_state_forward_workspace_bytes(const GlaStateForwardProblem& problem,
                                              const DeviceProperties& device,
                                              const CallOptions& options) {
  return gla::choose(gla::call_of(problem), device, options).plan.workspace_bytes;
}

std::size_t gla_state_backward_workspace_bytes(const GlaStateBackwardProblem& problem,
                                               const DeviceProperties& device,
                                               const CallOptions& options) {
  return gla::choose(gla::call_of(problem), device, options).plan.workspace_bytes;
}

}  // namespace tandem::cuda
