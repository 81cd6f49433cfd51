// gla_backward on CUDA: by groups of heads, by chunks, in one reverse walk, by spans of wide heads
// or by a walk per gradient: the choice, and the launches of all but the last. Host only.
#include "cuda/gla/backward.h"

#include <algorithm>
#include <utility>

#include "core/environment.h"
#include "cuda/gla/common/workspace_room.h"
#include "cuda/gla/decay/gradient.h"
#include "cuda/gla/reverse/outside.h"
#include "cuda/gla/state/config.h"
#include "cuda/gla/walk/merge.h"
#include "cuda/gla/wide/run.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/plan.h"
#include "ops/gla.h"

namespace tandem::cuda::gla {
namespace {

constexpr const char* kOp = "gla_backward";

/// The variant for a problem and its plan. Plans are made once, since the choice may depend on
/// them.
struct BackwardChoice {
  const BackwardVariant* variant = nullptr;
  BackwardPlan walks;
  ChunkBackwardPlan chunks;
  ReversePlan reverse;
  GroupBackwardPlan groups;
  WideBackwardPlan spans;
  // Packed sequences merged. Behind it come the walks of the sequences as they are, which mostly
  // end at once.
  MergePlan merge;
  BackwardPlan merged_walks;
  std::size_t workspace_bytes = 0;

  bool merges() const { return merge.sequences > 0; }
};

bool has_states(const GlaBackwardProblem& problem) {
  return problem.forward.initial_state || problem.d_final_state || problem.d_initial_state;
}

GlaBackwardProblem as_one(GlaBackwardProblem problem) {
  problem.forward = all_merged(problem.forward);
  return problem;
}

/// How many tokens back a state is expected to depend on: the mean length of a sequence.
std::int64_t mean_length(const GlaForwardProblem& problem) {
  return ceil_div(problem.B * problem.T, std::max<std::int64_t>(problem.N, 1));
}

/// Makes a plan of packed sequences as one, or of what is not packed.
template <class Plan>
Plan plan_as_one(Plan (*plan)(const GlaBackwardProblem&, const DeviceProperties&,
                              const MergedSequences&),
                 const GlaBackwardProblem& problem, const DeviceProperties& device) {
  const GlaForwardProblem& f = problem.forward;
  if (f.cu_seqlens == nullptr) return plan(problem, device, {});
  return plan(as_one(problem), device, {mean_length(f), merged_bytes(f)});
}

/// The shapes of walks that take whole sequences; none where one is cut.
std::vector<SplitShape> whole_shapes(const BackwardPlan& plan) {
  std::vector<SplitShape> shapes;
  for (const BackwardWalk& walk : plan.walks) {
    if (walk.plan.split()) return {};
    shapes.push_back(walk.plan.shape);
  }
  return shapes;
}

/// Plans the walks of a call, of merged sequences where that is predicted to be faster.
BackwardChoice plan_walks(const GlaBackwardProblem& problem, const DeviceProperties& device,
                          bool batch_invariant) {
  BackwardChoice choice;
  choice.walks = plan_backward(problem, device, batch_invariant);
  choice.workspace_bytes = choice.walks.workspace_bytes;
  if (batch_invariant) return choice;
  choice.merge = plan_merge(problem.forward, has_states(problem), whole_shapes(choice.walks));
  if (!choice.merges()) return choice;
  GlaBackwardProblem fewer = problem;
  fewer.forward = merged(problem.forward, choice.merge);
  choice.merged_walks = plan_backward(fewer, device);
  choice.workspace_bytes =
      place_merge(choice.merge, problem.forward, choice.merged_walks.workspace_bytes,
                  choice.walks.workspace_bytes);
  return choice;
}

/// Microseconds of a call by walks.
double predicted_by_walks(const BackwardChoice& choice, const GlaBackwardProblem& problem,
                          const DeviceProperties& device) {
  const GlaForwardProblem& f = problem.forward;
  if (f.cu_seqlens == nullptr) return predicted_walks_time(choice.walks, device);
  const std::vector<SplitShape> shapes = whole_shapes(choice.walks);
  if (shapes.empty()) {  // cut as one sequence of all tokens would be
    return predicted_walks_time(plan_backward(as_one(problem), device), device);
  }
  const DeviceModel::GlaBackward& model = device_model(device).gla_backward;
  const std::int64_t sequences = choice.merges() ? choice.merge.sequences : f.N;
  return model.together * (model.decays + predicted_sums_time(choice.walks, device) +
                           predicted_packed_time(f, sequences, shapes));
}

/// Microseconds of a call.
double predicted_time(const BackwardChoice& choice, const GlaBackwardProblem& problem,
                      const DeviceProperties& device) {
  const BackwardVariant& variant = *choice.variant;
  if (variant.by_walks()) return predicted_by_walks(choice, problem, device);
  if (variant.by_spans) return choice.spans.time;
  constexpr double kMerge = 20.0;  // five launches more
  const double of_one = variant.by_chunks    ? choice.chunks.time
                        : variant.in_reverse ? choice.reverse.time
                                             : choice.groups.time;
  return of_one + (choice.merges() ? kMerge : 0.0);
}

/// Plans a call by spans, which takes no more memory than one by walks, or than 1.1 times the wider
/// of q and v and 16 MB, if heads in turn are enough for that.
WideBackwardPlan plan_wide(const GlaBackwardProblem& problem, const DeviceProperties& device) {
  const std::size_t by_walks = plan_backward(problem, device).workspace_bytes;
  const auto room = static_cast<std::size_t>(workspace_room(problem.forward));
  return plan_wide_backward(problem, device, std::max(room, by_walks));
}

/// Plans a call by a variant.
BackwardChoice plan_by(const BackwardVariant& variant, const GlaBackwardProblem& problem,
                       const DeviceProperties& device, bool batch_invariant) {
  BackwardChoice choice;
  if (variant.by_walks()) {
    choice = plan_walks(problem, device, batch_invariant);
  } else if (variant.by_chunks) {
    const bool packed = problem.forward.cu_seqlens != nullptr;
    choice.chunks =
        plan_chunk_backward(packed ? as_one(problem) : problem, device, variant.chunks_in_reverse);
    choice.workspace_bytes = choice.chunks.workspace_bytes;
  } else if (variant.in_reverse) {
    choice.reverse = plan_as_one(&plan_reverse_backward, problem, device);
    choice.workspace_bytes = choice.reverse.workspace_bytes;
  } else if (variant.by_spans) {
    choice.spans = plan_wide(problem, device);
    choice.workspace_bytes = choice.spans.workspace_bytes;
  } else {
    choice.groups = plan_as_one(&plan_group_backward, problem, device);
    choice.workspace_bytes = choice.groups.workspace_bytes;
  }
  if (variant.as_one() && problem.forward.cu_seqlens != nullptr) {
    // Batch-invariant walks are whole, so that nothing must be ready for them.
    choice.walks = plan_backward(problem, device, true);
    choice.merge = plan_merge_all(problem.forward);
    choice.workspace_bytes = place_merge(choice.merge, problem.forward, choice.workspace_bytes,
                                         choice.walks.workspace_bytes);
  }
  choice.variant = &variant;
  return choice;
}

/// Chooses among the variants that take a call the one that is predicted to be fastest.
BackwardChoice choose(const GlaBackwardProblem& problem, const DeviceProperties& device,
                      const CallOptions& options) {
  const TilePlans tiles = plan_tiles(problem);
  const auto reason = [&](const BackwardVariant& one) -> std::string {
    if (options.batch_invariant && !one.by_walks()) return "is not batch-invariant";
    return reason_against(one, problem, tiles);
  };
  const std::vector<BackwardVariant>& table = backward_variants();
  const BackwardVariant& first = choose_variant(kOp, table, device, options, reason);
  BackwardChoice best = plan_by(first, problem, device, options.batch_invariant);
  if (!options.variant.empty() || first.by_walks()) return best;
  double time = predicted_time(best, problem, device);
  for (const BackwardVariant* other = &first + 1; other != table.data() + table.size(); ++other) {
    if (other->tma != first.tma || !reason(*other).empty()) continue;
    BackwardChoice choice = plan_by(*other, problem, device, options.batch_invariant);
    const double other_time = predicted_time(choice, problem, device);
    if (other_time >= time) continue;
    best = std::move(choice);
    time = other_time;
  }
  if (options.chosen != nullptr) *options.chosen = best.variant->name;
  return best;
}

/// Says why a kernel that makes all gradients at once cannot take a problem, whatever its widths;
/// "" when it can. `merges`: whether it takes packed sequences as one.
std::string reason_against_all_at_once(const GlaBackwardProblem& problem, bool merges) {
  const GlaForwardProblem& f = problem.forward;
  if (f.cu_seqlens != nullptr) {
    if (!merges) return "takes no cu_seqlens";
    if (has_states(problem)) return "takes cu_seqlens without states";
    if (f.N == 0 || f.T == 0) return "takes cu_seqlens of sequences with tokens";
    if (gla_merge_switch() == MergeSwitch::kNever) return "merges packed sequences";
    // Tokens of no sequence would be in that sum.
    if (problem.d_log_decay.data && !problem.d_log_decay.per_token) {
      return "takes cu_seqlens without a gradient by a constant decay";
    }
  }
  const bool all = problem.dq.data && problem.dk.data && problem.dv.data;
  return all ? "" : "makes dq, dk and dv, of which not all are wanted";
}

/// The same for one that makes them per head.
std::string reason_against_heads(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (f.HQ == f.H) return "";
  return "takes H = HQ, got " + std::to_string(f.H) + " and " + std::to_string(f.HQ);
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

void run_by_chunks(const GlaBackwardProblem& problem, const BackwardChoice& choice,
                   const FiniteGuard& guard, const DeviceProperties& device,
                   const ScratchMemory& scratch, void* stream) {
  const BackwardVariant& variant = *choice.variant;
  const GlaForwardProblem& f = problem.forward;
  const ChunkBackwardPlan& plan = choice.chunks;
  ChunkBackwardParams params{encode_maps(problem), problem, guard};
  params.pairs = plan.pairs;
  params.count = static_cast<unsigned>(f.B * f.H * plan.pairs);
  params.multiprocessors = std::max(device.multiprocessors, 1);
  params.saved_states = plan.saved_states;
  params.states_map = plan.saved_states ? map_saved_states(f, 0, f.K)
                                        : map_states(f, scratch.at<char>(plan.states),
                                                     f.B * plan.pairs, kChunkBackwardWidth);
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

/// Where segments begin: [B,H,segments,K,V], null: 0.
struct Entries {
  float* states;
  float* gradients;
};

/// Makes the states before, and the gradients behind, the segments of sequences, where these are
/// cut.
template <class Plan>
Entries enter_segments(const GlaBackwardProblem& problem, const BackwardMaps& maps,
                       SegmentStatesLaunch launch, const std::string& name, const Plan& plan,
                       const ScratchMemory& scratch, void* stream) {
  const GlaForwardProblem& f = problem.forward;
  if (plan.segments == 1) {
    return {const_cast<float*>(f.initial_state), const_cast<float*>(problem.d_final_state)};
  }
  const Entries made{scratch.at<float>(plan.entry_states), scratch.at<float>(plan.entry_gradients)};
  SegmentStatesParams segments;
  StateParams& states = segments.states;
  states.tma = true;
  states.problem = f;
  states.segments = plan.segments;
  states.segment_chunks = plan.segment_chunks;
  states.forgets = true;
  states.total_log_decay = scratch.at<float>(plan.log_decay);
  states.k_map = maps.k_map;
  states.v_map = maps.v_map;
  states.states = made.states;
  states.shift = 1;
  StateParams& gradients = segments.gradients = states;
  gradients.scale = f.scale;
  gradients.k_map = maps.q_map;
  gradients.v_map = maps.d_o_map;
  gradients.states = made.gradients;
  gradients.shift = -1;
  gradients.first_total = plan.segments - 1;  // which the other direction does not make
  launch(name.c_str(), segments, stream);

  SegmentEntriesParams entries;
  entries.sequence_heads = f.B * f.H;
  entries.state_size = std::int64_t{f.K} * f.V;
  entries.segments = plan.segments;
  entries.states = made.states;
  entries.gradients = made.gradients;
  entries.log_decay = states.total_log_decay;
  entries.initial_state = f.initial_state;
  entries.final_gradient = problem.d_final_state;
  launch_segment_entries(entries, stream);
  return made;
}

void run_in_reverse(const GlaBackwardProblem& problem, const BackwardChoice& choice,
                    const FiniteGuard& guard, const ScratchMemory& scratch, void* stream) {
  const BackwardVariant& variant = *choice.variant;
  const ReversePlan& plan = choice.reverse;
  ReverseParams params{encode_maps(problem), problem};
  const Entries entries =
      plan.looks_back
          ? Entries{nullptr, scratch.at<float>(plan.entry_gradients)}
          : enter_segments(problem, params, variant.segments, variant.name, plan, scratch, stream);
  params.looks_back = plan.looks_back;
  params.guard = guard;
  params.chunks = plan.chunks;
  params.segments = plan.segments;
  params.segment_chunks = plan.segment_chunks;
  params.pairs = plan.pairs;
  params.saved_states = plan.saved_states;
  const GlaForwardProblem& f = problem.forward;
  if (plan.saved_states) {
    params.sequence_pairs = static_cast<int>(ceil_div(plan.chunks, 2));
    params.states_map = map_saved_states(f, 0, f.K);
  } else {
    params.sequence_pairs = plan.segments * plan.pairs;
    params.states_map =
        map_states(f, scratch.at<char>(plan.states), f.B * params.sequence_pairs, kReverseWidth);
  }
  params.decay_sums = scratch.at<float>(plan.decay_sums);
  params.entry_states = entries.states;
  params.entry_gradients = entries.gradients;
  variant.in_reverse(variant.name.c_str(), params, stream);
  sum_decays(problem, params.decay_sums, plan.segments, stream);
}

void run_by_groups(const GlaBackwardProblem& problem, const BackwardChoice& choice,
                   const FiniteGuard& guard, const DeviceProperties& device,
                   const ScratchMemory& scratch, void* stream) {
  const BackwardVariant& variant = *choice.variant;
  const GlaForwardProblem& f = problem.forward;
  const GroupBackwardPlan& plan = choice.groups;
  const Entries entries = enter_segments(problem, encode_maps(problem), variant.segments,
                                         variant.name, plan, scratch, stream);
  GroupBackwardParts parts;
  parts.count = plan.parts;
  for (int part = 0; part < plan.parts; ++part) {
    const int first = part * kGroupPart;
    const GlaBackwardProblem own = keep_columns(problem, first, std::min(first + kGroupPart, f.K));
    const auto of_part = [&](float* states) {
      return states == nullptr ? nullptr : states + std::int64_t{first} * f.V;
    };
    GroupBackwardParams& params = parts.of[part];
    params = {encode_maps(own), own};
    params.state_stride = std::int64_t{f.K} * f.V;
    params.value_panels = plan.value_panels;
    params.members = plan.members;
    params.chunks = plan.chunks;
    params.segments = plan.segments;
    params.segment_chunks = plan.segment_chunks;
    params.slab_pairs = plan.slab_pairs();
    params.multiprocessors = device.multiprocessors;
    params.entry_states = of_part(entries.states);
    params.entry_gradients = of_part(entries.gradients);
    params.states = scratch.at<char>(plan.states + part * plan.part_bytes);
    params.saved_states = plan.saved_states;
    params.sequence_pairs = static_cast<int>(ceil_div(plan.chunks, 2));
    if (plan.saved_states) params.states_map = map_saved_states(f, first, own.forward.K);
    params.decay_sums = scratch.at<float>(plan.decay_sums);
    params.guard = guard;
  }
  const int groups = static_cast<int>(f.B * f.HQ);
  for (int group = 0; group < groups; group += plan.slab_groups) {
    for (int segment = 0; segment < plan.segments; segment += plan.slab_segments) {
      const GroupSlab slab{group, std::min(plan.slab_groups, groups - group), segment,
                           std::min(plan.slab_segments, plan.segments - segment)};
      const int first_chunk = segment * plan.segment_chunks;
      const int last_chunk = (segment + slab.segments) * plan.segment_chunks;
      for (GroupBackwardParams& params : parts.of) {
        params.slab = slab;
        params.slab_chunks = std::min(last_chunk, plan.chunks) - first_chunk;
      }
      variant.by_groups(variant.name.c_str(), parts, stream);
    }
  }
  sum_decays(problem, parts.of[0].decay_sums, plan.chunks, stream);
}

void run_by_spans(const GlaBackwardProblem& problem, const BackwardChoice& choice,
                  const DeviceProperties& device, const ScratchMemory& scratch, void* stream) {
  const BackwardVariant& variant = *choice.variant;
  const WideBackwardPlan& plan = choice.spans;
  run_wide_backward(problem, plan, variant.by_spans, variant.name.c_str(), device, scratch, stream);
  sum_decays(problem, scratch.at<float>(plan.decay_sums), plan.spans, stream);
}

/// Runs what makes all gradients wherever inputs are finite, and behind it, for merged sequences,
/// the walks of the sequences as they are.
void run(const GlaBackwardProblem& problem, const BackwardChoice& choice,
         const DeviceProperties& device, const Context& context) {
  const BackwardVariant& variant = *choice.variant;
  const ScratchMemory scratch(kOp, context, choice.workspace_bytes);
  void* const stream = context.stream.handle;
  const auto walk = [&](const GlaBackwardProblem& of, const BackwardPlan& plan,
                        const FiniteGuard& guard) {
    run_by_walks(of, plan, guard, variant.name, variant.tma, scratch, stream);
  };
  if (variant.by_spans) return run_by_spans(problem, choice, device, scratch, stream);
  if (!choice.merges() && variant.by_walks()) return walk(problem, choice.walks, {});
  GlaBackwardProblem merged = problem;
  FiniteGuard guard;
  if (choice.merges()) {
    const auto make = variant.as_one() ? &merge_all : &merge;
    make(merged.forward, choice.merge, scratch, stream);
    guard = first_guard(choice.merge, scratch);
  }
  if (variant.by_walks()) {
    walk(merged, choice.merged_walks, guard);
  } else if (variant.by_chunks) {
    run_by_chunks(merged, choice, guard, device, scratch, stream);
  } else if (variant.in_reverse) {
    run_in_reverse(merged, choice, guard, scratch, stream);
  } else {
    run_by_groups(merged, choice, guard, device, scratch, stream);
  }
  if (!choice.merges()) return;
  if (variant.as_one()) launch_clear_outside(problem, stream);
  walk(problem, choice.walks, second_guard(choice.merge, scratch));
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const std::vector<BackwardVariant> table =
      table_of_variants<BackwardVariant>([]<class Element>(auto& rows, DType dtype, bool tma) {
        const std::string name =
            std::string(kOp) + ".sm90." + to_string(dtype) + ".c" + std::to_string(kChunk);
        if (tma) {
          const SegmentStatesLaunch segments = &launch_segment_states<Element, 128, 128>;
          BackwardVariant chunks{name + ".chunks", dtype, tma},
              chunks_reverse{name + ".chunks_reverse", dtype, tma},
              reverse{name + ".reverse", dtype, tma}, groups{name + ".groups", dtype, tma},
              wide{name + ".wide", dtype, tma};
          chunks.by_chunks = &launch_chunk_backward<Element, false>;
          chunks_reverse.by_chunks = &launch_chunk_backward<Element, true>;
          chunks_reverse.chunks_in_reverse = true;
          reverse.in_reverse = &launch_reverse_backward<Element, 128, 128>;
          groups.by_groups = &launch_group_backward<Element>;
          reverse.segments = groups.segments = segments;
          wide.by_spans = &launch_wide_backward<Element>;
          rows.insert(rows.end(), {chunks, chunks_reverse, reverse, groups, wide});
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
  reason = reason_against_all_at_once(problem, variant.as_one());
  if (reason.empty() && !variant.by_groups) reason = reason_against_heads(problem);
  if (!reason.empty()) return reason;
  if (variant.by_groups) return reason_against_groups(problem);
  if (variant.by_spans) return reason_against_wide(problem);
  return variant.by_chunks ? reason_against_chunks(problem) : reason_against_reverse(problem);
}

}  // namespace tandem::cuda::gla

namespace tandem::cuda {

void gla_backward(const GlaBackwardProblem& problem, const Context& context,
                  const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.forward.device);
  const gla::BackwardChoice choice = gla::choose(problem, device, options);
  const CallScope scope(choice.variant->name, problem.forward.device.index);
  gla::run(problem, choice, device, context);
}

std::size_t gla_backward_workspace_bytes(const GlaBackwardProblem& problem,
                                         const DeviceProperties& device,
                                         const CallOptions& options) {
  return gla::choose(problem, device, options).workspace_bytes;
}

}  // namespace tandem::cuda
