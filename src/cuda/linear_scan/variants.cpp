// The variants of linear_scan on CUDA, in the order in which they are tried, and the launches that
// make up a call. Host only.
#include "cuda/linear_scan/variants.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/linear_scan/backward.h"
#include "cuda/linear_scan/forward_config.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/workspace.h"
#include "ops/linear_scan.h"

namespace tandem::cuda::linear_scan {
namespace {

constexpr const char* kForward = "linear_scan_forward";

std::string name_of(DType dtype, Tiling tiling) {
  return std::string(kForward) + ".sm90." + to_string(dtype) + "." + tile_shape(tiling).name;
}

template <class Config>
void add_variant(std::vector<ForwardVariant>& table, DType dtype, Tiling tiling) {
  table.push_back({name_of(dtype, tiling), dtype, tiling, &launch_forward<Config>,
                   &launch_forward<Keeping<Config>>});
}

template <class Element>
void add_variants(std::vector<ForwardVariant>& table, DType dtype) {
  add_variant<ForwardConfig<Element, 1, 64, false, true>>(table, dtype, Tiling::kAlone);
  add_variant<ForwardConfig<Element, 2, 256, true>>(table, dtype, Tiling::kChain);
  add_variant<ForwardConfig<Element, 1, 64, false>>(table, dtype, Tiling::kSmall);
  // The last, for all that the others do not take.
  table.push_back({name_of(dtype, Tiling::kComposed), dtype, Tiling::kComposed, nullptr, nullptr});
}

struct Choice {
  const ForwardVariant& variant;
  ForwardPlan plan;  // of one launch
  ComposedPlan composed;

  bool is_composed() const { return variant.tiling == Tiling::kComposed; }
};

Choice choose(const LinearScanForwardProblem& problem, const DeviceProperties& device,
              const CallOptions& options) {
  const Tiling best = choose_tiling(problem, device);
  ComposedPlan composed;
  const ForwardVariant& variant =
      choose_variant(kForward, forward_variants(), device, options, [&](const ForwardVariant& one) {
        return reason_against(one, problem, device, best, options, &composed);
      });
  if (variant.tiling == Tiling::kComposed) return {variant, {}, composed};
  return {variant, plan_forward(problem, variant.tiling, device), {}};
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const auto table = [] {
    std::vector<ForwardVariant> rows;
    add_variants<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_variants<__half>(rows, DType::kFloat16);
#endif
    return rows;
  }();
  return table;
}

TilePlans plan_tiles(const LinearScanForwardProblem& problem, Tiling tiling) {
  const TileShape shape = tile_shape(tiling);
  TilePlans plans;
  const auto note = [&](TensorMapPlan made) {
    if (plans.problem.empty()) plans.problem = made.problem;
    return made;
  };
  const auto plan = [&](const char* name, const StridedTensor& tensor, const TileExtents& extents,
                        int rows) {
    return note(plan_tile(name, tensor, problem.dtype, extents, rows));
  };
  const auto of_tokens = [](const TokenTensor& tensor) {
    return StridedTensor{tensor.data, tensor.batch_stride, tensor.time_stride, 0};
  };
  const TileExtents tokens{problem.B, problem.T, 1, problem.D};
  plans.u = plan("u", of_tokens(problem.u), {problem.B, problem.T, 1, problem.d}, shape.tokens);
  plans.weight = plan("weight", {problem.weight.data, 0, problem.weight.row_stride, 0},
                      {1, problem.D, 1, problem.d}, shape.channels);
  plans.decay =
      plan(problem.log_decay ? "log_decay" : "decay", of_tokens(problem.decay), tokens, 64);
  if (problem.gate.data != nullptr) plans.gate = plan("gate", of_tokens(problem.gate), tokens, 64);
  const auto stored = [&](const char* name, const TokenTensor& tensor) {
    return note(plan_stored_tile(name, of_tokens(tensor), problem.dtype, tokens, 64));
  };
  plans.out = stored("out", problem.out);
  if (problem.x.data != nullptr) plans.x = stored("x", problem.x);
  return plans;
}

void set_maps(const TilePlans& plans, ForwardParams& params) {
  params.u_map = encode(plans.u);
  params.weight_map = encode(plans.weight);
  params.decay_map = encode(plans.decay);
  if (params.problem.gate.data != nullptr) params.gate_map = encode(plans.gate);
  params.out_map = encode(plans.out);
  if (params.problem.x.data != nullptr) params.x_map = encode(plans.x);
}

std::string reason_against(const ForwardVariant& variant, const LinearScanForwardProblem& problem,
                           const DeviceProperties& device, Tiling best, const CallOptions& options,
                           ComposedPlan* composed) {
  if (problem.dtype != variant.dtype) {
    return "takes " + to_string(variant.dtype) + ", got " + to_string(problem.dtype);
  }
  if (variant.tiling == Tiling::kComposed) {
    try {
      const ComposedPlan plan = plan_composed(problem, device, options.batch_invariant);
      if (composed != nullptr) *composed = plan;
    } catch (const Unsupported& error) {
      return error.what();
    }
    return "";
  }
  if (options.batch_invariant) return "is not batch-invariant";
  if (problem.T > kMaxIndex - 256) {
    return "takes T < 2^31 - 256, got " + std::to_string(problem.T);
  }
  if (problem.N >= kMaxIndex) {
    return "takes fewer than 2^31 - 1 sequences, got " + std::to_string(problem.N);
  }
  const std::int64_t tiles = plan_forward(problem, variant.tiling, device).tiles;
  constexpr std::int64_t kMostTiles = kMaxIndex - 65536;  // CTAs take one ticket more each
  if (tiles > kMostTiles) {
    return "takes at most " + std::to_string(kMostTiles) + " tiles, got " + std::to_string(tiles);
  }
  if (problem.decay_dtype != problem.dtype) {
    return "takes decays in " + to_string(problem.dtype) + ", got " +
           to_string(problem.decay_dtype);
  }
  if (variant.tiling != best && options.variant.empty()) {
    return std::string("is slower here than ") + tile_shape(best).name;
  }
  return plan_tiles(problem, variant.tiling).problem;
}

}  // namespace tandem::cuda::linear_scan

namespace tandem::cuda {

using namespace linear_scan;

void linear_scan_forward(const LinearScanForwardProblem& problem, const Context& context,
                         const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.device);
  const Choice choice = choose(problem, device, options);
  const auto& [variant, plan, composed] = choice;
  if (problem.N == 0 && problem.T == 0) return;
  if (problem.B == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  if (choice.is_composed()) {
    return run_composed(problem, composed, context, options.batch_invariant);
  }
  const ScratchMemory scratch(kForward, context, plan.workspace_bytes);
  launch_clear(scratch.at<char>(0), static_cast<std::int64_t>(plan.workspace_bytes),
               device.multiprocessors, context.stream.handle);
  ForwardParams params{};
  params.problem = problem;
  set_maps(plan_tiles(problem, variant.tiling), params);
  params.time_tiles = static_cast<int>(plan.time_tiles);
  params.channel_tiles = static_cast<int>(plan.channel_tiles);
  params.columns = static_cast<int>(problem.B * plan.channel_tiles);
  params.tiles = static_cast<int>(plan.tiles);
  params.exchange = {scratch.at<float2>(plan.maps), scratch.at<float>(plan.states),
                     scratch.at<std::uint32_t>(plan.ticket)};
  const bool keeps = problem.x.data != nullptr || problem.states != nullptr;
  const auto launch = keeps ? variant.launch_keeping : variant.launch;
  launch(variant.name.c_str(), params, plan.blocks, context.stream.handle);
}

std::size_t linear_scan_forward_workspace_bytes(const LinearScanForwardProblem& problem,
                                                const DeviceProperties& device,
                                                const CallOptions& options) {
  const Choice choice = choose(problem, device, options);
  return choice.is_composed() ? choice.composed.workspace_bytes : choice.plan.workspace_bytes;
}

std::vector<VariantInfo> linear_scan_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const ForwardVariant& variant : forward_variants()) {
    infos.push_back({"linear_scan", variant.name, sm90_problem(device)});
  }
  for (const BackwardVariant& variant : backward_variants()) {
    infos.push_back({"linear_scan", variant.name, sm90_problem(device)});
  }
  return infos;
}

}  // namespace tandem::cuda
