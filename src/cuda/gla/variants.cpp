// The variants of gla_forward on CUDA, and the launches that make up a call. Host only.
#include "cuda/gla/variants.h"

#include "cuda/gla/backward_variants.h"
#include "cuda/gla/forward_config.h"
#include "cuda/gla/schedule.h"
#include "cuda/gla/state_variants.h"
#include "cuda/runtime/call_scope.h"
#include "ops/gla.h"

namespace tandem::cuda {
namespace {

constexpr const char* kOp = "gla_forward";

template <class Element>
void add_variants(std::vector<ForwardVariant>& table, DType dtype, bool tma) {
  for_each_walk_tile([&]<int kKeyDim, int kValueDim>() {
    using Whole = ForwardConfig<Element, kKeyDim, kValueDim>;
    using Split = ForwardConfig<Element, kKeyDim, kValueDim, true>;
    static_assert(Whole::kChunk == kGlaChunk);
    table.push_back({variant_name(kOp, dtype, kKeyDim, kValueDim, tma),
                     dtype,
                     kKeyDim,
                     kValueDim,
                     tma,
                     {&launch_forward<Whole>, &launch_forward<Split>}});
  });
}

GlaChoice<ForwardVariant, ForwardPlan> choose(const GlaForwardProblem& problem,
                                              const DeviceProperties& device,
                                              const CallOptions& options) {
  return choose_gla(kOp, forward_variants(), problem, plan_tiles(problem), device, options,
                    plan_forward);
}

/// Launches what finds the order of sequences of different lengths, and writes zeros outside all of
/// them.
void prepare_order(const GlaForwardParams& walk, std::int32_t* order, std::uint32_t* ticket,
                   void* stream) {
  const GlaForwardProblem& problem = walk.problem;
  GlaScheduleParams params;
  params.cu_seqlens = problem.cu_seqlens;
  params.N = problem.N;
  params.T = problem.T;
  params.order = order;
  params.ticket = ticket;
  params.H = problem.H;
  params.outputs[0] = {problem.o, problem.V};
  params.outputs[1] = {walk.value, problem.K};
  launch_schedule(params, stream);
}

/// Sets the maps of q, k, v and o.
void encode_maps(GlaForwardParams& params, const GlaTilePlans& tiles) {
  params.tma = true;
  params.q_map = encode(tiles.plans[0]);
  params.k_map = encode(tiles.plans[1]);
  params.v_map = encode(tiles.plans[2]);
  params.o_map = encode(tiles.plans[3]);
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const auto table =
      table_of_variants<ForwardVariant>([]<class Element>(auto& rows, DType dtype, bool tma) {
        add_variants<Element>(rows, dtype, tma);
      });
  return table;
}

GlaTilePlans plan_tiles(const GlaForwardProblem& problem, bool with_output) {
  GlaTilePlans tiles;
  tiles.add("q", problem.q, problem, problem.HQ, problem.K);
  tiles.add("k", problem.k, problem, problem.HQ, problem.K);
  tiles.add("v", problem.v, problem, problem.H, problem.V);
  if (with_output) tiles.add("o", problem.o, problem, problem.H, problem.V);
  return tiles;
}

std::string reason_against(const ForwardVariant& variant, const GlaForwardProblem& problem,
                           const GlaTilePlans& tiles) {
  std::string reason = width_reason("K", problem.K, variant.key_dim);
  if (!reason.empty()) return reason;
  // Wider V is several items; a tile of 64 columns leaves them to the wider tile, where there is
  // one.
  if (variant.value_dim == 64 && variant.key_dim < 256) reason = width_reason("V", problem.V, 64);
  return reason.empty() ? common_reason(variant.dtype, variant.tma, problem, tiles) : reason;
}

void run_walk(const std::string& name, const ForwardLaunch& launch, const ForwardPlan& plan,
              GlaForwardParams& params, const ScratchMemory& scratch, void* stream) {
  ForwardSchedule& schedule = params.schedule;
  schedule.items = plan.items;
  schedule.value_tiles = plan.value_tiles;
  schedule.segments = plan.segments;
  if (plan.split()) {
    schedule.exchange = {scratch.at<float>(plan.states), scratch.at<float>(plan.factors),
                         scratch.at<std::uint32_t>(plan.ready)};
  }
  if (params.problem.cu_seqlens != nullptr) {
    auto* order = scratch.at<std::int32_t>(plan.order);
    schedule.order = order;
    schedule.ticket = scratch.at<std::uint32_t>(plan.ticket);
    prepare_order(params, order, schedule.ticket, stream);
  }
  if (plan.items == 0) return;
  (plan.split() ? launch.split : launch.whole)(name.c_str(), params, plan.blocks, stream);
}

void gla_forward(const GlaForwardProblem& problem, const Context& context,
                 const CallOptions& options) {
  const auto& [tiles, variant, plan] = choose(problem, device_properties(problem.device), options);
  if (problem.B == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  GlaForwardParams params;
  params.problem = problem;
  params.state_strides = {problem.V, 1};
  if (variant.tma) encode_maps(params, tiles);
  if (plan.split()) {
    launch_clear(scratch.at<std::uint32_t>(plan.ready), plan.flags, context.stream.handle);
  }
  run_walk(variant.name, variant.launch, plan, params, scratch, context.stream.handle);
}

std::size_t gla_forward_workspace_bytes(const GlaForwardProblem& problem,
                                        const DeviceProperties& device,
                                        const CallOptions& options) {
  return choose(problem, device, options).plan.workspace_bytes;
}

std::vector<VariantInfo> gla_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  const auto add = [&](const auto& table) {
    for (const auto& variant : table) infos.push_back({"gla", variant.name, sm90_problem(device)});
  };
  add(forward_variants());
  add(state_forward_variants());
  add(backward_variants());
  add(state_backward_variants());
  return infos;
}

}  // namespace tandem::cuda
