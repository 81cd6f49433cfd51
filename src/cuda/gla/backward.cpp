// gla_backward on CUDA: by groups of heads, by chunks, in one reverse walk or by a walk per
// gradient: the choice, and the launches of the first three. Host only.
#include "cuda/gla/backward.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cuda/gla/decay/gradient.h"
#include "cuda/gla/state/config.h"
#include "cuda/gla/walk/merge.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/plan.h"
#include "ops/gla.h"

namespace tandem::cuda::gla {
namespace {

constexpr const char* kOp = "gla_backward";

/// The variant for a problem and, if it goes by walks, their plan. The plan is made once, since the
/// choice may depend on it.
struct BackwardChoice {
  const BackwardVariant& variant;
  BackwardPlan walks = {};
  MergePlan merge = {};
  BackwardPlan merged =
      {};  // where sequences are: of walks before the others, which mostly end at once
  std::size_t workspace_bytes = 0;
};

/// Plans walks of merged sequences where those as they are would be whole.
void merge_walks(BackwardChoice& choice, const GlaBackwardProblem& problem,
                 const DeviceProperties& device) {
  std::vector<SplitShape> shapes;
  for (const BackwardWalk& walk : choice.walks.walks) {
    if (walk.plan.split()) return;
    shapes.push_back(walk.plan.shape);
  }
  const GlaForwardProblem& f = problem.forward;
  const bool states = f.initial_state || problem.d_final_state || problem.d_initial_state;
  choice.merge = plan_merge(f, states, shapes, choice.workspace_bytes);
  if (choice.merge.sequences == 0) return;
  GlaBackwardProblem fewer = problem;
  fewer.forward = merged(f, choice.merge);
  choice.merged = plan_backward(fewer, device);
}

BackwardChoice choose(const GlaBackwardProblem& problem, const DeviceProperties& device,
                      const CallOptions& options) {
  const TilePlans tiles = plan_tiles(problem);
  std::optional<BackwardPlan> walks;
  const BackwardVariant& variant =
      choose_variant(kOp, backward_variants(), device, options, [&](const BackwardVariant& one) {
        std::string reason = reason_against(one, problem, tiles);
        const bool by_walks = one.by_walks();
        // The others take no cu_seqlens: packed sequences go by walks, and so must all.
        if (!by_walks && options.batch_invariant) reason = "is not batch-invariant";
        if (reason.empty() && !by_walks && options.variant.empty()) {
          if (!walks) walks = plan_backward(problem, device);
          const double time = one.by_groups   ? predicted_groups_time(problem, device)
                              : one.by_chunks ? predicted_chunks_time(problem, device)
                                              : plan_reverse_backward(problem, device).time;
          if (time > predicted_walks_time(*walks, device)) {
            reason = "is predicted to be slower than walks";
          }
        }
        return reason;
      });
  BackwardChoice choice{variant};
  if (!variant.by_walks()) return choice;
  choice.walks =
      walks ? *std::move(walks) : plan_backward(problem, device, options.batch_invariant);
  choice.workspace_bytes = choice.walks.workspace_bytes;
  if (!options.batch_invariant) merge_walks(choice, problem, device);
  return choice;
}

/// Says why a kernel that makes all gradients at once cannot take a problem, whatever its widths;
/// "" when it can.
std::string reason_against_all_at_once(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (f.cu_seqlens != nullptr) return "takes no cu_seqlens";
  const bool all = problem.dq.data && problem.dk.data && problem.dv.data;
  return all ? "" : "makes dq, dk and dv, of which not all are wanted";
}

/// The same for one that makes them per head.
std::string reason_against_heads(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (f.HQ == f.H) return "";
  return "takes H = HQ, got " + std::to_string(f.H) + " and " + std::to_string(f.HQ);
}

BackwardMaps encode_maps(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  return {tile_map(f.q, f, f.HQ, f.K),        tile_map(f.k, f, f.HQ, f.K),
          tile_map(f.v, f, f.H, f.V),         tile_map(problem.d_o, f, f.H, f.V),
          tile_map(problem.dq, f, f.HQ, f.K), tile_map(problem.dk, f, f.HQ, f.K),
          tile_map(problem.dv, f, f.H, f.V)};
}

/// Sums a constant decay's gradient, from `splits` sums per sequence and head.
void sum_decays(const GlaBackwardProblem& problem, float* sums, int splits, void* stream) {
  if (!problem.d_log_decay.data || problem.d_log_decay.per_token) return;
  DecayGradientParams params;
  params.N = problem.forward.N;
  params.H = problem.forward.H;
  params.splits = static_cast<unsigned>(splits);
  params.sums = sums;
  params.d_log_decay = problem.d_log_decay;
  launch_decay_sum(params, stream);
}

void run_by_chunks(const GlaBackwardProblem& problem, const BackwardVariant& variant,
                   const DeviceProperties& device, const Context& context) {
  const GlaForwardProblem& f = problem.forward;
  const ChunkBackwardPlan plan = plan_chunk_backward(problem, device);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;
  ChunkBackwardParams params{encode_maps(problem), problem};
  params.pairs = plan.pairs;
  params.count = static_cast<unsigned>(f.B * f.H * plan.pairs);
  params.multiprocessors = std::max(device.multiprocessors, 1);
  params.states = scratch.at<char>(plan.states);
  params.state_gradients = scratch.at<char>(plan.state_gradients);
  params.cut = plan.cut;
  params.cut_factors = scratch.at<CutFactor>(plan.cut_factors);
  params.decay_sums = scratch.at<float>(plan.decay_sums);
  variant.by_chunks(variant.name.c_str(), params, stream);
  sum_decays(problem, params.decay_sums, 2 * plan.pairs, stream);
}

/// Keeps columns [first, last) of K. Strides, those of states too, stay as they are.
GlaBackwardProblem keep_columns(GlaBackwardProblem problem, int first, int last) {
  GlaForwardProblem& f = problem.forward;
  const auto move = [](auto* data, std::int64_t offset) {
    return data == nullptr ? nullptr : data + offset;
  };
  for (StridedTensor* tensor : {&f.q, &f.k, &problem.dq, &problem.dk}) {
    tensor->data = static_cast<char*>(tensor->data) + first * size_of(f.dtype);
  }
  const std::int64_t rows = std::int64_t{first} * f.V;  // of a state
  f.initial_state = move(f.initial_state, rows);
  problem.d_final_state = move(problem.d_final_state, rows);
  problem.d_initial_state = move(problem.d_initial_state, rows);
  f.K = last - first;
  return problem;
}

void run_by_groups(const GlaBackwardProblem& problem, const BackwardVariant& variant,
                   const DeviceProperties& device, const Context& context) {
  const GlaForwardProblem& f = problem.forward;
  const GroupBackwardPlan plan = plan_group_backward(problem);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;
  GroupBackwardParts parts;
  parts.count = plan.parts;
  for (int part = 0; part < plan.parts; ++part) {
    const GlaBackwardProblem own =
        keep_columns(problem, part * kGroupPart, std::min((part + 1) * kGroupPart, f.K));
    GroupBackwardParams& params = parts.of[part];
    params = {encode_maps(own), own};
    params.state_stride = std::int64_t{f.K} * f.V;
    params.share = f.H / f.HQ;
    params.chunks = plan.chunks;
    params.pairs = plan.pairs;
    params.multiprocessors = device.multiprocessors;
    params.states = scratch.at<char>(plan.states + part * plan.part_bytes);
    params.state_gradients = scratch.at<char>(plan.state_gradients + part * plan.part_bytes);
    params.decay_sums = scratch.at<float>(plan.decay_sums);
  }
  variant.by_groups(variant.name.c_str(), parts, stream);
  sum_decays(problem, parts.of[0].decay_sums, plan.chunks, stream);
}

/// Makes the states before, and the gradients behind, the segments of sequences.
void enter_segments(const GlaBackwardProblem& problem, const BackwardVariant& variant,
                    const ReversePlan& plan, const ReverseParams& walk,
                    const ScratchMemory& scratch, void* stream) {
  const GlaForwardProblem& f = problem.forward;
  StateParams spans;
  spans.tma = true;
  spans.problem = f;
  spans.segments = plan.segments;
  spans.segment_chunks = plan.segment_chunks;
  spans.total_log_decay = scratch.at<float>(plan.log_decay);
  spans.k_map = walk.k_map;
  spans.v_map = walk.v_map;
  spans.states = scratch.at<float>(plan.entry_states);
  variant.in_reverse.states(variant.name.c_str(), spans, stream);
  spans.scale = f.scale;
  spans.k_map = walk.q_map;
  spans.v_map = walk.d_o_map;
  spans.states = scratch.at<float>(plan.entry_gradients);
  variant.in_reverse.gradients(variant.name.c_str(), spans, stream);

  SegmentEntriesParams entries;
  entries.sequence_heads = f.B * f.H;
  entries.state_size = std::int64_t{f.K} * f.V;
  entries.segments = plan.segments;
  entries.states = scratch.at<float>(plan.entry_states);
  entries.gradients = scratch.at<float>(plan.entry_gradients);
  entries.log_decay = spans.total_log_decay;
  entries.initial_state = f.initial_state;
  entries.final_gradient = problem.d_final_state;
  launch_segment_entries(entries, stream);
}

void run_in_reverse(const GlaBackwardProblem& problem, const BackwardVariant& variant,
                    const DeviceProperties& device, const Context& context) {
  const ReversePlan plan = plan_reverse_backward(problem, device);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;
  ReverseParams params{encode_maps(problem), problem};
  params.chunks = plan.chunks;
  params.segments = plan.segments;
  params.segment_chunks = plan.segment_chunks;
  params.pairs = plan.pairs;
  params.states = scratch.at<char>(plan.states);
  params.decay_sums = scratch.at<float>(plan.decay_sums);
  params.entry_states = problem.forward.initial_state;
  params.entry_gradients = problem.d_final_state;
  if (plan.segments > 1) {
    enter_segments(problem, variant, plan, params, scratch, stream);
    params.entry_states = scratch.at<float>(plan.entry_states);
    params.entry_gradients = scratch.at<float>(plan.entry_gradients);
  }
  variant.in_reverse.walk(variant.name.c_str(), params, stream);
  sum_decays(problem, params.decay_sums, plan.segments, stream);
}

void run_as_chosen(const GlaBackwardProblem& problem, const BackwardChoice& choice,
                   const Context& context) {
  const ScratchMemory scratch(kOp, context, choice.workspace_bytes);
  void* const stream = context.stream.handle;
  const auto run = [&](const GlaBackwardProblem& of, const BackwardPlan& plan,
                       const FiniteGuard& guard) {
    run_by_walks(of, plan, guard, choice.variant.name, choice.variant.tma, scratch, stream);
  };
  if (choice.merge.sequences == 0) return run(problem, choice.walks, {});
  GlaBackwardProblem fewer = problem;
  merge(fewer.forward, choice.merge, scratch, stream);
  run(fewer, choice.merged, first_guard(choice.merge, scratch));
  run(problem, choice.walks, second_guard(choice.merge, scratch));
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const std::vector<BackwardVariant> table = table_of_variants<
      BackwardVariant>([]<class Element>(auto& rows, DType dtype, bool tma) {
    const std::string name =
        std::string(kOp) + ".sm90." + to_string(dtype) + ".c" + std::to_string(kChunk);
    if (tma) {
      rows.push_back({name + ".chunks", dtype, tma, &launch_chunk_backward<Element>});
      rows.push_back({name + ".reverse",
                      dtype,
                      tma,
                      nullptr,
                      {&launch_state<StateConfig<Element, 128, 128, false>>,
                       &launch_state<StateConfig<Element, 128, 128, true>>,
                       &launch_reverse_backward<Element, 128, 128>}});
      rows.push_back({name + ".groups", dtype, tma, nullptr, {}, &launch_group_backward<Element>});
    }
    rows.push_back({name + (tma ? "" : ".gather"), dtype, tma});
  });
  return table;
}

TilePlans plan_tiles(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  TilePlans tiles = plan_tiles(f, false);
  tiles.add("d_o", problem.d_o, f, f.H, f.V);
  if (problem.dq.data) tiles.add_stored("dq", problem.dq, f, f.HQ, f.K);
  if (problem.dk.data) tiles.add_stored("dk", problem.dk, f, f.HQ, f.K);
  if (problem.dv.data) tiles.add_stored("dv", problem.dv, f, f.H, f.V);
  return tiles;
}

std::string reason_against(const BackwardVariant& variant, const GlaBackwardProblem& problem,
                           const TilePlans& tiles) {
  const GlaForwardProblem& f = problem.forward;
  std::string reason = common_reason(variant.dtype, variant.tma, f, tiles);
  if (!reason.empty()) return reason;
  if (variant.by_walks()) return reason_against_walks(problem);
  reason = reason_against_all_at_once(problem);
  if (reason.empty() && !variant.by_groups) reason = reason_against_heads(problem);
  if (!reason.empty()) return reason;
  if (variant.by_groups) return reason_against_groups(problem);
  return variant.by_chunks ? reason_against_chunks(problem) : reason_against_reverse(problem);
}

}  // namespace tandem::cuda::gla

namespace tandem::cuda {

void gla_backward(const GlaBackwardProblem& problem, const Context& context,
                  const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.forward.device);
  const gla::BackwardChoice choice = gla::choose(problem, device, options);
  const gla::BackwardVariant& variant = choice.variant;
  const CallScope scope(variant.name, problem.forward.device.index);
  if (variant.by_groups) {
    gla::run_by_groups(problem, variant, device, context);
  } else if (variant.by_chunks) {
    gla::run_by_chunks(problem, variant, device, context);
  } else if (variant.in_reverse.walk) {
    gla::run_in_reverse(problem, variant, device, context);
  } else {
    gla::run_as_chosen(problem, choice, context);
  }
}

std::size_t gla_backward_workspace_bytes(const GlaBackwardProblem& problem,
                                         const DeviceProperties& device,
                                         const CallOptions& options) {
  const gla::BackwardChoice choice = gla::choose(problem, device, options);
  const gla::BackwardVariant& variant = choice.variant;
  if (variant.by_groups) return gla::plan_group_backward(problem).workspace_bytes;
  if (variant.by_chunks) return gla::plan_chunk_backward(problem, device).workspace_bytes;
  if (variant.in_reverse.walk) return gla::plan_reverse_backward(problem, device).workspace_bytes;
  return choice.workspace_bytes;
}

}  // namespace tandem::cuda
