#include "cuda/gla/walk/run.h"

#include "cuda/gla/walk/schedule.h"

namespace tandem::cuda::gla {
namespace {

/// Launches what finds the order of sequences of different lengths, or their segments, and writes
/// zeros outside all of them.
void prepare_packed(WalkParams& walk, const WalkPlan& plan, const ScratchMemory& scratch,
                    void* stream) {
  const GlaForwardProblem& problem = walk.problem;
  ScheduleParams params;
  params.cu_seqlens = problem.cu_seqlens;
  params.N = problem.N;
  params.T = problem.T;
  if (plan.split()) {
    params.pieces = scratch.at<WalkPiece>(plan.piece);
    params.most_pieces = plan.pieces;
    params.piece_chunks = plan.piece_chunks();
    walk.schedule.pieces = params.pieces;
  } else {
    params.order = scratch.at<std::int32_t>(plan.order);
    params.ticket = scratch.at<std::uint32_t>(plan.ticket);
    walk.schedule.order = params.order;
    walk.schedule.ticket = params.ticket;
  }
  params.H = problem.H;
  params.outputs[0] = {problem.o, problem.V};
  params.outputs[1] = {walk.value, problem.K};
  launch_schedule(params, stream);
}

}  // namespace

void run_walk(const std::string& name, const WalkLaunch& launch, const WalkPlan& plan,
              WalkParams& params, const ScratchMemory& scratch, void* stream) {
  WalkSchedule& schedule = params.schedule;
  schedule.items = plan.items;
  schedule.walks = plan.walks;
  schedule.value_tiles = plan.value_tiles;
  schedule.segments = plan.segments;
  schedule.first_chunks = plan.first_chunks;
  if (plan.split() && plan.first_chunks == 0) {
    schedule.exchange = {scratch.at<float>(plan.states), scratch.at<float>(plan.factors),
                         scratch.at<std::uint32_t>(plan.ready)};
  } else if (plan.shares()) {
    schedule.relay = {scratch.at<float>(plan.states), scratch.at<std::uint32_t>(plan.ready),
                      plan.shared};
  }
  // why not behind a guard: walks of merged sequences come first, and write all the zeros.
  if (params.problem.cu_seqlens != nullptr && params.guard.only_if == nullptr) {
    prepare_packed(params, plan, scratch, stream);
  }
  if (plan.items == 0) return;
  (plan.split() ? launch.split : launch.whole)(name.c_str(), params, plan.blocks, stream);
}

}  // namespace tandem::cuda::gla
