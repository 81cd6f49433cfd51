// How far back a state depends on its tokens, as their decays say.
#pragma once

#include <cutlass/arch/barrier.h>

#include "cuda/gla/common/item.cuh"
#include "cuda/parts/exp2.cuh"

namespace tandem::cuda::gla {

/// Chunks that a state depends on or may depend on, read as `last`, last - 1, ...
struct Span {
  int last;
  int count;
};

/// Sums of decays, in base 2, on their way between the warps that look at them: all of the CTA but
/// the first four, whose role is to load.
template <int kThreads, int kSpans>
struct DecaySumsShared {
  static constexpr int kFirstWarp = 4;
  static constexpr int kWarps = kThreads / 32 - kFirstWarp;
  static constexpr int kChunks = 12;  // looked at together, by halves

  struct Sum {
    float all;
    float grown;  // of the positive ones
  };
  Sum halves[2][kSpans][2 * kChunks];  // in turn

  static __device__ void meet() { cutlass::arch::NamedBarrier::sync(32 * kWarps, 0); }
};

/// Finds how many chunks of each span the state behind it depends on: of all tokens before these,
/// and of the state before the span, no more than 2^-64 is left, or what a product of factors
/// rounds to 0. All of them where a decay is NaN, or `gives_up` and decays do not seem to get
/// there. All warps of DecaySumsShared call, and all get the result; between two calls they meet.
template <class Config, int kThreads, int kSpans>
__device__ void find_remembered(DecaySumsShared<kThreads, kSpans>& shared, const DecayTensor& decay,
                                const Item& item, int head, const Span (&spans)[kSpans],
                                bool gives_up, int (&remembered)[kSpans]) {
  using Shared = DecaySumsShared<kThreads, kSpans>;
  constexpr float kForgotten = -64.0f, kLost = -150.0f;
  constexpr int kLoads = (2 * Shared::kChunks + Shared::kWarps - 1) / Shared::kWarps;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - Shared::kFirstWarp;
  const float* const decays = decay.data + item.batch * decay.batch_stride +
                              head * decay.head_stride + item.begin * decay.time_stride;
  float behind[kSpans];  // sum of the decays of all chunks looked at
  bool open[kSpans];
  bool any = false;
#pragma unroll
  for (int s = 0; s < kSpans; ++s) {
    remembered[s] = decay.data == nullptr ? spans[s].count : 0;
    behind[s] = 0.0f;
    open[s] = remembered[s] < spans[s].count;
    any |= open[s];
  }
  for (int done = 0, turn = 0; any; done += Shared::kChunks, turn ^= 1) {
    float own[kSpans][kLoads];
#pragma unroll
    for (int s = 0; s < kSpans; ++s) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int half = i * Shared::kWarps + warp, chunk = done + half / 2;
        const int token = item.chunk_offset<Config>(spans[s].last - chunk) + 32 * (half % 2) + lane;
        const bool inside = open[s] && half < 2 * Shared::kChunks && chunk < spans[s].count &&
                            token >= -item.before && token < item.left;
        own[s][i] = inside ? decays[token * decay.time_stride] * kLog2E : 0.0f;
      }
    }
#pragma unroll
    for (int s = 0; s < kSpans; ++s) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int half = i * Shared::kWarps + warp;
        float all = own[s][i], grown = fmaxf(all, 0.0f);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
          all += __shfl_xor_sync(0xFFFFFFFFu, all, distance);
          grown += __shfl_xor_sync(0xFFFFFFFFu, grown, distance);
        }
        if (lane == 0 && half < 2 * Shared::kChunks) shared.halves[turn][s][half] = {all, grown};
      }
    }
    Shared::meet();
    any = false;
#pragma unroll
    for (int s = 0; s < kSpans; ++s) {
      if (!open[s]) continue;
      const int count = spans[s].count, looked_at = min(count, done + Shared::kChunks);
      for (int chunk = done; chunk < looked_at && behind[s] > kLost; ++chunk) {
        const auto [all, grown] = shared.halves[turn][s][2 * (chunk - done)];
        const auto [other_all, other_grown] = shared.halves[turn][s][2 * (chunk - done) + 1];
        // Negated, for NaN.
        if (!(behind[s] + (grown + other_grown) <= kForgotten)) remembered[s] = chunk + 1;
        behind[s] += all + other_all;
      }
      const bool hopeless = gives_up && behind[s] * count > kForgotten * looked_at;
      open[s] = looked_at < count && behind[s] > kLost && !hopeless;
      any |= open[s];
      if (!open[s] && !(behind[s] <= kForgotten)) remembered[s] = count;
    }
  }
}

}  // namespace tandem::cuda::gla
