// causal_conv1d_forward_kernel: a depthwise causal convolution along time, with its activation.
//
//   z_t = bias + sum over w of weight_w x_{t-(W-1)+w}        out_t = z_t or silu(z_t)
//
// A thread has 16 bytes of neighbouring channels (or one channel, where tensors are not aligned) of
// a strip of tokens, which it walks in the order of time with the last W - 1 inputs in registers:
// x is read once, but for the W - 1 tokens before a strip, which lie in L2 because the thread that
// has them runs beside this one. out is written once.
//
// A CTA, of D = 4096 in 16 bits:         256 channels, 32 threads x 8
//   warp 0   tokens   0 ..  63 of a row
//   warp 1   tokens  64 .. 127
//   ...                                  CTAs of neighbouring channels run side by side, so that
//   warp 7   tokens 448 .. 511           whole rows of x are read at a time
//
// Time chart of a thread:
//   taps~ history~ 4 tokens~ | 4 tokens~  -convolve the 4 before-  ~out~ | 4 tokens~  -convolve-
//
// Where tokens are packed sequences, a thread finds the one of its first token by bisection and
// walks on through the offsets; where one begins, its history becomes that one's initial state.
// CTAs behind those of tokens write final states, a thread the W - 1 tokens of its channels: no
// strip need know where a sequence ends.
//
// Floor: x read and out written once. Four multiply-adds, two conversions and an exponential and a
// reciprocal per element take about half of that time on the issue slots.
// Numerics: fp32, bias first, then the taps from the oldest token to the newest, so that a token's
// bits do not depend on how its row is cut. Rounded once.
// Limits: T below 2^31 - 2^20, a grid of 2^31 - 1 CTAs.
#pragma once

#include "cuda/causal_conv1d/tokens.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::causal_conv1d {

/// Writes the last W - 1 inputs of a sequence.
template <class Element, int kW, int kChannels>
__device__ void write_final_state(const ForwardParams& params) {
  const CausalConv1dForwardProblem& p = params.problem;
  const StatePlace place(p, params.cut, kChannels);
  if (!place.active) return;
  const Span span = Span::of_sequence(p, place.n);
#pragma unroll
  for (int j = 0; j < kW - 1; ++j) {
    float values[kChannels];
    load_input<Element, kW>(p, span, span.end - (kW - 1) + j, place.channel, values);
    store_state<Element>(p.final_state, place.n, place.channel, j, values);
  }
}

/// Convolves tokens [t,end) of a span, whose history is there.
template <class Element, int kW, int kChannels>
__device__ void convolve_tokens(const CausalConv1dForwardProblem& p, const Place& place, int t,
                                int end, const Taps<Element, kW, kChannels>& taps,
                                History<Element, kW, kChannels>& history) {
  Ahead<Element, kChannels> ahead(p.x, place.b, t, end, place.channel);
  for (; t < end; t += ahead.kTokens) {
#pragma unroll
    for (int i = 0; i < ahead.kTokens; ++i) {
      if (t + i >= end) break;
      float token[kChannels], out[kChannels];
      ahead.take(i, token);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float z = history.convolve(taps, token[c], c);
        out[c] = p.silu ? silu(z) : z;
      }
      history.push(token);
      store_token<Element>(p.out, place.b, t + i, place.channel, out);
    }
  }
}

template <class Element, int kW, int kChannels>
__global__ __launch_bounds__(kForwardThreads, 2) void causal_conv1d_forward_kernel(
    const __grid_constant__ ForwardParams params) {
  follow_stream();
  const CausalConv1dForwardProblem& p = params.problem;
  const Cut& cut = params.cut;
  if (blockIdx.x >= cut.token_blocks * cut.channel_blocks) {
    return write_final_state<Element, kW, kChannels>(params);
  }
  const Place place(p, cut, kChannels);
  if (!place.active) return;
  Taps<Element, kW, kChannels> taps;
  taps.load(p, place.channel);
  Span span = Span::find(p, place.b, place.begin);
  for (int t = place.begin; t < place.end;) {
    const int end = min(place.end, span.end);
    if (span.outside) {
      const float zeros[kChannels] = {};
      for (; t < end; ++t) store_token<Element>(p.out, place.b, t, place.channel, zeros);
    } else {
      History<Element, kW, kChannels> history;
      history.load(p, span, t, place.channel);
      convolve_tokens(p, place, t, end, taps, history);
    }
    t = end;
    span = Span::with(p, place.b, t, span.n);
  }
}

template <class Element, int kChannels>
void launch_forward(const char* name, const ForwardParams& params, void* stream) {
  const auto kernel = params.problem.W == 4   ? causal_conv1d_forward_kernel<Element, 4, kChannels>
                      : params.problem.W == 3 ? causal_conv1d_forward_kernel<Element, 3, kChannels>
                                              : causal_conv1d_forward_kernel<Element, 2, kChannels>;
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(params.cut.blocks()), .threads = kForwardThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::causal_conv1d
