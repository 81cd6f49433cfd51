// The variants of gla_forward on CUDA, and the launches that make up a call. Host only.
#include "cuda/gla/forward.h"

#include "cuda/gla/walk/config.h"
#include "cuda/gla/walk/schedule.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/clear.h"
#include "ops/gla.h"

namespace tandem::cuda::gla {
namespace {

constexpr const char* kOp = "gla_forward";

template <class Element>
void add_variants(std::vector<ForwardVariant>& table, DType dtype, bool tma) {
  for_each_walk_tile([&]<int kKeyDim, int kValueDim>() {
    using Whole = WalkConfig<Element, kKeyDim, kValueDim>;
    using Split = WalkConfig<Element, kKeyDim, kValueDim, true>;
    static_assert(Whole::kChunk == kChunk);
    table.push_back({variant_name(kOp, dtype, kKeyDim, kValueDim, tma),
                     dtype,
                     kKeyDim,
                     kValueDim,
                     tma,
                     {&launch_walk<Whole>, &launch_walk<Split>}});
  });
}

Choice<ForwardVariant, WalkPlan> choose(const GlaForwardProblem& problem,
                                        const DeviceProperties& device,
                                        const CallOptions& options) {
  return make_choice(kOp, forward_variants(), problem, plan_tiles(problem), device, options,
                     plan_forward);
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
  params.state_strides = {problem.V, 1};
  if (variant.tma) encode_maps(params, tiles);
  if (plan.split()) {
    launch_clear(kOp, scratch.at<std::uint32_t>(plan.ready), plan.flags, context.stream.handle);
  }
  run_walk(variant.name, variant.launch, plan, params, scratch, context.stream.handle);
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
  if (!reason.empty()) return reason;
  // Wider V is several items; a tile of 64 columns leaves them to the wider tile, where there is
  // one.
  if (variant.value_dim == 64 && variant.key_dim < 256) reason = width_reason("V", problem.V, 64);
  return reason.empty() ? common_reason(variant.dtype, variant.tma, problem, tiles) : reason;
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
