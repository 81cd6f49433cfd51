// gla_backward on CUDA: by groups of heads, by chunks, in one reverse walk, by spans of wide heads
// or by a walk per gradient: the choice. Host only.
#include "cuda/gla/backward.h"

#include <algorithm>
#include <utility>

#include "core/environment.h"
#include "cuda/gla/chunks/run.h"
#include "cuda/gla/common/workspace_room.h"
#include "cuda/gla/groups/run.h"
#include "cuda/gla/reverse/outside.h"
#include "cuda/gla/reverse/run.h"
#include "cuda/gla/walk/merge.h"
#include "cuda/gla/wide/run.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/device_model.h"
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
  constexpr double kLaunches = 15.0;  // what they take beside their chunks
  return kLaunches + model.together * (model.decays + predicted_sums_time(choice.walks, device) +
                                       predicted_packed_time(f, sequences, shapes));
}

/// Microseconds of a call.
double predicted_time(const BackwardChoice& choice, const GlaBackwardProblem& problem,
                      const DeviceProperties& device) {
  const BackwardVariant& variant = *choice.variant;
  if (variant.by_walks()) return predicted_by_walks(choice, problem, device);
  if (variant.by_spans) return choice.spans.time;
  constexpr double kMerge = 9.0;  // five launches more
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

/// Runs what makes all gradients wherever inputs are finite, and behind it, for merged sequences,
/// the walks of the sequences as they are.
void run(const GlaBackwardProblem& problem, const BackwardChoice& choice,
         const DeviceProperties& device, const Context& context) {
  const BackwardVariant& variant = *choice.variant;
  const char* const name = variant.name.c_str();
  const ScratchMemory scratch(kOp, context, choice.workspace_bytes);
  void* const stream = context.stream.handle;
  const auto walk = [&](const GlaBackwardProblem& of, const BackwardPlan& plan,
                        const FiniteGuard& guard) {
    run_by_walks(of, plan, guard, variant.name, variant.tma, scratch, stream);
  };
  if (variant.by_spans) {
    return run_wide_backward(problem, choice.spans, variant.by_spans, name, device, scratch,
                             stream);
  }
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
    run_chunk_backward(merged, choice.chunks, variant.by_chunks, name, guard, device, scratch,
                       stream);
  } else if (variant.in_reverse) {
    run_reverse_backward(merged, choice.reverse, variant.in_reverse, variant.segments, name, guard,
                         scratch, stream);
  } else {
    run_group_backward(merged, choice.groups, variant.by_groups, variant.segments, name, guard,
                       device, scratch, stream);
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
