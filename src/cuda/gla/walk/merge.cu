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
constexpr int kMostCtaTokens = 128;

struct MergeParams {
  GlaRecurrence problem;
  std::int64_t sequences;     // merged
  std::int64_t tokens;        // of a merged one
  int cta_tokens;             // whose decays a CTA writes
  std::int32_t* boundaries;   // out [sequences+1]
  float* log_decay;           // out [T,H]
  std::uint32_t* non_finite;  // out: 0
};

__device__ void write_boundaries(const MergeParams& params) {
  const GlaRecurrence& problem = params.problem;
  const std::int64_t begin = clamped_boundary(problem.cu_seqlens, 0, problem.T);
  for (std::int64_t n = threadIdx.x; n <= params.sequences; n += kThreads) {
    const std::int64_t of =
        n == params.sequences
            ? problem.N
            : first_boundary_from(problem.cu_seqlens, problem.N, begin + n * params.tokens);
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
  const std::int64_t first = std::int64_t{blockIdx.x} * params.cta_tokens;
  const std::int64_t last = min(first + params.cta_tokens, problem.T);
  float* const to = params.log_decay + first * problem.H;
  for (int i = threadIdx.x; i < (last - first) * problem.H; i += kThreads) {
    to[i] = log_decay_at(problem.log_decay, first + i / problem.H, i % problem.H);
  }
  __syncthreads();
  // The last boundary, too: nothing flows back from tokens behind it.
  const std::int64_t boundaries = problem.N + 1;
  for (std::int64_t n = first_boundary_from(problem.cu_seqlens, boundaries, first); n < boundaries;
       ++n) {
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
                     const std::vector<SplitShape>& walks) {
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

  constexpr double kLaunch = 3.0, kClearly = 5.0;  // microseconds
  const double saved = predicted_packed_time(problem, problem.N, walks) -
                       predicted_packed_time(problem, plan.sequences, walks) -
                       kLaunch * static_cast<double>(1 + walks.size());
  if (choice == MergeSwitch::kUnset && saved < kClearly) return {};
  return plan;
}

std::size_t place_merge(MergePlan& plan, const GlaRecurrence& problem, std::size_t first_bytes,
                        std::size_t second_bytes) {
  // The second way needs the guard's word alone, and may have the rest.
  WorkspaceLayout workspace(first_bytes);
  plan.boundaries = workspace.add(4 * (plan.sequences + 1));
  plan.log_decay = workspace.add(merged_bytes(problem));
  WorkspaceLayout both(std::max(workspace.bytes(), second_bytes));
  plan.non_finite = both.add(4);
  return both.bytes();
}

MergePlan plan_merge_all(const GlaRecurrence& problem) {
  MergePlan plan;
  plan.sequences = 1;
  plan.tokens = problem.T;
  return plan;
}

double predicted_packed_time(const GlaRecurrence& problem, std::int64_t sequences,
                             const std::vector<SplitShape>& walks) {
  // Of any length, so half a chunk each is empty; of a length below one, more.
  const auto count = static_cast<double>(sequences);
  const double chunks =
      std::max(static_cast<double>(ceil_div(problem.T, kChunk)) + 0.5 * count, count);
  double time = 0.0;
  for (const SplitShape& walk : walks) {
    const auto items = static_cast<double>(walk.items / problem.N);  // of a sequence
    time += predicted_chunks_time(walk, chunks * items);
  }
  return time;
}

void merge(GlaRecurrence& problem, const MergePlan& plan, const ScratchMemory& scratch,
           void* stream) {
  // Few tokens may have many heads and boundaries: they need as many CTAs as many tokens do.
  constexpr std::int64_t kCtas = 256;
  const auto tokens =
      static_cast<int>(std::clamp<std::int64_t>(problem.T / kCtas, 1, kMostCtaTokens));
  const MergeParams params{problem,
                           plan.sequences,
                           plan.tokens,
                           tokens,
                           scratch.at<std::int32_t>(plan.boundaries),
                           scratch.at<float>(plan.log_decay),
                           scratch.at<std::uint32_t>(plan.non_finite)};
  launch_kernel("gla_merge", gla_merge_kernel,
                {.blocks = static_cast<unsigned>(ceil_div(problem.T, tokens)), .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
  problem = merged(problem, plan);
  problem.cu_seqlens = params.boundaries;
  problem.log_decay = {params.log_decay, problem.T * problem.H, problem.H, 1};
}

void merge_all(GlaRecurrence& problem, const MergePlan& plan, const ScratchMemory& scratch,
               void* stream) {
  merge(problem, plan, scratch, stream);
  problem = all_merged(problem);
}

FiniteGuard first_guard(const MergePlan& plan, const ScratchMemory& scratch) {
  return {.non_finite = scratch.at<std::uint32_t>(plan.non_finite)};
}

FiniteGuard second_guard(const MergePlan& plan, const ScratchMemory& scratch) {
  return {.only_if = scratch.at<std::uint32_t>(plan.non_finite)};
}

}  // namespace tandem::cuda::gla
