// gla_wide_decays_kernel: the sums of decays of every chunk of 64 tokens, a warp each.
// gla_wide_decay_gradient_kernel: row sums, S and dS -> d_log_decay.
//
// With a_t = q_t . dq_t, b_t = k_t . what dk_t has from dS behind the span, c_t the rest of
// k_t . dk_t, and F = 2^G <S, dS> what flows through the span,
//   dg_t = F + sum of b before t + sum of a - c from t to the span's end
// A CTA per span, whose first warp has eight tokens per lane (docs/ops/gla_backward_wide.md).
#include "cuda/gla/decay/gradient.cuh"
#include "cuda/gla/wide/decay.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kSpanThreads = 512;  // 64 KB of states under way
constexpr int kSpanWarps = kSpanThreads / 32;

/// Reads the decays of a launch's head.
struct HeadDecays {
  const float* data;  // null: no decays
  std::int64_t time_stride;
  std::int64_t T;

  __device__ HeadDecays(const WideBackwardParams& params, int head) {
    const GlaForwardProblem& problem = params.problem.forward;
    const DecayTensor& decay = problem.log_decay;
    const int of_all = params.first_head + head;
    data = decay.data == nullptr ? nullptr
                                 : decay.data + of_all / problem.H * decay.batch_stride +
                                       of_all % problem.H * decay.head_stride;
    time_stride = decay.time_stride;
    T = problem.T;
  }
  /// A token's natural-log decay, 0 where there is none.
  __device__ float at(std::int64_t time) const {
    return data != nullptr && time < T ? data[time * time_stride] : 0.0f;
  }
};

__global__ __launch_bounds__(kThreads) void gla_wide_decays_kernel(
    const __grid_constant__ WideBackwardParams params) {
  follow_stream();
  const int chunks = params.spans * kWideChunks;
  const int index = blockIdx.x * kWarps + threadIdx.x / 32;
  if (index >= params.heads * chunks) return;
  const int head = index / chunks, chunk = index - head * chunks;
  const HeadDecays decays(params, head);
  const int lane = threadIdx.x % 32;
  const std::int64_t first = 64 * std::int64_t{chunk} + 2 * lane;
  const float2 natural = {decays.at(first), decays.at(first + 1)};
  WideDecay& out = params.decays[index];
  by_strength(any_strong(natural), [&]<bool kStrong> {
    const ChunkSums<kStrong> sums(natural);
    const auto store = [&](float(&to)[64], float x, float y) {
      *reinterpret_cast<float2*>(&to[2 * lane]) = {x, y};
    };
    const float2 centred = sums.centred();
    store(out.within, centred.x, centred.y);
    store(out.before, sums.x.value(), sums.y.value());
    store(out.behind, (sums.total - sums.x).value(), (sums.total - sums.y).value());
    if (lane == 0) out.total = sums.total.value();
  });
  if (lane == 0) out.next = LogSum<false>::of(decays.at(64 * std::int64_t{chunk + 1})).value();
}

constexpr int kLaneTokens = kWideSpan / 32;

/// Loads a lane's tokens of a span.
__device__ void load_rows(const float* rows, std::int64_t span, float (&values)[kLaneTokens]) {
  const float4* const from =
      reinterpret_cast<const float4*>(rows + span * kWideSpan) + threadIdx.x % 32 * 2;
  const float4 first = from[0], second = from[1];
  values[0] = first.x, values[1] = first.y, values[2] = first.z, values[3] = first.w;
  values[4] = second.x, values[5] = second.y, values[6] = second.z, values[7] = second.w;
}

/// Returns <S, dS> of a span to the first warp. All threads of a CTA, in a fixed order.
template <class Element>
__device__ float multiply_states(const WideBackwardParams& params, std::int64_t span) {
  const std::int64_t bytes = params.state_bytes();
  const auto pieces = static_cast<int>(bytes / sizeof(uint4));
  const auto* const before = reinterpret_cast<const uint4*>(params.states + span * bytes);
  const auto* const behind = reinterpret_cast<const uint4*>(params.state_gradients + span * bytes);
  constexpr int kTogether = 4;  // of each thread, on their way at once
  float own = 0.0f;
  for (int first = threadIdx.x; first < pieces; first += kTogether * kSpanThreads) {
    uint4 x[kTogether], y[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int piece = first + i * kSpanThreads;
      x[i] = piece < pieces ? before[piece] : uint4{};
      y[i] = piece < pieces ? behind[piece] : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const auto add = [&](std::uint32_t of_x, std::uint32_t of_y) {
        const float2 a = unpack_pair<Element>(of_x), b = unpack_pair<Element>(of_y);
        own += a.x * b.x + a.y * b.y;
      };
      add(x[i].x, y[i].x);
      add(x[i].y, y[i].y);
      add(x[i].z, y[i].z);
      add(x[i].w, y[i].w);
    }
  }
  __shared__ float of_warp[kSpanWarps];
  own = sum_warp(own);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();
  return sum_warp(threadIdx.x < kSpanWarps ? of_warp[threadIdx.x] : 0.0f);
}

template <class Element>
__global__ __launch_bounds__(kSpanThreads) void gla_wide_decay_gradient_kernel(
    const __grid_constant__ WideBackwardParams params) {
  follow_stream();
  const int index = blockIdx.x;
  const float product = multiply_states<Element>(params, index);
  if (threadIdx.x >= 32) return;
  const int head = index / params.spans, span = index - head * params.spans;
  const int lane = threadIdx.x;
  const std::int64_t begin = std::int64_t{span} * kWideSpan;
  const std::int64_t first = begin + lane * kLaneTokens;
  const HeadDecays decays(params, head);

  float query[kLaneTokens], key[kLaneTokens], key_state[kLaneTokens], log_decay[kLaneTokens];
  load_rows(params.query_rows, index, query);
  load_rows(params.key_rows, index, key);
  load_rows(params.key_state_rows, index, key_state);
  LogSum<true> log_sum;
#pragma unroll
  for (int i = 0; i < kLaneTokens; ++i) {
    log_decay[i] = decays.at(first + i);
    log_sum = log_sum + LogSum<true>::of(log_decay[i]);
  }
  log_sum = {sum_warp(log_sum.rest), sum_warp(log_sum.whole)};
  log_sum = log_sum + LogSum<true>::of(decays.at(begin + kWideSpan));
  const float flow = log_sum.factor() * product;

  float of_lane = 0.0f, behind_lane = 0.0f;
#pragma unroll
  for (int i = 0; i < kLaneTokens; ++i) {
    const bool inside = first + i < params.problem.forward.T;
    key[i] = inside ? query[i] - (key[i] - key_state[i]) : 0.0f;  // a - c
    if (!inside) key_state[i] = 0.0f;
    of_lane += key_state[i];
    behind_lane += key[i];
  }
  float before = flow + sum_before(inclusive_sum(of_lane));
  float behind = sum_behind(behind_lane);
  float dg[kLaneTokens];
#pragma unroll
  for (int i = kLaneTokens - 1; i >= 0; --i) dg[i] = behind += key[i];
  const GlaForwardProblem& problem = params.problem.forward;
  const int of_all = params.first_head + head;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kLaneTokens; ++i) {
    const float value = unless_forgotten(before + dg[i], log_decay[i]);
    before += key_state[i];
    if (first + i >= problem.T) break;
    if (params.problem.d_log_decay.per_token) {
      *gradient_at(params.problem.d_log_decay, of_all / problem.H, static_cast<int>(first + i),
                   of_all % problem.H) = value;
    } else {
      sum += value;
    }
  }
  if (params.problem.d_log_decay.per_token) return;
  sum = sum_warp(sum);
  if (lane == 0) params.decay_sums[std::int64_t{of_all} * params.spans + span] = sum;
}

}  // namespace

void launch_wide_decays(const WideBackwardParams& params, void* stream) {
  const std::int64_t chunks = std::int64_t{params.heads} * params.spans * kWideChunks;
  if (chunks == 0) return;
  launch_kernel("gla_wide_decays", gla_wide_decays_kernel,
                {.blocks = static_cast<unsigned>(ceil_div(chunks, kWarps)),
                 .threads = kThreads,
                 .early = false},
                static_cast<cudaStream_t>(stream), params);
}

void launch_wide_decay_gradient(const WideBackwardParams& params, void* stream) {
  const std::int64_t spans = std::int64_t{params.heads} * params.spans;
  if (spans == 0) return;
  const auto kernel = params.problem.forward.dtype == DType::kBFloat16
                          ? gla_wide_decay_gradient_kernel<__nv_bfloat16>
                          : gla_wide_decay_gradient_kernel<__half>;
  launch_kernel("gla_wide_decay_gradient", kernel,
                {.blocks = static_cast<unsigned>(spans), .threads = kSpanThreads, .early = false},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::gla
