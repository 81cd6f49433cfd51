// causal_conv1d_forward_kernel: a depthwise causal convolution along time, with its activation.
//
//   z_t = bias + sum over w of weight_w x_{t-(W-1)+w}        out_t = z_t or silu(z_t)
//
// A thread has four neighbouring channels (or one, where tensors are not aligned) of a strip of
// tokens, which it walks in the order of time with the last W - 1 inputs in registers: x is read
// once, but for the W - 1 tokens before a strip. out is written once.
//
// A CTA, of several channels a thread:   128 channels, 32 threads x 4 strips
//   warp 0   tokens   0 ..  63 of a row    CTAs of neighbouring channels run side by side, so that
//   warp 1   tokens  64 .. 127             whole rows of x are read at a time. Strips are short
//   ...                                    enough that all multiprocessors end together.
//
// Time chart of a warp, whose tokens the copy engine brings by stages of eight (stream.cuh):
//   copy     x 0-7~   x 8-15~ |  x 16-23~           |  x 24-31~ ...
//   walk     taps~  history~  |  -convolve 0-7- out~|  -convolve 8-15- out~ ...
//
// Where tokens are packed sequences, a thread finds the one of its first token by bisection and
// walks on through the offsets; where one begins, its history becomes that one's initial state.
// CTAs behind those of tokens write final states, a thread the W - 1 tokens of its channels: no
// strip need know where a sequence ends.
//
// Floor: x read and out written once. Per element some 12 instructions, 4 of them multiply-adds and
// 2 of the special functions, take half of that time.
// Numerics: fp32, bias first, then the taps from the oldest token to the newest, so that a token's
// bits do not depend on how its row is cut. Rounded once.
// Limits: T below 2^31 - 2^20, a grid of 2^31 - 1 CTAs.
#pragma once

#include "cuda/causal_conv1d/stream.cuh"
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

/// A thread's walk over its strip.
template <class Element, int kW, int kChannels, bool kSilu>
struct StripOutputs {
  using Stream = TokenStream<Element, kChannels, ForwardParams>;

  const CausalConv1dForwardProblem& p;
  Place place;
  Stream& stream;
  Span span = {};
  History<Element, kW, kChannels> history = {};

  /// Begins the span at token t. why the place is renewed: addresses of what a sequence may need
  /// would be made before the walk, and take its registers.
  __device__ void enter(int t) {
    place.renew();
    history.load(p, span, t, place.channel);
  }

  /// Walks stage by stage. why whole stages without a branch: loads and functions of neighbouring
  /// tokens would wait at it.
  __device__ void run(const Taps<Element, kW, kChannels>& taps) {
    Cursor<Element, kChannels> to(p.out, place.b, place.begin, place.channel);
    for (int begin = place.begin; begin < place.end; begin += kStageTokens) {
      stream.wait();
      if (!span.outside && begin + kStageTokens <= min(place.end, span.end)) {
        Stored<Element, kChannels> tokens[kStageTokens];
#pragma unroll
        for (int i = 0; i < kStageTokens; ++i) tokens[i] = stream.token(0, i);
#pragma unroll
        for (int i = 0; i < kStageTokens; ++i) take(taps, tokens[i], to);
      } else {
        walk_edge(taps, begin, to);
      }
      stream.advance();
    }
  }

 private:
  /// Walks a stage that a span or the strip ends in.
  __device__ void walk_edge(const Taps<Element, kW, kChannels>& taps, int begin,
                            Cursor<Element, kChannels>& to) {
#pragma unroll 1
    for (int i = 0; i < kStageTokens && begin + i < place.end; ++i) {
      if (begin + i >= span.end) {
        span = Span::with(p, place.b, begin + i, span.n);
        enter(begin + i);
      }
      if (span.outside) {
        *to = {};
        to.next();
      } else {
        take(taps, stream.token(0, i), to);
      }
    }
  }

  /// Convolves the next token and stores it.
  __device__ void take(const Taps<Element, kW, kChannels>& taps,
                       const Stored<Element, kChannels>& stored, Cursor<Element, kChannels>& to) {
    float token[kChannels], out[kChannels];
    stored.unpack(token);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const float z = history.convolve(taps, token[c], c);
      out[c] = kSilu ? silu(z) : z;
    }
    history.push(token);
    Stored<Element, kChannels> packed;
    packed.pack(out);
    *to = packed;
    to.next();
  }
};

template <class Element, int kW, int kChannels, bool kSilu>
__global__ __launch_bounds__(kThreads, kForwardPace.blocks) void causal_conv1d_forward_kernel(
    const __grid_constant__ ForwardParams params) {
  using Strip = StripOutputs<Element, kW, kChannels, kSilu>;
  extern __shared__ __align__(128) char memory[];
  __shared__ typename Strip::Stream::Barriers full;
  follow_stream();
  const CausalConv1dForwardProblem& p = params.problem;
  const Cut& cut = params.cut;
  if (blockIdx.x >= cut.token_blocks * cut.channel_blocks) {
    return write_final_state<Element, kW, kChannels>(params);
  }
  const Place place(p, cut, kChannels);
  typename Strip::Stream stream(params, place, place.end, memory, full);
  Strip strip{p, place, stream};
  if (place.active) {
    strip.span = Span::find(p, place.b, place.begin);
    strip.enter(place.begin);
  }
  Taps<Element, kW, kChannels> taps;
  taps.load(p, place, cut.columns);
  if (place.active) strip.run(taps);
}

template <class Element, int kChannels>
void launch_forward(const char* name, const ForwardParams& params, void* stream) {
  const auto kernel = with_constants(params.problem, [](auto W, auto silu) {
    return causal_conv1d_forward_kernel<Element, W, kChannels, silu>;
  });
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(params.cut.blocks()),
                 .threads = kThreads,
                 .shared_bytes = TokenStream<Element, kChannels, ForwardParams>::kBytes},
                static_cast<cudaStream_t>(stream), params);
}

}  // namespace tandem::cuda::causal_conv1d
