// gla_decay_gradient_kernel: row sums of the walks -> d_log_decay.
//
// With a_t = q_t . dq_t, and k_t . dk_t in two parts, b_t from the state behind the chunk and c_t
// from inside it, and F what flows through a group's first chunk (decay_dots.h),
//   dg_t = F + sum of b before t + sum of a - c from t to the chunk's end      t in the first chunk
//   dg_t = F1 - sum of a - b - c from the first chunk's end to before t        t in a later chunk
// with F1 = F + sum of b over the first chunk: no sum runs over more than a group. A warp per
// group, two tokens per lane. Across a reset nothing flows: dg_t is 0 there. A constant decay has
// one gradient: dg summed over all tokens, per CTA here, over CTAs in gla_decay_sum_kernel, always
// in the same order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/gla/decay_gradient.h"
#include "cuda/gla/item.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr unsigned kWarp = 0xFFFFFFFFu;

/// The CTA's (sequence, head).
struct DecayRow {
  int batch;
  int head;
  int sequence;
  int begin;
  int length;
};

__device__ DecayRow find_row(const DecayGradientParams& params) {
  DecayRow row;
  row.head = blockIdx.x % params.H;
  row.sequence = blockIdx.x / params.H;
  row.batch = row.sequence;
  row.begin = 0;
  row.length = static_cast<int>(params.T);
  if (params.cu_seqlens != nullptr) {
    row.batch = 0;
    row.begin = clamped_boundary(params.cu_seqlens, row.sequence, params.T);
    row.length =
        max(clamped_boundary(params.cu_seqlens, row.sequence + 1, params.T) - row.begin, 0);
  }
  return row;
}

__device__ float* gradient_at(const DecayGradientParams& params, const DecayRow& row,
                              std::int64_t time) {
  const DecayGradient& to = params.d_log_decay;
  return to.data + row.batch * to.batch_stride + time * to.time_stride + row.head * to.head_stride;
}

/// Of K = 256; what a loop over them is unrolled for, so that all loads are under way at once.
constexpr int kMostParts = 4;

/// What is needed of a token; a - c and b are sums over parts.
struct TokenSums {
  float intra;  // a - c
  float state;  // b
  float log_decay;
};

/// Of the token `offset` behind the row's begin; 0 outside.
__device__ TokenSums sum_token(const DecayGradientParams& params, const DecayRow& row, int offset) {
  const bool inside = offset < row.length;
  const std::int64_t time = row.begin + (inside ? offset : 0);
  const std::int64_t part = params.B * params.H * params.T;
  const std::int64_t at = (std::int64_t{row.batch} * params.H + row.head) * params.T + time;
  const DecayTensor& g = params.log_decay;
  const float log_decay =
      g.data[row.batch * g.batch_stride + time * g.time_stride + row.head * g.head_stride];
  float a[kMostParts], b[kMostParts], c[kMostParts];
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    const bool exists = inside && i < params.parts;
    a[i] = exists ? params.query_rows[i * part + at] : 0.0f;
    b[i] = exists ? params.key_state_rows[i * part + at] : 0.0f;
    c[i] = exists ? params.key_rows[i * part + at] : 0.0f;
  }
  TokenSums sums{0.0f, 0.0f, log_decay};
  float sum_a = 0.0f, sum_c = 0.0f;
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    sum_a += a[i];
    sums.state += b[i];
    sum_c += c[i];
  }
  sums.intra = sum_a - sum_c;
  return sums;
}

/// Writes or adds up dg of one token.
__device__ void put(const DecayGradientParams& params, const DecayRow& row, int offset,
                    float log_decay, float dg, float& sum) {
  if (offset >= row.length) return;
  const bool forgets = forget_to_infinity(log_decay) == -__int_as_float(0x7F800000);
  const float value = forgets ? 0.0f : dg;
  if (params.d_log_decay.per_token) {
    *gradient_at(params, row, row.begin + offset) = value;
  } else {
    sum += value;
  }
}

__device__ float sum_warp(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kWarp, value, distance);
  }
  return value;
}

__device__ float inclusive_sum(float value) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float earlier = __shfl_up_sync(kWarp, value, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) value += earlier;
  }
  return value;
}

/// Of an inclusive sum: over the lanes before this one, and over all.
__device__ float sum_before(float inclusive) {
  const float before = __shfl_up_sync(kWarp, inclusive, 1);
  return threadIdx.x % 32 == 0 ? 0.0f : before;
}
__device__ float last_lane(float inclusive) { return __shfl_sync(kWarp, inclusive, 31); }

/// Sums over the lanes behind this one.
__device__ float sum_behind(float value) {
  const int lane = threadIdx.x % 32;
  float sum = __shfl_down_sync(kWarp, value, 1);
  if (lane == 31) sum = 0.0f;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float later = __shfl_down_sync(kWarp, sum, distance);
    if (lane + distance < 32) sum += later;
  }
  return sum;
}

/// F of a group: its shares of all parts.
__device__ float sum_shares(const DecayGradientParams& params, int head, int slot) {
  float shares[kMostParts][4];
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    const float* of_part =
        params.flows + ((std::int64_t{i} * params.H + head) * params.groups.count + slot) * 128;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      shares[i][j] = i < params.parts ? of_part[32 * j + threadIdx.x % 32] : 0.0f;
    }
  }
  float flow = 0.0f;
#pragma unroll
  for (int i = 0; i < kMostParts; ++i) {
    flow += shares[i][0] + shares[i][1] + (shares[i][2] + shares[i][3]);
  }
  return sum_warp(flow);
}

__device__ void differentiate_group(const DecayGradientParams& params, const DecayRow& row,
                                    int group, float& sum) {
  const int slot =
      params.groups.first_slot(params.cu_seqlens != nullptr, row.sequence, row.begin) + group;
  float flow = sum_shares(params, row.head, slot);
#pragma unroll 1
  for (int chunk = 0; chunk < params.groups.chunks(); ++chunk) {
    const int first = (group * params.groups.chunks() + chunk) * 64;
    if (first >= row.length) return;
    const int token = first + 2 * (threadIdx.x % 32);
    const TokenSums x = sum_token(params, row, token);
    const TokenSums y = sum_token(params, row, token + 1);
    if (chunk == 0) {
      const float through = inclusive_sum(x.state + y.state);
      const float before = flow + sum_before(through);
      const float behind = sum_behind(x.intra + y.intra);
      put(params, row, token, x.log_decay, before + (x.intra + (y.intra + behind)), sum);
      put(params, row, token + 1, y.log_decay, before + x.state + (y.intra + behind), sum);
      flow += last_lane(through);
    } else {
      const float2 d = {x.intra - x.state, y.intra - y.state};
      const float through = inclusive_sum(d.x + d.y);
      const float before = sum_before(through);
      put(params, row, token, x.log_decay, flow - before, sum);
      put(params, row, token + 1, y.log_decay, flow - (before + d.x), sum);
      flow -= last_lane(through);
    }
  }
}

/// The sum over a CTA, valid in thread 0.
__device__ float sum_block(float value) {
  __shared__ float of_warp[kWarps];
  value = sum_warp(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (const float part : of_warp) total += part;
  return total;
}

/// Tokens [begin, end) of a head belong to no sequence.
__device__ void clear_outside(const DecayGradientParams& params, const DecayRow& row, int begin,
                              int end) {
  if (!params.d_log_decay.per_token) return;
  for (int time = begin + threadIdx.x; time < end; time += kThreads) {
    *gradient_at(params, row, time) = 0.0f;
  }
}

// why a number of CTAs: without one ptxas settles for 64 registers, and spills.
__global__ __launch_bounds__(kThreads, 5) void gla_decay_gradient_kernel(
    const __grid_constant__ DecayGradientParams params) {
  follow_stream();
  const int T = static_cast<int>(params.T);
  if (params.N == 0) {  // no sequence: of packed ones, every token is outside
    const DecayRow row{0, static_cast<int>(blockIdx.x), 0, 0, 0};
    if (params.cu_seqlens != nullptr) clear_outside(params, row, 0, T);
    return;
  }
  const DecayRow row = find_row(params);
  if (params.cu_seqlens != nullptr && blockIdx.y == 0) {
    if (row.sequence == 0) clear_outside(params, row, 0, row.begin);
    if (row.sequence == params.N - 1) clear_outside(params, row, row.begin + row.length, T);
  }
  const int tokens = params.groups.tokens();
  const int groups = (row.length + tokens - 1) / tokens;
  float sum = 0.0f;
  for (int group = blockIdx.y * kWarps + threadIdx.x / 32; group < groups;
       group += gridDim.y * kWarps) {
    differentiate_group(params, row, group, sum);
  }
  if (params.d_log_decay.per_token) return;
  sum = sum_block(sum);
  if (threadIdx.x == 0) params.sums[blockIdx.x * gridDim.y + blockIdx.y] = sum;
}

__global__ __launch_bounds__(kThreads) void gla_decay_sum_kernel(
    const __grid_constant__ DecayGradientParams params) {
  follow_stream();
  const int head = blockIdx.x;
  const std::int64_t count = params.N * params.splits;
  float sum = 0.0f;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const std::int64_t sequence = i / params.splits;
    sum += params.sums[(sequence * params.H + head) * params.splits + i % params.splits];
  }
  sum = sum_block(sum);
  if (threadIdx.x == 0) params.d_log_decay.data[head * params.d_log_decay.head_stride] = sum;
}

/// A warp per row of `to`.
template <class Element>
__global__ __launch_bounds__(kThreads) void gla_sum_heads_kernel(
    const __grid_constant__ SumHeadsParams params) {
  follow_stream();
  const std::int64_t rows = params.B * params.T * params.HQ;
  const int share = params.H / params.HQ;
  int first = 0, last = static_cast<int>(params.T);
  if (params.cu_seqlens != nullptr) {
    last = params.N == 0 ? 0 : clamped_boundary(params.cu_seqlens, params.N, params.T);
    first = params.N == 0 ? 0 : clamped_boundary(params.cu_seqlens, 0, params.T);
  }
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows;
       row += std::int64_t{gridDim.x} * kWarps) {
    const int head = static_cast<int>(row % params.HQ);
    const std::int64_t token = row / params.HQ;
    const int batch = static_cast<int>(token / params.T);
    const std::int64_t time = token % params.T;
    const bool inside = time >= first && time < last;
    const float* from = params.from + (token * params.H + head * share) * params.D;
    Element* to = token_row<Element>(params.to, batch, time, head);
    for (int column = threadIdx.x % 32; column < params.D; column += 32) {
      float sum = 0.0f;
      for (int i = 0; inside && i < share; ++i) sum += from[std::int64_t{i} * params.D + column];
      to[column] = static_cast<Element>(sum);
    }
  }
}

}  // namespace

void launch_decay_gradient(const DecayGradientParams& params, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const std::int64_t rows = std::max<std::int64_t>(params.N, 1) * params.H;
  launch_kernel(
      "gla_decay_gradient", gla_decay_gradient_kernel,
      {.blocks = static_cast<unsigned>(rows), .blocks_y = params.splits, .threads = kThreads}, on,
      params);
  if (params.d_log_decay.per_token) return;
  launch_kernel("gla_decay_sum", gla_decay_sum_kernel,
                {.blocks = static_cast<unsigned>(params.H), .threads = kThreads}, on, params);
}

void launch_sum_heads(const SumHeadsParams& params, void* stream) {
  constexpr std::int64_t kMostBlocks = 132 * 8;
  const std::int64_t rows = params.B * params.T * params.HQ;
  if (rows == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((rows + kWarps - 1) / kWarps, kMostBlocks));
  const auto launch = [&](auto kernel) {
    launch_kernel("gla_sum_heads", kernel, {.blocks = blocks, .threads = kThreads},
                  static_cast<cudaStream_t>(stream), params);
  };
  launch(params.dtype == DType::kBFloat16 ? gla_sum_heads_kernel<__nv_bfloat16>
                                          : gla_sum_heads_kernel<__half>);
}

}  // namespace tandem::cuda
