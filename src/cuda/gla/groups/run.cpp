#include "cuda/gla/groups/run.h"

#include <algorithm>
#include <bit>

#include "cuda/gla/common/segment_entries.h"
#include "cuda/gla/decay/gradient.h"
#include "cuda/gla/walk/sum_heads.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

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

}  // namespace

void run_group_backward(const GlaBackwardProblem& problem, const GroupBackwardPlan& plan,
                        GroupBackwardLaunch launch, SegmentStatesLaunch segments, const char* name,
                        const FiniteGuard& guard, const DeviceProperties& device,
                        const ScratchMemory& scratch, void* stream) {
  const GlaForwardProblem& f = problem.forward;
  const SegmentEntries entries =
      enter_segments(problem, encode_maps(problem), plan, segments, name, scratch, stream);
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
    params.problem.forward.HQ = f.HQ * plan.splits;
    params.log2_splits = std::bit_width(static_cast<unsigned>(plan.splits)) - 1;
    if (plan.splits > 1) {
      params.query_sums = scratch.at<float>(plan.query_sums) + first;
      params.key_sums = scratch.at<float>(plan.key_sums) + first;
      params.sums_stride = f.K;
    }
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
  const int groups = static_cast<int>(f.B * f.HQ * plan.splits);
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
      launch(name, parts, stream);
    }
  }
  if (plan.splits > 1) {
    const auto add = [&](std::size_t sums, const StridedTensor& to) {
      launch_sum_heads({.dtype = f.dtype,
                        .B = f.B,
                        .T = f.T,
                        .H = f.HQ * plan.splits,
                        .HQ = f.HQ,
                        .D = f.K,
                        .from = scratch.at<float>(sums),
                        .to = to},
                       device.multiprocessors, stream);
    };
    add(plan.query_sums, problem.dq);
    add(plan.key_sums, problem.dk);
  }
  launch_decay_sum(problem, parts.of[0].decay_sums, plan.chunks, stream);
}

}  // namespace tandem::cuda::gla
