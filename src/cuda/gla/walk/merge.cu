// gla_merge_kernel: boundaries and decays of merged sequences. A merged sequence begins with the
// first sequence that begins at or behind a multiple of so many tokens.
#include <algorithm>

#include "core/environment.h"
#include "cuda/gla/common/item.cuh"
#include "cuda/gla/walk/merge.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 128;  // of a CTA

struct MergeParams {
  GlaRecurrence problem;
  std::int64_t sequences;  // merged
  std::int64_t tokens;
  std::int32_t* boundaries;   // out [sequences+1]
  float* log_decay;           // out [T,H]
  std::uint32_t* non_finite;  // out: 0
};

/// Returns the first sequence that begins at token `time` or behind it; N without one.
__device__ std::int64_t first_sequence_from(const GlaRecurrence& problem, std::int64_t time) {
  std::int64_t first = 0, last = problem.N;
  while (first < last) {
    const std::int64_t middle = (first + last) / 2;
    if (clamped_boundary(problem.cu_seqlens, middle, problem.T) < time) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

__device__ void write_boundaries(const MergeParams& params) {
  const GlaRecurrence& problem = params.problem;
  const std::int64_t begin = clamped_boundary(problem.cu_seqlens, 0, problem.T);
  for (std::int64_t n = threadIdx.x; n <= params.sequences; n += kThreads) {
    const std::int64_t of =
        n == params.sequences ? problem.N : first_sequence_from(problem, begin + n * params.tokens);
    params.boundaries[n] = clamped_boundary(problem.cu_seqlens, of, problem.T);
  }
  if (threadIdx.x == 0) *params.non_finite = 0;
}

__device__ float log_decay_at(const DecayTensor& decay, std::int64_t time, int head) {
  return decay.data == nullptr ? 0.0f
                               : decay.data[time * decay.time_stride + head * decay.head_stride];
}

__global__ __launch_bounds__(kThreads) void gla_merge_kernel(
    const __grid_constant__ MergeParams params) {
  follow_stream_before_own_kernel();
  const GlaRecurrence& problem = params.problem;
  if (blockIdx.x == 0) write_boundaries(params);
  const std::int64_t first = std::int64_t{blockIdx.x} * kTokens;
  const std::int64_t last = min(first + kTokens, problem.T);
  float* const to = params.log_decay + first * problem.H;
  for (int i = threadIdx.x; i < (last - first) * problem.H; i += kThreads) {
    to[i] = log_decay_at(problem.log_decay, first + i / problem.H, i % problem.H);
  }
  __syncthreads();
  for (std::int64_t n = first_sequence_from(problem, first); n < problem.N; ++n) {
    const int begin = clamped_boundary(problem.cu_seqlens, n, problem.T);
    if (begin < first || begin >= last) break;
    for (int head = threadIdx.x; head < problem.H; head += kThreads) {
      float& decay = to[(begin - first) * problem.H + head];
      if (decay < INFINITY) decay = -INFINITY;  // else it reaches its sequence
    }
  }
}

}  // namespace

MergePlan plan_merge(const GlaRecurrence& problem, bool states,
                     const std::vector<SplitShape>& walks, std::size_t& workspace_bytes) {
  MergePlan plan;
  const MergeSwitch choice = gla_merge_switch();
  if (problem.cu_seqlens == nullptr || states || problem.N < 2 || problem.T == 0 || walks.empty() ||
      choice == MergeSwitch::kNever) {
    return plan;
  }
  // Few enough that only few chunks are not full, and so many that CTAs end together.
  constexpr std::int64_t kTurns = 8, kLeastTokens = 256;
  const SplitShape& shape = walks.front();
  const std::int64_t items = std::max<std::int64_t>(shape.items / problem.N, 1);  // of a sequence
  const std::int64_t wanted = ceil_div(kTurns * shape.multiprocessors, items);
  plan.sequences =
      std::clamp<std::int64_t>(problem.T / kLeastTokens, 1, std::min(wanted, problem.N));
  plan.tokens = ceil_div(problem.T, plan.sequences);

  // Of any length, so half a chunk each is empty; of a length below one, more.
  const double chunks = static_cast<double>(ceil_div(problem.T, kChunk));
  const auto chunks_of = [&](std::int64_t n) {
    return std::max(chunks + 0.5 * static_cast<double>(n), static_cast<double>(n));
  };
  constexpr double kLaunch = 3.0;  // microseconds
  double saved = -kLaunch;
  for (const SplitShape& walk : walks) {
    const double fewer = chunks_of(problem.N) - chunks_of(plan.sequences);
    saved +=
        predicted_chunks_time(walk, fewer * static_cast<double>(walk.items / problem.N)) - kLaunch;
  }
  constexpr double kClearly = 5.0;  // microseconds
  if (choice == MergeSwitch::kUnset && saved < kClearly) return {};
  WorkspaceLayout workspace(workspace_bytes);
  plan.boundaries = workspace.add(4 * (plan.sequences + 1));
  plan.log_decay = workspace.add(4 * problem.T * problem.H);
  plan.non_finite = workspace.add(4);
  workspace_bytes = workspace.bytes();
  return plan;
}

void merge(GlaRecurrence& problem, const MergePlan& plan, const ScratchMemory& scratch,
           void* stream) {
  const MergeParams params{problem,
                           plan.sequences,
                           plan.tokens,
                           scratch.at<std::int32_t>(plan.boundaries),
                           scratch.at<float>(plan.log_decay),
                           scratch.at<std::uint32_t>(plan.non_finite)};
  launch_kernel(
      "gla_merge", gla_merge_kernel,
      {.blocks = static_cast<unsigned>(ceil_div(problem.T, kTokens)), .threads = kThreads},
      static_cast<cudaStream_t>(stream), params);
  problem = merged(problem, plan);
  problem.cu_seqlens = params.boundaries;
  problem.log_decay = {params.log_decay, problem.T * problem.H, problem.H, 1};
}

FiniteGuard first_guard(const MergePlan& plan, const ScratchMemory& scratch) {
  return {.non_finite = scratch.at<std::uint32_t>(plan.non_finite)};
}

FiniteGuard second_guard(const MergePlan& plan, const ScratchMemory& scratch) {
  return {.only_if = scratch.at<std::uint32_t>(plan.non_finite)};
}

}  // namespace tandem::cuda::gla
