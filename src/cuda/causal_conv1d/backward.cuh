// causal_conv1d_backward_kernel: all gradients of the convolution in one pass over x and d_out.
//
//   dz_t = d_out_t  or  silu'(z_t) d_out_t                     z_t made again from x
//   dx_t = sum over w of weight_w dz_{t+(W-1)-w}, over tokens of its sequence
//   d_weight_w = sum over t of x_{t-(W-1)+w} dz_t              d_bias = sum over t of dz_t
//
// Threads, strips and CTAs are the forward's. A thread walks its strip in the order of time, with
// the last W - 1 inputs and the W sums dx that are not complete yet in registers: token t adds
// weight_w dz_t to that of token t - (W-1) + w, and completes token t - (W-1)'s, which is stored
// unless it precedes the strip or the sequence. It walks on for W - 1 tokens behind its strip,
// whose dz reach back into it, and behind a sequence, to store its last ones. What a final state's
// gradient adds to a token is where its sum begins. Groups of four tokens go by without a branch;
// those that reach the end of a strip or sequence are walked with conditions.
//
//   token       t-3       t-2       t-1       t
//   sums        s0        s1        s2        s3 = d_final_state's or 0
//   dz_t:       += w0 dz  += w1 dz  += w2 dz  += w3 dz
//               stored    becomes s0 of t + 1 ...
//
// d_weight and d_bias: a thread sums over its strip in registers, a CTA over its strips through
// shared memory in their order, and writes a slice of fp32 sums; another kernel adds the slices in
// theirs (gemm_sum_slices_kernel). Slices are below 1 % of the bytes.
// CTAs behind those of tokens write d_initial_state, whose tokens get of the first W - 1 dz.
//
// Floor: x and d_out read and dx written once. Per element some 30 instructions, among them W
// multiply-adds each for z, dx and d_weight, nine for silu' and four conversions; threads of four
// channels have the registers for 12 warps on a multiprocessor.
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
template <bool kSilu, class Element, int kW, int kChannels>
__device__ void make_dz(const Taps<Element, kW, kChannels>& taps,
                        const History<Element, kW, kChannels>& history,
                        const float (&token)[kChannels], float (&d)[kChannels]) {
  if constexpr (kSilu) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) d[c] *= silu_slope(history.convolve(taps, token[c], c));
  }
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

template <class Element, int kW, int kChannels, bool kSilu>
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
    make_dz<kSilu>(taps, history, token, dz);
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
template <class Element, int kW, int kChannels, bool kSilu>
struct StripGradients {
  static constexpr int kTokens = kBackwardTokens;
  using Tokens = Ahead<Element, kChannels, kTokens>;

  const CausalConv1dBackwardProblem& problem;
  Place place;
  const Taps<Element, kW, kChannels>& taps;
  TapSums<Element, kW, kChannels>& sums;

  __device__ void run() {
    const TokenTensor& dx = problem.dx;
    Span span = Span::find(problem.forward, place.b, place.begin);
    for (int t = place.begin; t < place.end;) {
      const int end = min(place.end, span.end);
      place.renew();
      if (span.outside) {
        if (dx.data != nullptr) clear_tokens<Element, kChannels>(dx, place, t, end);
      } else {
        walk(span, t, end);
      }
      t = end;
      span = Span::with(problem.forward, place.b, t, span.n);
    }
  }

 private:
  struct Walk {
    Tokens x, d_out;
    Cursor<Element, kChannels> to;  // of dx, at token t - (W-1)
    History<Element, kW, kChannels> history;
    float dx[kW][kChannels];  // of tokens t - (W-1) to t
  };

  /// Walks tokens [t,end) of a span, and on until the last of their dx is complete. Those behind
  /// and, if the span ends, its last ones go by in a group of their own.
  __device__ void walk(const Span& span, int first, int end) {
    const CausalConv1dForwardProblem& p = problem.forward;
    const int behind = end + kW - 1, read = min(behind, span.end);
    Walk walk{{p.x, place.b, first, read, place.channel},
              {problem.d_out, place.b, first, read, place.channel},
              {problem.dx, place.b, first - (kW - 1), place.channel}};
    walk.history.load(p, span, first, place.channel);
    // Sums of tokens before the first are another strip's or sequence's.
    const int kept = problem.dx.data != nullptr ? first : end;
    const int inner_end = min(end, span.end - (kW - 1));
    int t = first;
    for (; t + kTokens <= inner_end; t += kTokens) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) take<false>(walk, span, kept, end, t + i, i);
    }
    for (; t < behind; t += kTokens) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) take<true>(walk, span, kept, end, t + i, i);
    }
  }

  /// Adds what token t gives, slot i's, and stores the sum that it completes, if that is one of
  /// [kept,end). Not kEdge: t lies before `end`, and no final state has it.
  template <bool kEdge>
  __device__ void take(Walk& walk, const Span& span, int kept, int end, int t, int i) {
    float token[kChannels], dz[kChannels];
    walk.x.take(i, token);
    walk.d_out.take(i, dz);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int w = 0; w < kW - 1; ++w) walk.dx[w][c] = walk.dx[w + 1][c];
      walk.dx[kW - 1][c] = 0.0f;
    }
    if (!kEdge || t < span.end) {
      make_dz<kSilu>(taps, walk.history, token, dz);
      if (!kEdge || t < end) sums.add(walk.history, token, dz);
      walk.history.push(token);
      if (kEdge) load_d_final<Element, kW>(problem, span, t, place.channel, walk.dx[kW - 1]);
#pragma unroll
      for (int w = 0; w < kW; ++w) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          walk.dx[w][c] = fmaf(taps.weight[w][c], dz[c], walk.dx[w][c]);
        }
      }
    }
    const int complete = t - (kW - 1);
    Stored<Element, kChannels> stored;
    stored.pack(walk.dx[0]);
    if (complete >= kept && (!kEdge || complete < end)) *walk.to = stored;
    walk.to.next();
  }
};

template <class Element, int kW, int kChannels, bool kSilu>
__global__ __launch_bounds__(kBackwardThreads, kBackwardBlocks) void causal_conv1d_backward_kernel(
    const __grid_constant__ BackwardParams params) {
  follow_stream();
  const Cut& cut = params.cut;
  if (blockIdx.x >= cut.token_blocks * cut.channel_blocks) {
    return write_d_initial_state<Element, kW, kChannels, kSilu>(params);
  }
  const Place place(params.problem.forward, cut, kChannels);
  Taps<Element, kW, kChannels> taps;
  taps.load(params.problem.forward, place, cut.columns);
  TapSums<Element, kW, kChannels> sums;
  if (place.active) {
    StripGradients<Element, kW, kChannels, kSilu>{params.problem, place, taps, sums}.run();
  }
  if (params.weight_sums != nullptr) sums.write(params, place);
}

template <class Element, int kChannels>
void launch_backward(const char* name, const BackwardParams& params, void* stream) {
  const auto kernel = with_constants(params.problem.forward, [](auto W, auto silu) {
    return causal_conv1d_backward_kernel<Element, W, kChannels, silu>;
  });
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(params.cut.blocks()), .threads = kBackwardThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::causal_conv1d
