// The variants of gla_state_forward on CUDA, and the launches that make up a call. Host only.
#include "cuda/gla/state_variants.h"

#include "cuda/gla/forward_plan.h"
#include "cuda/gla/state_forward_config.h"
#include "cuda/runtime/workspace.h"

namespace tandem::cuda {
namespace {

constexpr const char* kOp = "gla_state_forward";

template <class Element>
void add_variants(std::vector<StateForwardVariant>& table, DType dtype, bool tma) {
  const auto add = [&]<int kKeyDim, int kValueDim>() {
    using Config = StateForwardConfig<Element, kKeyDim, kValueDim>;
    static_assert(Config::kChunk == kGlaChunk);
    table.push_back({variant_name(kOp, dtype, kKeyDim, kValueDim, tma), dtype, kKeyDim, kValueDim,
                     tma, &launch_state_forward<Config>});
  };
#ifndef TANDEM_CUDA_DEV
  add.template operator()<64, 64>();
  add.template operator()<64, 128>();
  add.template operator()<128, 64>();
#endif
  add.template operator()<128, 128>();
}

GlaChoice<StateForwardVariant, StateForwardPlan> choose(const GlaStateForwardProblem& problem,
                                                        const DeviceProperties& device) {
  return choose_gla(kOp, state_forward_variants(), problem, plan_tiles(problem), device,
                    plan_state_forward);
}

}  // namespace

const std::vector<StateForwardVariant>& state_forward_variants() {
  static const auto table =
      table_of_variants<StateForwardVariant>([]<class Element>(auto& rows, DType dtype, bool tma) {
        add_variants<Element>(rows, dtype, tma);
      });
  return table;
}

GlaTilePlans plan_tiles(const GlaStateForwardProblem& problem) {
  GlaTilePlans tiles;
  tiles.add("k", problem.k, problem, problem.HQ, problem.K);
  tiles.add("v", problem.v, problem, problem.H, problem.V);
  return tiles;
}

std::string reason_against(const StateForwardVariant& variant,
                           const GlaStateForwardProblem& problem, const GlaTilePlans& tiles) {
  // Wider states are several tiles; those of 64 columns leave them to the wider tile.
  std::string reason;
  if (variant.key_dim == 64) reason = width_reason("K", problem.K, 64);
  if (reason.empty() && variant.value_dim == 64) reason = width_reason("V", problem.V, 64);
  return reason.empty() ? common_reason(variant.dtype, variant.tma, problem, tiles) : reason;
}

void gla_state_forward(const GlaStateForwardProblem& problem, const Context& context) {
  const auto& [tiles, variant, plan] = choose(problem, device_properties(problem.device));
  if (problem.N == 0) return;
  const DeviceGuard guard(problem.device.index);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;

  GlaStateForwardParams params;
  params.tma = variant.tma;
  if (params.tma) {
    params.k_map = encode(tiles.plans[0]);
    params.v_map = encode(tiles.plans[1]);
  }
  params.problem = problem;
  params.segments = plan.segments;
  params.states = plan.split() ? scratch.at<float>(plan.states) : problem.state;
  params.total_log_decay =
      plan.split() ? scratch.at<float>(plan.total_log_decay) : problem.total_log_decay;
  variant.launch(variant.name.c_str(), params, stream);
  if (!plan.split()) return;

  GlaStateCombineParams combine;
  combine.sequence_heads = problem.N * problem.H;
  combine.state_size = std::int64_t{problem.K} * problem.V;
  combine.segments = plan.segments;
  combine.segment_states = params.states;
  combine.segment_log_decay = params.total_log_decay;
  combine.state = problem.state;
  combine.total_log_decay = problem.total_log_decay;
  launch_state_combine(combine, stream);
}

std::size_t gla_state_forward_workspace_bytes(const GlaStateForwardProblem& problem,
                                              const DeviceProperties& device) {
  return choose(problem, device).plan.workspace_bytes;
}

}  // namespace tandem::cuda
