// causal_conv1d_forward_kernel: a depthwise causal convolution along time, with its activation.
//
//   z_t = bias + sum over w of weight_w x_{t-(W-1)+w}        out_t = z_t or silu(z_t)
//
// A thread has four neighbouring channels (or one, where tensors are not aligned) of a strip of
// tokens, which it walks in the order of time with the last W - 1 inputs in registers: x is read
// once, but for the W - 1 tokens before a strip. out is written once.
//
// A CTA, of D = 4096 in 16 bits:         128 channels, 32 threads x 4 strips
//   warp 0   tokens   0 ..  415 of a row  CTAs of neighbouring channels run side by side, so that
//   warp 1   tokens 416 ..  831           whole rows of x are read at a time. Strips are as long as
//   ...                                   lets all CTAs run at once.
//
// Time chart of a thread:
//   taps~ history~ 8 tokens~ |  -convolve 8-     ~out~ |  -convolve 8-  ~out~ ...
//                               token 8~ 9~ ...           a slot that is taken loads again
//
// Where tokens are packed sequences, a thread finds the one of its first token by bisection and
// walks on through the offsets; where one begins, its history becomes that one's initial state.
// CTAs behind those of tokens write final states, a thread the W - 1 tokens of its channels: no
// strip need know where a sequence ends.
//
// Floor: x read and out written once. Per element some 14 instructions, 4 of them multiply-adds and
// 2 of the special functions, take half of that time on the issue slots.
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

/// Convolves tokens [t,end) of a span, whose history is there. why whole groups of tokens, of which
/// only stores are masked: at a branch the loads and functions of neighbouring tokens would wait.
template <bool kSilu, class Element, int kW, int kChannels>
__device__ void convolve_tokens(const CausalConv1dForwardProblem& p, const Place& place, int t,
                                int end, const Taps<Element, kW, kChannels>& taps,
                                History<Element, kW, kChannels>& history) {
  constexpr int kTokens = forward_tokens(sizeof(Element));
  Ahead<Element, kChannels, kTokens> ahead(p.x, place.b, t, end, place.channel);
  Cursor<Element, kChannels> to(p.out, place.b, t, place.channel);
  for (; t < end; t += kTokens) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      float token[kChannels], out[kChannels];
      Stored<Element, kChannels> stored;
      ahead.take(i, token);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float z = history.convolve(taps, token[c], c);
        out[c] = kSilu ? silu(z) : z;
      }
      history.push(token);
      stored.pack(out);
      if (t + i < end) *to = stored;
      to.next();
    }
  }
}

template <class Element, int kW, int kChannels, bool kSilu>
__global__ __launch_bounds__(kForwardThreads, kForwardBlocks) void causal_conv1d_forward_kernel(
    const __grid_constant__ ForwardParams params) {
  follow_stream();
  const CausalConv1dForwardProblem& p = params.problem;
  const Cut& cut = params.cut;
  if (blockIdx.x >= cut.token_blocks * cut.channel_blocks) {
    return write_final_state<Element, kW, kChannels>(params);
  }
  Place place(p, cut, kChannels);
  Taps<Element, kW, kChannels> taps;
  taps.load(p, place, cut.columns);
  if (!place.active) return;
  Span span = Span::find(p, place.b, place.begin);
  for (int t = place.begin; t < place.end;) {
    const int end = min(place.end, span.end);
    place.renew();
    if (span.outside) {
      clear_tokens<Element, kChannels>(p.out, place, t, end);
    } else {
      History<Element, kW, kChannels> history;
      history.load(p, span, t, place.channel);
      convolve_tokens<kSilu>(p, place, t, end, taps, history);
    }
    t = end;
    span = Span::with(p, place.b, t, span.n);
  }
}

template <class Element, int kChannels>
void launch_forward(const char* name, const ForwardParams& params, void* stream) {
  const auto kernel = with_constants(params.problem, [](auto W, auto silu) {
    return causal_conv1d_forward_kernel<Element, W, kChannels, silu>;
  });
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(params.cut.blocks()), .threads = kForwardThreads},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::causal_conv1d
