// gla_decay_gradient_kernel: row sums of the walks -> d_log_decay.
//
// With a_t = q_t . dq_t, and k_t . dk_t in two terms, b_t from the state behind the chunk and c_t
// from inside it, and F what flows through a span's first chunk (row_sums.h),
//   dg_t = F + sum of b before t + sum of a - c from t to the chunk's end      t in the first chunk
//   dg_t = F1 - sum of a - b - c from the first chunk's end to before t        t in a later chunk
// with F1 = F + sum of b over the first chunk: no sum runs over more than a span. A warp per
// span, two tokens per lane. Across a reset nothing flows: dg_t is 0 there, and sums in a later
// chunk begin anew behind it. A constant decay has one gradient: dg summed over all tokens, per CTA
// here, over CTAs in gla_decay_sum_kernel, always in the same order.
// Nothing of a walk for dv alone is needed: behind it this kernel runs beside it, on the SMs that
// the walk leaves free and then on those that it is done with.
#include <algorithm>

#include "cuda/gla/common/finite_guard.cuh"
#include "cuda/gla/decay/gradient.cuh"
#include "cuda/gla/decay/gradient.h"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gla {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;

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

/// Row sums and decay of one token; a, b and c are still to be summed over panels.
template <int kPanels>
struct TokenRows {
  float a[kPanels];
  float b[kPanels];
  float c[kPanels];
  float log_decay;

  /// a - c
  __device__ float intra() const { return sum(a) - sum(c); }
  __device__ float state() const { return sum(b); }

 private:
  static __device__ float sum(const float (&panels)[kPanels]) {
    float total = 0.0f;
#pragma unroll
    for (const float panel : panels) total += panel;
    return total;
  }
};

/// Loads the row sums and decay of token `offset` of the row. Past the end: zeros and any decay.
/// Asynchronous: the first use waits.
template <int kPanels>
__device__ TokenRows<kPanels> load_token(const DecayGradientParams& params, const DecayRow& row,
                                         int offset) {
  const bool inside = offset < row.length;
  const std::int64_t time = row.begin + (inside ? offset : 0);
  const std::int64_t panel_size = params.B * params.H * params.T;
  const std::int64_t at = (std::int64_t{row.batch} * params.H + row.head) * params.T + time;
  const DecayTensor& g = params.log_decay;
  TokenRows<kPanels> token;
  token.log_decay =
      g.data[row.batch * g.batch_stride + time * g.time_stride + row.head * g.head_stride];
#pragma unroll
  for (int i = 0; i < kPanels; ++i) {
    const bool exists = inside && i < params.panels;
    token.a[i] = exists ? __ldcg(&params.query_rows[i * panel_size + at]) : 0.0f;
    token.b[i] = exists ? __ldcg(&params.key_state_rows[i * panel_size + at]) : 0.0f;
    token.c[i] = exists ? __ldcg(&params.key_rows[i * panel_size + at]) : 0.0f;
  }
  return token;
}

/// The two neighbouring tokens of a chunk that a lane has.
template <int kPanels>
struct TokenPair {
  TokenRows<kPanels> x;
  TokenRows<kPanels> y;
};

template <int kPanels>
__device__ TokenPair<kPanels> load_pair(const DecayGradientParams& params, const DecayRow& row,
                                        int first) {
  const int offset = first + 2 * (threadIdx.x % 32);
  return {load_token<kPanels>(params, row, offset), load_token<kPanels>(params, row, offset + 1)};
}

/// What sums of a chunk's a - b - c, from its first token on, are taken from to be dg: the flow
/// into the chunk, or behind a reset, which nothing flows across, the sum before it. So that a
/// sequence's errors do not reach the next, which may be much smaller.
struct FlowSince {
  float x, y;  // of the lane's two tokens
  float last;  // behind the chunk

  /// `before_x`, `before_y`: sums before the two tokens. All lanes call.
  template <int kPanels>
  __device__ FlowSince(const TokenPair<kPanels>& own, float flow, float before_x, float before_y) {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    const unsigned resets_x = __ballot_sync(kAll, forgets(own.x.log_decay));
    const unsigned resets_y = __ballot_sync(kAll, forgets(own.y.log_decay));
    x = y = last = flow;
    if ((resets_x | resets_y) == 0) return;
    const int lane = threadIdx.x % 32;
    // The sum before the last reset up to a token: of tokens y in lanes before `lanes_y`, and of
    // tokens x in lanes before `lanes_x`.
    const auto since = [&](int lanes_x, int lanes_y) {
      const int of_x = 31 - __clz(resets_x & (kAll >> (32 - lanes_x)));
      const unsigned earlier = lanes_y == 0 ? 0 : resets_y & (kAll >> (32 - lanes_y));
      const int of_y = 31 - __clz(earlier);
      const float at_x = __shfl_sync(kAll, before_x, max(of_x, 0));
      const float at_y = __shfl_sync(kAll, before_y, max(of_y, 0));
      return max(of_x, of_y) < 0 ? flow : of_y >= of_x ? at_y : at_x;
    };
    x = since(lane + 1, lane);
    y = since(lane + 1, lane + 1);
    last = since(32, 32);
  }
};

/// Writes dg of one token, or adds it to `sum` for a constant decay.
__device__ void put(const DecayGradientParams& params, const DecayRow& row, int offset,
                    float log_decay, float dg, float& sum) {
  if (offset >= row.length) return;
  const float value = unless_forgotten(dg, log_decay);
  if (params.d_log_decay.per_token) {
    *gradient_at(params.d_log_decay, row.batch, row.begin + offset, row.head) = value;
  } else {
    sum += value;
  }
}

/// A lane's shares of a flow span's F.
template <int kPanels>
struct FlowShares {
  float shares[kPanels][4];

  /// Zeros where the span has no slot.
  __device__ FlowShares(const DecayGradientParams& params, int head, int slot, bool exists) {
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      const float* of_panel =
          params.flows + ((std::int64_t{i} * params.H + head) * params.spans.count + slot) * 128;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        shares[i][j] =
            exists && i < params.panels ? __ldcg(&of_panel[32 * j + threadIdx.x % 32]) : 0.0f;
      }
    }
  }

  /// Returns F, summed over the whole warp.
  __device__ float sum() const {
    float own = 0.0f;
#pragma unroll
    for (const auto& of_panel : shares)
      own += of_panel[0] + of_panel[1] + (of_panel[2] + of_panel[3]);
    return sum_warp(own);
  }
};

template <int kPanels>
__device__ void differentiate_span(const DecayGradientParams& params, const DecayRow& row, int span,
                                   float& sum) {
  const int slot = params.spans.slot(params.cu_seqlens != nullptr, row.sequence, row.begin, span);
  const int begin = span * params.spans.tokens();
  const int end = min(begin + params.spans.tokens(), row.length);
  TokenPair<kPanels> next = load_pair<kPanels>(params, row, begin);
  const FlowShares<kPanels> shares(params, row.head, slot, params.spans.has_slot(span));
  float flow = 0.0f;
#pragma unroll 1
  for (int first = begin; first < end; first += 64) {
    const TokenPair<kPanels> own = next;
    // why before anything is used: the loads of both chunks are then under way at once.
    if (first + 64 < end) next = load_pair<kPanels>(params, row, first + 64);
    const int token = first + 2 * (threadIdx.x % 32);
    const float2 intra = {own.x.intra(), own.y.intra()};
    const float2 state = {own.x.state(), own.y.state()};
    float2 dg;
    if (first == begin) {
      flow = shares.sum();
      const float through = inclusive_sum(state.x + state.y);
      dg = decay_gradient_from_flow(flow, intra, state, through);
      flow += last_lane(through);
    } else {
      const float2 d = {intra.x - state.x, intra.y - state.y};
      const float through = inclusive_sum(d.x + d.y);
      const float before = sum_before(through);
      const FlowSince since(own, flow, before, before + d.x);
      dg = {since.x - before, since.y - (before + d.x)};
      flow = since.last - last_lane(through);
    }
    put(params, row, token, own.x.log_decay, dg.x, sum);
    put(params, row, token + 1, own.y.log_decay, dg.y, sum);
  }
}

/// Returns the sum over a CTA, valid in thread 0.
__device__ float sum_block(float value) {
  __shared__ float of_warp[kWarps];
  value = sum_warp(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (const float share : of_warp) total += share;
  return total;
}

/// Writes zeros at tokens [begin, end) of a head, which belong to no sequence.
__device__ void clear_outside(const DecayGradientParams& params, const DecayRow& row, int begin,
                              int end) {
  if (!params.d_log_decay.per_token) return;
  for (int time = begin + threadIdx.x; time < end; time += kThreads) {
    *gradient_at(params.d_log_decay, row.batch, time, row.head) = 0.0f;
  }
}

/// Differentiates the CTA's flow spans.
template <int kPanels>
__device__ void differentiate(const DecayGradientParams& params) {
  const int T = static_cast<int>(params.T);
  if (params.N == 0) {  // no sequence: every packed token is outside
    const DecayRow row{0, static_cast<int>(blockIdx.x), 0, 0, 0};
    if (params.cu_seqlens != nullptr) clear_outside(params, row, 0, T);
    return;
  }
  const DecayRow row = find_row(params);
  if (params.cu_seqlens != nullptr && blockIdx.y == 0) {
    if (row.sequence == 0) clear_outside(params, row, 0, row.begin);
    if (row.sequence == params.N - 1) clear_outside(params, row, row.begin + row.length, T);
  }
  const int tokens = params.spans.tokens();
  const int spans = (row.length + tokens - 1) / tokens;
  float sum = 0.0f;
  for (int span = blockIdx.y * kWarps + threadIdx.x / 32; span < spans;
       span += gridDim.y * kWarps) {
    differentiate_span<kPanels>(params, row, span, sum);
  }
  if (params.d_log_decay.per_token) return;
  sum = sum_block(sum);
  if (threadIdx.x == 0) params.sums[blockIdx.x * gridDim.y + blockIdx.y] = sum;
}

/// CTAs per multiprocessor: as many as registers for so many panels allow.
constexpr int resident_blocks(int panels) {
  return panels == 1 ? 8 : panels == 2 ? 6 : panels == 4 ? 5 : 3;
}

/// Takes up to `kPanels` panels: 1, 2, 4 or 8. All loads of two chunks are under way at once, in as
/// many warps as there can be: latency is all that this takes.
template <int kPanels>
__global__ __launch_bounds__(kThreads, resident_blocks(kPanels)) void gla_decay_gradient_kernel(
    const __grid_constant__ DecayGradientParams params) {
  if (!params.beside_walk) follow_stream();
  if (!skips(params.guard)) differentiate<kPanels>(params);
  // why one CTA: waiting CTAs would keep others from the few SMs that are free.
  if (params.beside_walk && blockIdx.x == 0 && blockIdx.y == 0) follow_stream();
}

__global__ __launch_bounds__(kThreads) void gla_decay_sum_kernel(
    const __grid_constant__ DecayGradientParams params) {
  follow_stream();
  if (skips(params.guard)) return;
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

/// Reads N, H, splits and sums.
void launch_sum(const DecayGradientParams& params, void* stream) {
  launch_kernel("gla_decay_sum", gla_decay_sum_kernel,
                {.blocks = static_cast<unsigned>(params.H), .threads = kThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace

void launch_decay_gradient(const DecayGradientParams& params, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const std::int64_t rows = std::max<std::int64_t>(params.N, 1) * params.H;
  const auto kernel = params.panels == 1   ? gla_decay_gradient_kernel<1>
                      : params.panels == 2 ? gla_decay_gradient_kernel<2>
                      : params.panels <= 4 ? gla_decay_gradient_kernel<4>
                                           : gla_decay_gradient_kernel<8>;
  launch_kernel(
      "gla_decay_gradient", kernel,
      {.blocks = static_cast<unsigned>(rows), .blocks_y = params.splits, .threads = kThreads}, on,
      params);
  if (!params.d_log_decay.per_token) launch_sum(params, stream);
}

void launch_decay_sum(const GlaBackwardProblem& problem, const float* sums, int splits,
                      void* stream) {
  if (!problem.d_log_decay.data || problem.d_log_decay.per_token) return;
  DecayGradientParams params;
  params.N = problem.forward.N;
  params.H = problem.forward.H;
  params.splits = static_cast<unsigned>(splits);
  params.sums = const_cast<float*>(sums);
  params.d_log_decay = problem.d_log_decay;
  launch_sum(params, stream);
}

}  // namespace tandem::cuda::gla
