#include "cuda/gla/groups/plan.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/environment.h"
#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/common/expected_reach.h"
#include "cuda/gla/common/state_walks.h"
#include "cuda/gla/common/workspace_room.h"
#include "cuda/gla/variant_choice.h"
#include "cuda/parts/panel.cuh"
#include "cuda/runtime/device_model.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kNarrow = 64;
constexpr int kMostTiles = 2;  // of 128 x 64: with more walks are faster
constexpr int kMostSegments = 64;
constexpr int kFewestChunks = 4;  // per segment
constexpr int kMostSplits = 8;

/// What follows from a problem alone.
struct Shape {
  int parts, value_panels, chunks, splits;
  std::int64_t groups, members, state_bytes, most_bytes;

  Shape(const GlaForwardProblem& f, const MergedSequences& merged, int splits = 1)
      : parts(static_cast<int>(ceil_div(f.K, kGroupPart))),
        value_panels(static_cast<int>(ceil_div(f.V, 64))),
        chunks(static_cast<int>(ceil_div(f.T, kChunk))),
        splits(splits),
        groups(f.B * f.HQ * splits),
        members(std::int64_t{f.H / std::max(f.HQ * splits, 1)} * value_panels),
        state_bytes((f.K <= kNarrow ? 1 : 2) * panel_bytes(64)),
        most_bytes(workspace_room(f, merged)) {}
};

/// Whether segments can be entered: states are read 16 bytes at a time.
bool may_cut(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (std::int64_t{f.K} * f.V % 4 != 0) return false;
  const auto aligned = [](const float* states) {
    return reinterpret_cast<std::uintptr_t>(states) % 16 == 0;
  };
  return aligned(f.initial_state) && aligned(problem.d_final_state);
}

/// Kinds of states that are made: S, if the forward did not save it, and dS.
std::int64_t kinds(const GroupBackwardPlan& plan) { return plan.saved_states ? 1 : 2; }

/// Of all kinds of states, of all parts.
std::int64_t slab_bytes(const GroupBackwardPlan& plan, const Shape& shape) {
  return kinds(plan) * plan.parts * plan.slab_groups * shape.members * plan.slab_pairs() *
         shape.state_bytes;
}

/// Cuts the call into slabs whose states have room beside what else there is, if they can.
void choose_slabs(GroupBackwardPlan& plan, const Shape& shape, std::int64_t other_bytes) {
  plan.slab_groups = static_cast<int>(shape.groups);
  plan.slab_segments = plan.segments;
  const std::int64_t room = std::max<std::int64_t>(shape.most_bytes - other_bytes, 1);
  const std::int64_t slabs = ceil_div(slab_bytes(plan, shape), room);
  if (slabs <= 1) return;
  plan.slab_groups = static_cast<int>(ceil_div(shape.groups, std::min(slabs, shape.groups)));
  const std::int64_t of_groups = ceil_div(shape.groups, plan.slab_groups);
  const std::int64_t of_time = std::min<std::int64_t>(ceil_div(slabs, of_groups), plan.segments);
  plan.slab_segments = static_cast<int>(ceil_div(plan.segments, of_time));
}

/// Of what the splits of all groups leave of dq, or of dk.
std::int64_t sums_bytes(const GlaForwardProblem& f, int splits) {
  return splits > 1 ? 4 * f.B * f.T * f.HQ * splits * f.K : 0;
}

/// Microseconds of a chunk of all walks for states of a slab.
double predicted_walks(const GroupBackwardPlan& plan, const Shape& shape,
                       const DeviceProperties& device) {
  constexpr double kOfCopy = 0.85;  // the memory's rate where as much is written as read
  const double rate = kOfCopy * device_model(device).gla_chunks.bytes_per_microsecond;
  // v or d_o read, once for all parts, half a state written.
  const std::int64_t bytes = panel_bytes(64) / plan.parts + shape.state_bytes / 2;
  const std::int64_t walks =
      kinds(plan) * plan.parts * plan.slab_groups * plan.slab_segments * shape.members;
  const int of_cta = state_walks_of_cta(walks, shape.members, device.multiprocessors);
  const std::int64_t at_once = state_walks_at_once(of_cta) * std::max(device.multiprocessors, 1);
  const auto round = [&](std::int64_t count) {
    return std::max(count > 0 ? state_walk_chunk_time(of_cta) : 0.0,
                    static_cast<double>(count * bytes) / rate);
  };
  return static_cast<double>(walks / at_once) * round(at_once) + round(walks % at_once);
}

double predicted_time(const GroupBackwardPlan& plan, const Shape& shape, const GlaForwardProblem& f,
                      std::int64_t reach, const DeviceProperties& device) {
  // Measured on an H200 (docs/ops/gla_backward.log.md).
  constexpr double kLaunch = 7.0;   // with its first loads and last stores
  constexpr double kItem = 4.0;     // what a chunk's gradients take beside their members
  constexpr double kMember = 2.65;  // one member of a chunk's gradients
  constexpr double kNarrowMember = 1.95;
  constexpr double kAddedMember = 1.1;  // what it takes besides where a part before has left dv
  const std::int64_t multiprocessors = std::max(device.multiprocessors, 1);
  const std::int64_t items =
      ceil_div(std::int64_t{plan.slab_groups} * plan.slab_chunks(), multiprocessors);
  const double member = f.K <= kNarrow ? kNarrowMember : kMember;
  const double members = static_cast<double>(shape.members);
  const double slab =
      kLaunch * (1 + plan.parts) +
      std::min(plan.segment_chunks, plan.chunks) * predicted_walks(plan, shape, device) +
      static_cast<double>(plan.parts * items) * (kItem + members * member) +
      static_cast<double>((plan.parts - 1) * items) * members * kAddedMember;
  const std::int64_t slabs = ceil_div(shape.groups, std::max(plan.slab_groups, 1)) *
                             ceil_div(plan.segments, plan.slab_segments);
  double time = static_cast<double>(slabs) * slab;
  if (plan.splits > 1) {  // what each leaves of dq and dk, and two launches that add it up
    constexpr double kSums = 4.0, kBytesPerMicrosecond = 2.0e6;
    time +=
        2 * (kSums + static_cast<double>(2 * sums_bytes(f, plan.splits)) / kBytesPerMicrosecond);
  }
  if (plan.segments == 1) return time;
  // Two passes for the states of segments, which read k, v, q and do, and their sums.
  constexpr int kLaunches = 3;
  const DeviceModel::GlaWalk& span = device_model(device).gla_walk;
  const std::int64_t chunks =
      std::min<std::int64_t>(plan.chunks, plan.segments * (ceil_div(reach, kChunk) + 1));
  const std::int64_t chunk_bytes = std::int64_t{4} * kChunk * (f.K + f.V);
  return time + kLaunches * span.call +
         static_cast<double>(f.B * f.H * chunks * chunk_bytes) / span.bytes_per_microsecond;
}

GroupBackwardPlan plan_segments(const GlaBackwardProblem& problem, const Shape& shape,
                                std::int64_t reach, const DeviceProperties& device, int segments) {
  const GlaForwardProblem& f = problem.forward;
  const std::int64_t heads = f.B * f.H;
  GroupBackwardPlan plan;
  plan.saved_states = can_copy_saved_states(f);
  plan.parts = shape.parts;
  plan.value_panels = shape.value_panels;
  plan.members = static_cast<int>(shape.members);
  plan.splits = shape.splits;
  plan.chunks = shape.chunks;
  plan.segment_chunks = std::max(shape.chunks, 1);
  if (segments > 1)
    plan.segment_chunks = static_cast<int>(2 * ceil_div(shape.chunks, 2 * segments));
  plan.segments = std::max(static_cast<int>(ceil_div(shape.chunks, plan.segment_chunks)), 1);
  WorkspaceLayout workspace;
  if (plan.segments > 1) {
    const std::int64_t entries = 4 * heads * plan.segments * f.K * f.V;
    plan.entry_states = workspace.add(entries);
    plan.entry_gradients = workspace.add(entries);
    plan.log_decay = workspace.add(4 * heads * plan.segments);
  }
  if (problem.d_log_decay.data && !problem.d_log_decay.per_token) {
    plan.decay_sums = workspace.add(4 * heads * plan.chunks);
  }
  plan.query_sums = workspace.add(sums_bytes(f, plan.splits));
  plan.key_sums = workspace.add(sums_bytes(f, plan.splits));
  choose_slabs(plan, shape, static_cast<std::int64_t>(workspace.bytes()));
  const std::int64_t bytes = slab_bytes(plan, shape);
  plan.part_bytes = static_cast<std::size_t>(bytes / plan.parts);
  plan.states = workspace.add(bytes);
  plan.workspace_bytes = workspace.bytes();
  plan.time = predicted_time(plan, shape, f, reach, device);
  return plan;
}

}  // namespace

int GroupBackwardPlan::slab_chunks() const {
  return slab_segments == segments ? chunks : slab_segments * segment_chunks;
}

std::string reason_against_groups(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  const Shape shape(f, {});
  if (shape.groups * shape.members * std::max(shape.chunks, 2 * shape.parts * kMostSegments) >
      kMaxIndex) {
    return "takes at most 2^31 - 1 chunks of 64 tokens of heads";
  }
  const std::string reason = width_reason("K", f.K, kMostGroupParts * kGroupPart);
  return reason.empty() ? width_reason("V", f.V, 64 * (kMostTiles / shape.parts)) : reason;
}

GroupBackwardPlan plan_group_backward(const GlaBackwardProblem& problem,
                                      const DeviceProperties& device,
                                      const MergedSequences& merged) {
  const GlaForwardProblem& f = problem.forward;
  const Shape shape(f, merged);
  const std::int64_t reach = std::min(merged.reach, expected_reach(f));
  const auto plan = [&](int splits, int segments) {
    return plan_segments(problem, Shape(f, merged, splits), reach, device, segments);
  };
  GroupBackwardPlan best = plan(1, 1);
  const std::int64_t room =
      std::max<std::int64_t>(shape.most_bytes, static_cast<std::int64_t>(best.workspace_bytes));
  const auto consider = [&](int splits, int segments) {
    const GroupBackwardPlan other = plan(splits, segments);
    if (static_cast<std::int64_t>(other.workspace_bytes) > room) return;
    if (other.time < best.time) best = other;
  };
  // Where many heads share q and k there are few items of many members.
  const std::int64_t heads = f.H / std::max(f.HQ, 1);
  const bool few = shape.groups * shape.chunks < 4 * std::int64_t{device.multiprocessors};
  for (int splits = 2; few && splits <= kMostSplits; splits *= 2) {
    if (heads % splits == 0) consider(splits, 1);
  }
  if (may_cut(problem)) {
    if (const int forced = gla_segments_switch(); forced > 0) {
      return plan(best.splits, std::clamp(forced, 1, std::max(shape.chunks / 2, 1)));
    }
    const int most = std::min(kMostSegments, shape.chunks / kFewestChunks);
    for (int segments = 2; segments <= most; ++segments) consider(best.splits, segments);
  }
  // Where heads share nothing other ways keep to the room.
  if (f.H == f.HQ && static_cast<std::int64_t>(best.workspace_bytes) > shape.most_bytes) {
    best.time = std::numeric_limits<double>::infinity();
  }
  return best;
}

}  // namespace tandem::cuda::gla
