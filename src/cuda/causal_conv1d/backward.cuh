// causal_conv1d_backward_kernel: all gradients of the convolution in one pass over x and d_out.
//
//   dz_t = d_out_t  or  silu'(z_t) d_out_t                     z_t made again from x
//   dx_t = sum over w of weight_w dz_{t+(W-1)-w}, over tokens of its sequence
//   d_weight_w = sum over t of x_{t-(W-1)+w} dz_t              d_bias = sum over t of dz_t
//
// Threads, strips and CTAs are the forward's. A thread walks its strip in the order of time, with
// the last W - 1 inputs and the W sums dx that are not complete yet in registers: token t adds
// weight_w dz_t to that of token t - (W-1) + w, unless that one precedes the sequence, and
// completes token t - (W-1)'s, which is stored. It walks on for W - 1 tokens behind its strip,
// whose dz reach back into it. What a final state's gradient adds to a token is where its sum
// begins.
//
//   token       t-3       t-2       t-1       t
//   sums        s0        s1        s2        s3 = d_final_state's or 0
//   dz_t:       += w0 dz  += w1 dz  += w2 dz  += w3 dz
//               stored    becomes s0 of t + 1 ...
//
// d_weight and d_bias: a thread sums over its strip in registers, a CTA over its strips through
// shared memory in their order, and writes a slice of fp32 sums; another kernel adds the slices in
// theirs (gemm_sum_slices_kernel). Slices are 1 % of the bytes.
// CTAs behind those of tokens write d_initial_state, whose tokens get of the first W - 1 dz.
//
// Floor: x and d_out read and dx written once. Instructions come close: per element W multiply-adds
// each for z, dx and d_weight, some twelve for silu', conversions and an exponential; threads of
// four channels have the registers for 16 warps on a multiprocessor.
// Numerics: fp32 throughout; dx sums its dz in the order of time, whatever the cut. d_weight's and
// d_bias's order depends on the shape and the device alone.
// Limits: the forward's.
#pragma once

#include "cuda/causal_conv1d/tokens.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::causal_conv1d {

/// Sums over the tokens that a thread, then a CTA has: of each w, and the bias's behind them.
template <class Element, int kW, int kChannels>
struct TapSums {
  static constexpr int kValues = (kW + 1) * kChannels;
  float of[kW + 1][kChannels] = {};

  __device__ void add(const History<Element, kW, kChannels>& history,
                      const float (&token)[kChannels], const float (&dz)[kChannels]) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int w = 0; w < kW - 1; ++w) of[w][c] = fmaf(history.x[w][c], dz[c], of[w][c]);
      of[kW - 1][c] = fmaf(token[c], dz[c], of[kW - 1][c]);
      of[kW][c] += dz[c];
    }
  }

  /// Adds up the CTA's strips and writes its slice. All threads.
  __device__ void write(const BackwardParams& params, const Place& place) const {
    __shared__ float shared[kBackwardThreads * kValues];
    const CausalConv1dForwardProblem& p = params.problem.forward;
    const int columns = params.cut.columns;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      shared[(place.strip * kValues + i) * columns + place.column] =
          of[i / kChannels][i % kChannels];
    }
    __syncthreads();
    const int first = place.channel - place.column * kChannels;
    for (int i = threadIdx.x; i < columns * kValues; i += kBackwardThreads) {
      const int channel = i / (kW + 1), w = i % (kW + 1);
      if (first + channel >= p.D) break;
      float sum = 0.0f;
      for (int strip = 0; strip < params.cut.strips_per_block(); ++strip) {
        const int value = strip * kValues + w * kChannels + channel % kChannels;
        sum += shared[value * columns + channel / kChannels];
      }
      const std::int64_t at = place.token_block * p.D + first + channel;
      if (w < kW) {
        params.weight_sums[at * kW + w] = sum;
      } else {
        params.bias_sums[at] = sum;
      }
    }
  }
};

/// Makes dz out of d_out.
template <class Element, int kW, int kChannels>
__device__ void make_dz(const CausalConv1d& p, const Taps<Element, kW, kChannels>& taps,
                        const History<Element, kW, kChannels>& history,
                        const float (&token)[kChannels], float (&d)[kChannels]) {
  if (!p.silu) return;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) d[c] *= silu_slope(history.convolve(taps, token[c], c));
}

/// Loads what the final state's gradient adds to that of token t of a span, or of the tokens of its
/// initial state.
template <class Element, int kW, int kChannels>
__device__ void load_d_final(const CausalConv1dBackwardProblem& problem, const Span& span, int t,
                             int channel, float (&values)[kChannels]) {
#pragma unroll
  for (int c = 0; c < kChannels; ++c) values[c] = 0.0f;
  const int j = t - span.end + kW - 1;
  if (j >= 0 && problem.d_final_state.data != nullptr) {
    load_state<Element>(problem.d_final_state, span.n, channel, j, values);
  }
}

template <class Element, int kW, int kChannels>
__device__ void write_d_initial_state(const BackwardParams& params) {
  const CausalConv1dBackwardProblem& problem = params.problem;
  const CausalConv1dForwardProblem& p = problem.forward;
  const StatePlace place(p, params.cut, kChannels);
  if (!place.active) return;
  const Span span = Span::of_sequence(p, place.n);
  Taps<Element, kW, kChannels> taps;
  taps.load(p, place.channel);
  History<Element, kW, kChannels> history;
  history.load(p, span, span.begin, place.channel);
  float dx[kW - 1][kChannels];
#pragma unroll
  for (int j = 0; j < kW - 1; ++j) {
    load_d_final<Element, kW>(problem, span, span.begin - (kW - 1) + j, place.channel, dx[j]);
  }
#pragma unroll
  for (int i = 0; i < kW - 1; ++i) {
    const int t = span.begin + i;
    if (t >= span.end) break;
    float token[kChannels], dz[kChannels];
    load_token<Element>(p.x, span.b, t, place.channel, token);
    load_token<Element>(problem.d_out, span.b, t, place.channel, dz);
    make_dz(p, taps, history, token, dz);
    history.push(token);
#pragma unroll
    for (int j = i; j < kW - 1; ++j) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        dx[j][c] = fmaf(taps.weight[j - i][c], dz[c], dx[j][c]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kW - 1; ++j) {
    store_state<Element>(problem.d_initial_state, place.n, place.channel, j, dx[j]);
  }
}

/// A thread's walk over its strip: stores dx, adds to the sums.
template <class Element, int kW, int kChannels>
struct StripGradients {
  using Tokens = Ahead<Element, kChannels>;

  const CausalConv1dBackwardProblem& problem;
  const Place& place;
  TapSums<Element, kW, kChannels>& sums;
  Taps<Element, kW, kChannels> taps = {};
  History<Element, kW, kChannels> history = {};
  float dx[kW][kChannels] = {};  // of tokens t - (W-1) to t

  __device__ void run() {
    const CausalConv1dForwardProblem& p = problem.forward;
    const int behind = place.end + kW - 1;  // tokens behind the row's end are of no sequence
    taps.load(p, place.channel);
    Span span = Span::find(p, place.b, place.begin);
    for (int t = place.begin; t < behind;) {
      const int end = min(behind, span.end);
      if (span.outside) {
        for (; t < end; ++t) {
          shift();
          store(t - (kW - 1), true);
        }
      } else {
        history.load(p, span, t, place.channel);
        walk_span(span, t, min(end, static_cast<int>(p.T)));
      }
      t = end;
      span = Span::with(p, place.b, t, span.n);
    }
  }

 private:
  /// Walks tokens [t,end) of a span. Those at an edge of it or of the strip go by fewer at a time.
  __device__ void walk_span(const Span& span, int t, int end) {
    const int inner = max(place.begin, span.begin) + kW - 1;
    const int inner_end = min(place.end, span.end - (kW - 1));
    while (t < end) {
      const bool is_inner = t >= inner && t < inner_end;
      const int stop = is_inner ? inner_end : min(t < inner ? min(inner, end) : end, t + kW - 1);
      if (is_inner) {
        walk_inner(span, t, stop);
      } else {
        Tokens x = tokens(problem.forward.x, t, stop), d = tokens(problem.d_out, t, stop);
#pragma unroll
        for (int i = 0; i < kW - 1; ++i) {
          if (t + i < stop) take<true>(span, t + i, i, x, d);
        }
      }
      t = stop;
    }
  }

  __device__ void walk_inner(const Span& span, int t, int end) {
    Tokens x = tokens(problem.forward.x, t, end), d = tokens(problem.d_out, t, end);
    for (; t < end; t += x.kTokens) {
#pragma unroll
      for (int i = 0; i < x.kTokens; ++i) {
        if (t + i < end) take<false>(span, t + i, i, x, d);
      }
    }
  }

  __device__ Tokens tokens(const TokenTensor& tensor, int t, int end) const {
    return {tensor, place.b, t, end, place.channel};
  }

  __device__ void shift() {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int w = 0; w < kW - 1; ++w) dx[w][c] = dx[w + 1][c];
      dx[kW - 1][c] = 0.0f;
    }
  }

  /// Stores the oldest sum, token t's, which may be before the strip.
  __device__ void store(int t, bool may_be_before) const {
    if ((may_be_before && t < place.begin) || problem.dx.data == nullptr) return;
    store_token<Element>(problem.dx, place.b, t, place.channel, dx[0]);
  }

  /// Adds what token t gives, slot i's. Not kEdge: all its inputs are of its sequence and its
  /// strip, and no final state has it.
  template <bool kEdge>
  __device__ void take(const Span& span, int t, int i, Tokens& x, Tokens& d) {
    float token[kChannels], dz[kChannels];
    x.take(i, token);
    d.take(i, dz);
    make_dz(problem.forward, taps, history, token, dz);
    if (!kEdge || t < place.end) sums.add(history, token, dz);
    history.push(token);
    shift();
    if (kEdge) load_d_final<Element, kW>(problem, span, t, place.channel, dx[kW - 1]);
#pragma unroll
    for (int w = 0; w < kW; ++w) {
      if (kEdge && t - (kW - 1) + w < span.begin) continue;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) dx[w][c] = fmaf(taps.weight[w][c], dz[c], dx[w][c]);
    }
    store(t - (kW - 1), kEdge);
  }
};

template <class Element, int kW, int kChannels>
__global__ __launch_bounds__(
    kBackwardThreads,
    sizeof(Element) == 4
        ? 2
        : 3) void causal_conv1d_backward_kernel(const __grid_constant__ BackwardParams params) {
  follow_stream();
  const Cut& cut = params.cut;
  if (blockIdx.x >= cut.token_blocks * cut.channel_blocks) {
    return write_d_initial_state<Element, kW, kChannels>(params);
  }
  const Place place(params.problem.forward, cut, kChannels);
  TapSums<Element, kW, kChannels> sums;
  if (place.active) {
    StripGradients<Element, kW, kChannels> walk{params.problem, place, sums};
    walk.run();
  }
  if (params.weight_sums != nullptr) sums.write(params, place);
}

template <class Element, int kChannels>
void launch_backward(const char* name, const BackwardParams& params, void* stream) {
  const int W = params.problem.forward.W;
  const auto kernel = W == 4   ? causal_conv1d_backward_kernel<Element, 4, kChannels>
                      : W == 3 ? causal_conv1d_backward_kernel<Element, 3, kChannels>
                               : causal_conv1d_backward_kernel<Element, 2, kChannels>;
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(params.cut.blocks()), .threads = kBackwardThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::causal_conv1d
