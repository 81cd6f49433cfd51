// The launches of a backward by walks. Host only.
#include "cuda/gla/decay/gradient.h"
#include "cuda/gla/variant_choice.h"
#include "cuda/gla/walk/backward.h"
#include "cuda/gla/walk/sum_heads.h"
#include "cuda/runtime/clear.h"

namespace tandem::cuda::gla {
namespace {

DecayGradientParams decay_gradient_params(const GlaBackwardProblem& problem,
                                          const BackwardPlan& plan, const FiniteGuard& guard,
                                          const ScratchMemory& scratch) {
  const GlaForwardProblem& f = problem.forward;
  DecayGradientParams params;
  params.B = f.B;
  params.T = f.T;
  params.N = f.N;
  params.H = f.H;
  params.cu_seqlens = f.cu_seqlens;
  params.log_decay = f.log_decay;
  params.d_log_decay = problem.d_log_decay;
  params.panels = plan.panels;
  params.query_rows = scratch.at<float>(plan.query_rows);
  params.key_rows = scratch.at<float>(plan.key_rows);
  params.key_state_rows = scratch.at<float>(plan.key_state_rows);
  params.flows = scratch.at<float>(plan.flows);
  params.spans = plan.spans;
  params.splits = plan.decay_splits;
  params.sums = scratch.at<float>(plan.decay_sums);
  params.beside_walk = plan.decay_beside_walk;
  params.guard = guard;
  return params;
}

/// Where a walk's row sums go: its part of V has its panels behind those of earlier parts.
RowSumParams row_sum_params(const GlaForwardProblem& f, const BackwardPlan& plan,
                            const BackwardWalk& walk, const ScratchMemory& scratch) {
  const std::int64_t first_panel = std::int64_t{walk.part} * (plan.panels / plan.parts);
  const std::int64_t rows = first_panel * f.B * f.H * f.T;
  const std::int64_t spans = first_panel * f.H * plan.spans.count;
  constexpr int kBytes = 64 * 2;  // of a state's panel, per column of V
  RowSumParams params;
  params.x = walk.x;
  if (!walk.row_sums) return params;
  params.rows = scratch.at<float>(walk.is_reverse() ? plan.key_rows : plan.query_rows) + rows;
  params.state_rows = scratch.at<float>(plan.key_state_rows) + rows;
  params.states = scratch.at<uint4>(plan.states) +
                  spans * walk.plan.shape.key_dim * kBytes / static_cast<int>(sizeof(uint4));
  params.flows = scratch.at<float>(plan.flows) + spans * 128;
  params.spans = plan.spans;
  return params;
}

void run(const GlaBackwardProblem& backward, const BackwardPlan& plan, const BackwardWalk& walk,
         const FiniteGuard& guard, const std::string& name, bool tma, const ScratchMemory& scratch,
         void* stream) {
  WalkParams params;
  params.problem = walk.problem;
  // why of the call: its sequences may be merged ones, which the plan knew the number of alone.
  params.problem.cu_seqlens = backward.forward.cu_seqlens;
  params.problem.log_decay = backward.forward.log_decay;
  params.guard = guard;
  params.heads_per_value = walk.heads_per_value;
  params.beside_walk = walk.beside_walk;
  params.state_strides = walk.state_strides;
  if (walk.summed) {
    params.problem.o = {};
    params.wide_output = scratch.at<float>(plan.wide_output);
    params.adds = walk.part > 0;
  }
  params.row_sums = row_sum_params(backward.forward, plan, walk, scratch);
  params.value = walk.value;
  if (tma) {
    const GlaForwardProblem& problem = params.problem;
    const int value_heads = problem.H / walk.heads_per_value;
    params.tma = true;
    params.q_map = tile_map(problem.q, problem, problem.HQ, problem.K);
    params.k_map = tile_map(problem.k, problem, problem.HQ, problem.K);
    params.v_map = tile_map(problem.v, problem, value_heads, problem.V);
    if (problem.o.data) params.o_map = tile_map(problem.o, problem, problem.H, problem.V);
    if (walk.row_sums || walk.value.data) {
      params.x_map = tile_map(walk.x, problem, value_heads, problem.V);
    }
    if (walk.value.data) {
      params.value_map = tile_map(walk.value, problem, problem.H, problem.K);
    }
  }
  run_walk(name, walk.launch, walk.plan, params, scratch, stream);
  if (walk.summed && walk.part == plan.parts - 1) {
    const GlaForwardProblem& f = backward.forward;
    launch_sum_heads({f.dtype, f.B, f.T, f.N, f.H, f.HQ, f.K, f.cu_seqlens, params.wide_output,
                      walk.problem.o, guard},
                     walk.plan.shape.multiprocessors, stream);
  }
}

}  // namespace

void run_by_walks(const GlaBackwardProblem& problem, const BackwardPlan& plan,
                  const FiniteGuard& guard, const std::string& name, bool tma,
                  const ScratchMemory& scratch, void* stream) {
  if (plan.flag_count > 0) {
    launch_clear(name.c_str(), scratch.at<std::uint32_t>(plan.flags), plan.flag_count, stream);
  }
  for (const BackwardWalk& walk : plan.walks) {
    run(problem, plan, walk, guard, name, tma, scratch, stream);
  }
  if (problem.d_log_decay.data != nullptr) {
    launch_decay_gradient(decay_gradient_params(problem, plan, guard, scratch), stream);
  }
}

}  // namespace tandem::cuda::gla
