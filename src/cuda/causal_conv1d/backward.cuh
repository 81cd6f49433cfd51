// causal_conv1d_backward_kernel: all gradients of the convolution in one pass over x and d_out.
//
//   dz_t = d_out_t  or  silu'(z_t) d_out_t                     z_t made again from x
//   dx_t = sum over w of weight_w dz_{t+(W-1)-w}, over tokens of its sequence
//   d_weight_w = sum over t of x_{t-(W-1)+w} dz_t              d_bias = sum over t of dz_t
//
// Threads, strips, CTAs and copies are the forward's. A thread walks its strip in the order of
// time, with the last W - 1 inputs and the W sums dx that are not complete yet in registers: token
// t adds weight_w dz_t to that of token t - (W-1) + w, and completes token t - (W-1)'s, which is
// stored unless it precedes the strip or the sequence. The strip's last W - 1 sums need dz behind
// it, the first of the next strip: every strip of a CTA leaves its first ones in shared memory, the
// last one those behind it, and all complete their sums by them at the end. What a final state's
// gradient adds to a token is where its sum begins. Stages go by without a branch; those that a
// strip or sequence ends in are walked token by token.
//
//   token       t-3       t-2       t-1       t
//   sums        s0        s1        s2        s3 = d_final_state's or 0
//   dz_t:       += w0 dz  += w1 dz  += w2 dz  += w3 dz
//               stored    becomes s0 of t + 1 ...
//
// d_weight and d_bias: a thread sums over its strip in registers, a CTA over its strips through
// shared memory in their order, and writes a slice of fp32 sums; causal_conv1d_sum_kernel adds the
// slices in theirs. Slices are below 1 % of the bytes.
// CTAs behind those of tokens write d_initial_state, whose tokens get of the first W - 1 dz.
//
// Floor: x and d_out read and dx written once. Per element some 25 instructions, among them W
// multiply-adds each for z, dx and d_weight, eight for silu' and three conversions; threads of four
// channels have the registers for 16 warps on a multiprocessor, in fp32 for 12.
// Numerics: fp32 throughout; dx sums its dz in the order of time, whatever the cut. d_weight's and
// d_bias's order depends on the shape and the device alone.
// Limits: the forward's.
#pragma once

#include <algorithm>

#include "cuda/causal_conv1d/stream.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::causal_conv1d {

/// Sums over the tokens that a thread, then a CTA has: of each w, and the bias's behind them.
template <class Element, int kW, int kChannels>
struct TapSums {
  static constexpr int kValues = (kW + 1) * kChannels;
  static constexpr int kBytes = kThreads * kValues * 4;  // of a CTA's
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

  /// Adds up the CTA's strips in `shared`, of kBytes, and writes its slice. All threads.
  __device__ void write(const BackwardParams& params, const Place& place, float* shared) const {
    const CausalConv1dForwardProblem& p = params.problem.forward;
    const int columns = params.cut.columns;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      shared[(place.strip * kValues + i) * columns + place.column] =
          of[i / kChannels][i % kChannels];
    }
    __syncthreads();
    const int first = place.channel - place.column * kChannels;
    const int channels = columns * kChannels;
    for (int i = threadIdx.x; i < columns * kValues; i += kThreads) {
      const int w = i / channels, channel = i % channels;
      if (first + channel >= p.D) continue;
      float sum = 0.0f;
      for (int strip = 0; strip < params.cut.strips_per_block(); ++strip) {
        const int value = strip * kValues + w * kChannels + channel % kChannels;
        sum += shared[value * columns + channel / kChannels];
      }
      params.sums[(place.token_block * (kW + 1) + w) * p.D + first + channel] = sum;
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

/// The first W - 1 dz of each strip of a CTA, and those behind the last one, which the strip before
/// needs for its last dx.
template <int kW, int kChannels>
struct FirstGradients {
  static constexpr int kBytes = (kThreads + 32) * (kW - 1) * kChannels * 4;  // of a strip more
  float* memory;
  int columns;

  __device__ float* at(int strip, int column, int i) const {
    return memory + (((strip * (kW - 1)) + i) * columns + column) * kChannels;
  }
  __device__ void put(const Place& place, int strip, int i, const float (&dz)[kChannels]) const {
    Stored<float, kChannels> stored;
    stored.pack(dz);
    *reinterpret_cast<Stored<float, kChannels>*>(at(strip, place.column, i)) = stored;
  }
  __device__ void get(const Place& place, int strip, int i, float (&dz)[kChannels]) const {
    reinterpret_cast<const Stored<float, kChannels>*>(at(strip, place.column, i))->unpack(dz);
  }
};

/// A thread's walk over its strip: stores dx, adds to the sums.
template <class Element, int kW, int kChannels, bool kSilu>
struct StripGradients {
  using Stream = TokenStream<Element, kChannels, BackwardParams>;
  using First = FirstGradients<kW, kChannels>;
  using Values = Stored<Element, kChannels>;

  const CausalConv1dBackwardProblem& problem;
  Place place;
  Stream& stream;
  First first;
  Span span = {};
  int kept = 0;  // first token of the strip's and the span's
  History<Element, kW, kChannels> history = {};
  float dx[kW][kChannels] = {};  // of tokens t - (W-1) to t
  TapSums<Element, kW, kChannels> sums = {};

  /// The end of the tokens that a strip reads: a CTA's last one those that FirstGradients has.
  static __device__ int end_of_tokens(const BackwardParams& params, const Place& place) {
    const bool last = place.strip + 1 == params.cut.strips_per_block();
    return last ? min(place.end + kW - 1, static_cast<int>(params.problem.forward.T)) : place.end;
  }

  /// Begins the span, at token t. why the place is renewed: addresses of what a sequence may need
  /// would be made before the walk, and take its registers.
  __device__ void enter(int t) {
    place.renew();
    kept = problem.dx.data != nullptr ? t : place.end;
    history.load(problem.forward, span, t, place.channel);
  }

  /// Walks the strip; its last W - 1 sums wait for what comes behind it.
  __device__ void run(const Taps<Element, kW, kChannels>& taps, int strips) {
    // Of dx, at token t - (W-1).
    Cursor<Element, kChannels> to(problem.dx, place.b, place.begin - (kW - 1), place.channel);
    stream.wait();
    if (place.strip > 0) put_first(taps, place.strip, place.begin);
    for (int begin = place.begin; begin < place.end; begin += kStageTokens) {
      stream.wait();
      if (!span.outside && begin + kStageTokens <= min(place.end, plain_end())) {
        Values x[kStageTokens], d_out[kStageTokens];
#pragma unroll
        for (int i = 0; i < kStageTokens; ++i) {
          x[i] = stream.token(0, i);
          d_out[i] = stream.token(1, i);
        }
#pragma unroll
        for (int i = 0; i < kStageTokens; ++i) take<false>(taps, begin + i, x[i], d_out[i], to);
      } else {
        walk_edge(taps, begin, to);
      }
      stream.advance();
    }
    if (place.strip + 1 == strips && place.end < problem.forward.T) {
      stream.wait();
      put_first(taps, strips, place.end);
    }
  }

  /// Completes the strip's last sums, by the dz behind it. Behind a barrier that follows run().
  __device__ void finish(const Taps<Element, kW, kChannels>& taps) {
    Cursor<Element, kChannels> to(problem.dx, place.b, place.end - (kW - 1), place.channel);
#pragma unroll
    for (int i = 0; i < kW - 1; ++i) {
      move_sums();
      if (!span.outside && place.end + i < span.end) {
        float dz[kChannels];
        first.get(place, place.strip + 1, i, dz);
        add(taps, dz);
      }
      store(place.end + i - (kW - 1), to);
    }
  }

 private:
  /// Puts the dz of the W - 1 tokens from t on, where the stage begins, as far as they are the
  /// span's.
  __device__ void put_first(const Taps<Element, kW, kChannels>& taps, int strip, int t) {
    History<Element, kW, kChannels> before = history;
#pragma unroll
    for (int i = 0; i < kW - 1; ++i) {
      if (span.outside || t + i >= span.end) break;
      float token[kChannels], dz[kChannels];
      stream.token(0, i).unpack(token);
      stream.token(1, i).unpack(dz);
      make_dz<kSilu>(taps, before, token, dz);
      before.push(token);
      first.put(place, strip, i, dz);
    }
  }

  /// The end of the span's tokens that no final state has.
  __device__ int plain_end() const {
    return problem.d_final_state.data == nullptr ? span.end : span.end - (kW - 1);
  }

  /// Walks a stage that a span or the strip ends in.
  __device__ void walk_edge(const Taps<Element, kW, kChannels>& taps, int begin,
                            Cursor<Element, kChannels>& to) {
#pragma unroll 1
    for (int i = 0; i < kStageTokens && begin + i < place.end; ++i) {
      const int t = begin + i;
      if (t >= span.end) {
        flush(t);
        span = Span::with(problem.forward, place.b, t, span.n);
        enter(t);
      }
      take<true>(taps, t, stream.token(0, i), stream.token(1, i), to);
    }
  }

  /// Adds what token t gives and stores the sum that it completes. Not kEdge: t lies in a span, and
  /// no final state has it.
  template <bool kEdge>
  __device__ void take(const Taps<Element, kW, kChannels>& taps, int t, const Values& x,
                       const Values& d_out, Cursor<Element, kChannels>& to) {
    move_sums();
    if (!kEdge || !span.outside) {
      float token[kChannels], dz[kChannels];
      x.unpack(token);
      d_out.unpack(dz);
      make_dz<kSilu>(taps, history, token, dz);
      sums.add(history, token, dz);
      history.push(token);
      if (kEdge) load_d_final<Element, kW>(problem, span, t, place.channel, dx[kW - 1]);
      add(taps, dz);
    }
    store(t - (kW - 1), to);
  }

  /// Moves the sums on to the next token, whose own begins at 0.
  __device__ void move_sums() {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int w = 0; w < kW - 1; ++w) dx[w][c] = dx[w + 1][c];
      dx[kW - 1][c] = 0.0f;
    }
  }

  /// Adds the newest token's dz to the sums.
  __device__ void add(const Taps<Element, kW, kChannels>& taps, const float (&dz)[kChannels]) {
#pragma unroll
    for (int w = 0; w < kW; ++w) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) dx[w][c] = fmaf(taps.weight[w][c], dz[c], dx[w][c]);
    }
  }

  /// Stores the oldest sum, that of token t, if that is the strip's and the span's.
  __device__ void store(int t, Cursor<Element, kChannels>& to) {
    Values packed;
    packed.pack(dx[0]);
    if (t >= kept) *to = packed;
    to.next();
  }

  /// Stores the sums of the last tokens before t, where a span ends.
  __device__ void flush(int t) {
#pragma unroll
    for (int j = 1; j < kW; ++j) {
      const int last = t - kW + j;
      if (last >= kept) store_token<Element>(problem.dx, place.b, last, place.channel, dx[j]);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) dx[j][c] = 0.0f;
    }
  }
};

template <class Element, int kW, int kChannels, bool kSilu>
__global__ __launch_bounds__(
    kThreads,
    backward_pace(sizeof(Element))
        .blocks) void causal_conv1d_backward_kernel(const __grid_constant__ BackwardParams params) {
  using Strip = StripGradients<Element, kW, kChannels, kSilu>;
  extern __shared__ __align__(128) char memory[];
  __shared__ typename Strip::Stream::Barriers full;
  follow_stream();
  const CausalConv1dForwardProblem& p = params.problem.forward;
  const Cut& cut = params.cut;
  if (blockIdx.x >= cut.token_blocks * cut.channel_blocks) {
    return write_d_initial_state<Element, kW, kChannels, kSilu>(params);
  }
  const Place place(p, cut, kChannels);
  typename Strip::Stream stream(params, place, Strip::end_of_tokens(params, place),
                                memory + Strip::First::kBytes, full);
  Strip strip{params.problem, place, stream, {reinterpret_cast<float*>(memory), cut.columns}};
  if (place.active) {
    strip.span = Span::find(p, place.b, place.begin);
    strip.enter(place.begin);
  }
  Taps<Element, kW, kChannels> taps;
  taps.load(p, place, cut.columns);
  if (place.active) strip.run(taps, cut.strips_per_block());
  __syncthreads();
  if (place.active) strip.finish(taps);
  if (params.sums != nullptr) strip.sums.write(params, place, reinterpret_cast<float*>(memory));
}

constexpr int kSumChannels = 32, kSumGroups = 8;

/// Adds up the CTAs' sums, those of a w and 32 channels per CTA: each group of threads every eighth
/// of them, then the groups'.
template <class Element>
__global__ __launch_bounds__(kSumChannels* kSumGroups) void causal_conv1d_sum_kernel(
    const __grid_constant__ BackwardParams params) {
  follow_stream();
  __shared__ float shared[kSumGroups][kSumChannels];
  const int D = params.problem.forward.D, W = params.problem.forward.W;
  const int column = threadIdx.x % kSumChannels, group = threadIdx.x / kSumChannels;
  const int channel = blockIdx.x * kSumChannels + column, w = blockIdx.y;
  float sum = 0.0f;
  if (channel < D) {
#pragma unroll 8
    for (std::int64_t block = group; block < params.cut.token_blocks; block += kSumGroups) {
      sum += params.sums[(block * (W + 1) + w) * D + channel];
    }
  }
  shared[group][column] = sum;
  __syncthreads();
  const ConvTaps& result = w < W ? params.problem.d_weight : params.problem.d_bias;
  if (group > 0 || channel >= D || result.data == nullptr) return;
#pragma unroll
  for (int i = 1; i < kSumGroups; ++i) sum += shared[i][column];
  const std::int64_t at = channel * result.channel_stride + (w < W ? w : 0);
  if (result.dtype == DType::kFloat32) {
    static_cast<float*>(result.data)[at] = sum;
  } else {
    static_cast<Element*>(result.data)[at] = static_cast<Element>(sum);
  }
}

template <class Element, int kChannels>
void launch_backward(const char* name, const BackwardParams& params, void* stream) {
  const auto kernel = with_constants(params.problem.forward, [](auto W, auto silu) {
    return causal_conv1d_backward_kernel<Element, W, kChannels, silu>;
  });
  constexpr int kTokens = FirstGradients<kMostTaps, kChannels>::kBytes +
                          TokenStream<Element, kChannels, BackwardParams>::kBytes;
  constexpr int kSums = TapSums<Element, kMostTaps, kChannels>::kBytes;
  const auto handle = static_cast<cudaStream_t>(stream);
  if (params.cut.blocks() > 0) {
    launch_kernel(name, kernel,
                  {.blocks = static_cast<unsigned>(params.cut.blocks()),
                   .threads = kThreads,
                   .shared_bytes = static_cast<std::size_t>(std::max(kTokens, kSums))},
                  handle, params);
  }
  const int D = params.problem.forward.D, W = params.problem.forward.W;
  if (!params.problem.needs_sums() || D == 0) return;
  launch_kernel(name, causal_conv1d_sum_kernel<Element>,
                {.blocks = static_cast<unsigned>(ceil_div(D, kSumChannels)),
                 .blocks_y = static_cast<unsigned>(W + 1),
                 .threads = kSumChannels * kSumGroups},
                handle, params);
}

}  // namespace tandem::cuda::causal_conv1d
