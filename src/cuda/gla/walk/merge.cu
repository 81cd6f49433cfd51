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
  std::int32_t* boundaries;   // out [sequences+1]; null: not wanted
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
}

__device__ float log_decay_at(const DecayTensor& decay, std::int64_t time, int head) {
  return decay.data == nullptr ? 0.0f
                               : decay.data[time * decay.time_stride + head * decay.head_stride];
}

/// Finds the first boundary at or behind a token. All threads of the CTA. why together: the loads
/// of a search by halves, one after another, take longer than all else that a CTA does.
__device__ std::int64_t find_boundary(const std::int32_t* cu_seqlens, std::int64_t count,
                                      std::int64_t time) {
  std::int64_t begin = 0, end = count;  // where it is; `count` if there is none
  while (begin < end) {
    const std::int64_t step = ceil_div(end - begin, std::int64_t{kThreads});
    const std::int64_t own = begin + threadIdx.x * step;
    const int before = __syncthreads_count(own < end && cu_seqlens[own] < time);
    end = min(end, begin + before * step);
    if (before > 0) begin += (before - 1) * step + 1;
  }
  return begin;
}

__global__ __launch_bounds__(kThreads) void gla_merge_kernel(
    const __grid_constant__ MergeParams params) {
  __shared__ bool begins[kMostCtaTokens];  // whether a sequence begins at a token
  follow_stream_before_own_kernel();
  const GlaRecurrence& problem = params.problem;
  const std::int64_t first = std::int64_t{blockIdx.x} * params.cta_tokens;
  if (first >= problem.T) {  // the last CTA
    if (params.boundaries != nullptr) write_boundaries(params);
    if (threadIdx.x == 0) *params.non_finite = 0;
    return;
  }
  const std::int64_t last = min(first + params.cta_tokens, problem.T);
  if (threadIdx.x < kMostCtaTokens) begins[threadIdx.x] = false;
  // The last boundary, too: nothing flows back from tokens behind it.
  const std::int64_t boundaries = problem.N + 1;
  const std::int64_t nearest = find_boundary(problem.cu_seqlens, boundaries, first);
  __syncthreads();
  for (std::int64_t n = nearest + threadIdx.x; n < boundaries; n += kThreads) {
    const int begin = clamped_boundary(problem.cu_seqlens, n, problem.T);
    if (begin < first || begin >= last) break;
    begins[begin - first] = true;
  }
  __syncthreads();
  const unsigned heads = problem.H, count = static_cast<unsigned>(last - first) * heads;
  float* const to = params.log_decay + first * heads;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    const unsigned token = i / heads;
    const float decay =
        log_decay_at(problem.log_decay, first + token, static_cast<int>(i - token * heads));
    // What is not below infinity reaches its sequence.
    to[i] = begins[token] && decay < INFINITY ? -INFINITY : decay;
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

namespace {

/// Launches gla_merge_kernel, and makes the problem's decays what it writes.
void launch_merge(GlaRecurrence& problem, const MergePlan& plan, std::int32_t* boundaries,
                  const ScratchMemory& scratch, void* stream) {
  // Few tokens may have many heads and boundaries: they need as many CTAs as many tokens do.
  constexpr std::int64_t kCtas = 1024;
  const auto tokens =
      static_cast<int>(std::clamp<std::int64_t>(problem.T / kCtas, 1, kMostCtaTokens));
  const MergeParams params{problem,
                           plan.sequences,
                           plan.tokens,
                           tokens,
                           boundaries,
                           scratch.at<float>(plan.log_decay),
                           scratch.at<std::uint32_t>(plan.non_finite)};
  launch_kernel(
      "gla_merge", gla_merge_kernel,
      {.blocks = static_cast<unsigned>(ceil_div(problem.T, tokens) + 1), .threads = kThreads},
      static_cast<cudaStream_t>(stream), params);
  problem.log_decay = {params.log_decay, problem.T * problem.H, problem.H, 1};
}

}  // namespace

void merge(GlaRecurrence& problem, const MergePlan& plan, const ScratchMemory& scratch,
           void* stream) {
  std::int32_t* const boundaries = scratch.at<std::int32_t>(plan.boundaries);
  launch_merge(problem, plan, boundaries, scratch, stream);
  problem = merged(problem, plan);
  problem.cu_seqlens = boundaries;
}

void merge_all(GlaRecurrence& problem, const MergePlan& plan, const ScratchMemory& scratch,
               void* stream) {
  launch_merge(problem, plan, nullptr, scratch, stream);
  problem = all_merged(problem);
}

FiniteGuard first_guard(const MergePlan& plan, const ScratchMemory& scratch) {
  return {.non_finite = scratch.at<std::uint32_t>(plan.non_finite)};
}

FiniteGuard second_guard(const MergePlan& plan, const ScratchMemory& scratch) {
  return {.only_if = scratch.at<std::uint32_t>(plan.non_finite)};
}

}  // namespace tandem::cuda::gla
