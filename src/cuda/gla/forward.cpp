// The variants of gla_forward on CUDA, and the launches that make up a call. Host only.
#include "cuda/gla/forward.h"

#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/walk/config.h"
#include "cuda/gla/walk/merge.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/clear.h"
#include "ops/gla.h"

namespace tandem::cuda::gla {
namespace {

constexpr const char* kOp = "gla_forward";

template <class Element, int kKeyDim, int kValueDim, Walk kWalk, int kHeads = 1>
constexpr WalkLaunch launch_of() {
  return {&launch_walk<WalkConfig<Element, kKeyDim, kValueDim, false, kWalk, kHeads>>,
          &launch_walk<WalkConfig<Element, kKeyDim, kValueDim, true, kWalk, kHeads>>};
}

/// Adds the variants that walk two heads of a group together, which TMA alone loads.
template <class Element>
void add_pairs(std::vector<ForwardVariant>& table, DType dtype) {
  constexpr int kValueDim = 128;
  const auto add = [&]<int kKeyDim>() {
    table.push_back(
        {{variant_name(kOp, dtype, kKeyDim, kValueDim / 2, true) + ".pairs", dtype, kKeyDim,
          kValueDim, true, launch_of<Element, kKeyDim, kValueDim, Walk::kOutput, 2>()},
         2,
         launch_of<Element, kKeyDim, kValueDim, Walk::kSavingOutput, 2>()});
  };
#ifndef TANDEM_CUDA_DEV
  add.template operator()<64>();
#endif
  add.template operator()<128>();
}

template <class Element>
void add_variants(std::vector<ForwardVariant>& table, DType dtype, bool tma) {
  if (tma) add_pairs<Element>(table, dtype);
  for_each_walk_tile([&]<int kKeyDim, int kValueDim>() {
    static_assert(WalkConfig<Element, kKeyDim, kValueDim>::kChunk == kChunk);
    ForwardVariant variant{
        {variant_name(kOp, dtype, kKeyDim, kValueDim, tma), dtype, kKeyDim, kValueDim, tma,
         launch_of<Element, kKeyDim, kValueDim, Walk::kOutput>()},
        1,
        {}};
    // why not the largest: it has no registers for that, and narrower tiles of V save faster.
    if constexpr (kKeyDim <= 128 || kValueDim <= 64) {
      variant.saving = launch_of<Element, kKeyDim, kValueDim, Walk::kSavingOutput>();
    }
    table.push_back(variant);
  });
}

/// A walk; or one of merged sequences, and behind it the other, which mostly ends at once.
struct ForwardPlan {
  WalkPlan walk;
  MergePlan merge;
  WalkPlan merged;  // where sequences are
  std::size_t workspace_bytes = 0;
};

WalkPlan plan_of(const ForwardVariant& variant, const GlaForwardProblem& problem,
                 const DeviceProperties& device, bool batch_invariant) {
  return plan_forward(problem, variant.key_dim, variant.value_dim, device, batch_invariant,
                      variant.heads);
}

/// Whether tiles of 64 columns of V are predicted to be faster than this one's 128, of a head or of
/// two. Bits do not depend on it, unless sequences are cut.
bool is_faster_apart(const ForwardVariant& together, const GlaForwardProblem& problem,
                     const DeviceProperties& device, bool batch_invariant) {
  ForwardVariant apart = together;
  apart.value_dim = 64;
  apart.heads = 1;
  return predicted_time(plan_of(apart, problem, device, batch_invariant)) <
         predicted_time(plan_of(together, problem, device, batch_invariant));
}

ForwardPlan plan_call(const ForwardVariant& variant, const GlaForwardProblem& problem,
                      const DeviceProperties& device, bool batch_invariant) {
  ForwardPlan plan;
  plan.walk = plan_of(variant, problem, device, batch_invariant);
  plan.workspace_bytes = plan.walk.workspace_bytes;
  if (batch_invariant || plan.walk.split()) return plan;
  const bool states = problem.initial_state != nullptr || problem.final_state != nullptr;
  plan.merge = plan_merge(problem, states, {plan.walk.shape});
  if (plan.merge.sequences == 0) return plan;
  const GlaForwardProblem fewer = merged(problem, plan.merge);
  plan.merged = plan_walk(
      fewer, split_shape(fewer, variant.key_dim, variant.value_dim, device, variant.heads), 1);
  plan.workspace_bytes =
      place_merge(plan.merge, problem, plan.merged.workspace_bytes, plan.walk.workspace_bytes);
  return plan;
}

Choice<ForwardVariant, ForwardPlan> choose(const GlaForwardProblem& problem,
                                           const DeviceProperties& device,
                                           const CallOptions& options) {
  TilePlans tiles = plan_tiles(problem);
  const ForwardVariant& variant =
      choose_variant(kOp, forward_variants(), device, options, [&](const ForwardVariant& one) {
        std::string reason = reason_against(one, problem, tiles);
        const bool competes = one.heads > 1 || (one.key_dim == 256 && one.value_dim > 64);
        if (reason.empty() && competes && options.variant.empty() &&
            is_faster_apart(one, problem, device, options.batch_invariant)) {
          reason = "is predicted to be slower than tiles of 64 columns of V";
        }
        return reason;
      });
  return {std::move(tiles), variant, plan_call(variant, problem, device, options.batch_invariant)};
}

/// Sets the maps of q, k, v and o.
void encode_maps(WalkParams& params, const TilePlans& tiles) {
  params.tma = true;
  params.q_map = encode(tiles.plans[0]);
  params.k_map = encode(tiles.plans[1]);
  params.v_map = encode(tiles.plans[2]);
  params.o_map = encode(tiles.plans[3]);
}

void run(const GlaForwardProblem& problem, const Context& context, const CallOptions& options) {
  const auto& [tiles, variant, plan] = choose(problem, device_properties(problem.device), options);
  if (problem.B == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  WalkParams params;
  params.problem = problem;
  params.state_strides = {problem.V, 1, std::int64_t{problem.K} * problem.V};
  if (variant.tma) encode_maps(params, tiles);
  const WalkLaunch& launch = problem.saved_states ? variant.saving : variant.launch;
  params.saves_by_tma = can_copy_saved_states(problem);
  if (params.saves_by_tma) params.states_map = map_saved_states(problem, 0, problem.K);
  void* const stream = context.stream.handle;
  if (plan.merge.sequences > 0) {
    WalkParams first = params;
    merge(first.problem, plan.merge, scratch, stream);
    first.guard = first_guard(plan.merge, scratch);
    run_walk(variant.name, launch, plan.merged, first, scratch, stream);
    params.guard = second_guard(plan.merge, scratch);
  }
  if (plan.walk.flags > 0) {
    launch_clear(kOp, scratch.at<std::uint32_t>(plan.walk.ready), plan.walk.flags, stream);
  }
  run_walk(variant.name, launch, plan.walk, params, scratch, stream);
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const auto table =
      table_of_variants<ForwardVariant>([]<class Element>(auto& rows, DType dtype, bool tma) {
        add_variants<Element>(rows, dtype, tma);
      });
  return table;
}

TilePlans plan_tiles(const GlaForwardProblem& problem, bool with_output) {
  TilePlans tiles;
  tiles.add("q", problem.q, problem, problem.HQ, problem.K);
  tiles.add("k", problem.k, problem, problem.HQ, problem.K);
  tiles.add("v", problem.v, problem, problem.H, problem.V);
  if (with_output) tiles.add_stored("o", problem.o, problem, problem.H, problem.V);
  return tiles;
}

std::string reason_against(const ForwardVariant& variant, const GlaForwardProblem& problem,
                           const TilePlans& tiles) {
  std::string reason = width_reason("K", problem.K, variant.key_dim);
  if (reason.empty()) reason = common_reason(variant.dtype, variant.tma, problem, tiles);
  if (!reason.empty()) return reason;
  if (variant.heads > 1) {
    if (problem.H >= variant.heads * problem.HQ) {
      return width_reason("V", problem.V, variant.value_dim / variant.heads);
    }
    return "takes H >= " + std::to_string(variant.heads) + " HQ, got " + std::to_string(problem.H) +
           " and " + std::to_string(problem.HQ);
  }
  if (problem.saved_states && !variant.saving.whole) return "saves no states";
  // Wider V is several items; a tile of 64 columns leaves them to the wider tile, but at 256
  // columns of K, where it is one prediction against another.
  const bool narrow = variant.value_dim == 64;
  if (narrow && variant.key_dim < 256) reason = width_reason("V", problem.V, 64);
  if (!narrow && variant.key_dim == 256 && problem.V <= 64) {
    reason = "takes V > 64, got " + std::to_string(problem.V);
  }
  return reason;
}

}  // namespace tandem::cuda::gla

namespace tandem::cuda {

void gla_forward(const GlaForwardProblem& problem, const Context& context,
                 const CallOptions& options) {
  gla::run(problem, context, options);
}

std::size_t gla_forward_workspace_bytes(const GlaForwardProblem& problem,
                                        const DeviceProperties& device,
                                        const CallOptions& options) {
  return gla::choose(problem, device, options).plan.workspace_bytes;
}

}  // namespace tandem::cuda
