// Tokens on their way to a thread of causal_conv1d: its channels of the tensors that are walked
// along, a stage of tokens at a time. Of several channels, a warp has a ring of stages in shared
// memory that the copy engine fills ahead of it: what is on the way takes no registers, and nobody
// but the warp waits for it. A single channel is loaded where it is used.
#pragma once

#include "cuda/causal_conv1d/tokens.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::causal_conv1d {

/// Tokens [place.begin,end) of the tensors of Params; behind the row they are 0.
template <class Element, int kChannels, class Params>
class TokenStream {
  using Values = Stored<Element, kChannels>;
  static constexpr int kStages = stages(Params::kSources, sizeof(Element));
  static constexpr int kCopyBytes = kStageTokens * 32 * sizeof(Values);
  static constexpr int kStageBytes = Params::kSources * kCopyBytes;

 public:
  using Barriers = Barrier[kWarps][kStages];
  /// Of a CTA, in shared memory at a multiple of 128 bytes.
  static constexpr int kBytes = kWarps * kStages * kStageBytes;

  /// Starts the copies into the CTA's memory.
  __device__ TokenStream(const Params& params, const Place& place, int end, char* memory,
                         Barriers& full)
      : params_(params),
        place_(place),
        memory_(memory + threadIdx.x / 32 * (kStages * kStageBytes)),
        full_(full[threadIdx.x / 32]),
        end_(end),
        next_(place.begin + kStages * kStageTokens) {
    if (!place.active) return;
    if (threadIdx.x % 32 == 0) {
      for (int stage = 0; stage < kStages; ++stage) full_[stage].init(1);
      fence_barriers_initialised();
      for (int stage = 0; stage < kStages; ++stage) {
        load(stage, place.begin + stage * kStageTokens);
      }
    }
    __syncwarp(place.lanes);
  }

  /// Waits for the stage's tokens.
  __device__ void wait() const { full_[stage_].wait(parity_); }

  /// Token i of the stage, of a tensor.
  __device__ Values token(int tensor, int i) const {
    const char* row =
        memory_ + stage_ * kStageBytes + tensor * kCopyBytes + i * 32 * sizeof(Values);
    return reinterpret_cast<const Values*>(row)[threadIdx.x % 32];
  }

  /// Goes on to the next stage.
  __device__ void advance() {
    __syncwarp(place_.lanes);
    if (threadIdx.x % 32 == 0) load(stage_, next_);
    next_ += kStageTokens;
    if (++stage_ < kStages) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  __device__ void load(int stage, int t) {
    if (t >= end_) return;
    full_[stage].arrive_and_expect(kStageBytes);
#pragma unroll
    for (int i = 0; i < Params::kSources; ++i) {
      load_panel(params_.maps[i], full_[stage], memory_ + stage * kStageBytes + i * kCopyBytes,
                 {place_.channel, 0, t, static_cast<int>(place_.b)});
    }
  }

  const Params& params_;
  const Place& place_;
  char* memory_;
  Barrier* full_;
  int end_, next_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

template <class Element, class Params>
class TokenStream<Element, 1, Params> {
 public:
  using Barriers = Barrier[1];
  static constexpr int kBytes = 0;

  __device__ TokenStream(const Params& params, const Place& place, int end, char*, Barriers&)
      : params_(params), place_(place), begin_(place.begin), end_(end) {}

  __device__ void wait() const {}
  __device__ Stored<Element, 1> token(int tensor, int i) const {
    Stored<Element, 1> token{};
    if (begin_ + i < end_) {
      token = *token_at<Element, 1>(params_.source(tensor), place_.b, begin_ + i, place_.channel);
    }
    return token;
  }
  __device__ void advance() { begin_ += kStageTokens; }

 private:
  const Params& params_;
  const Place& place_;
  int begin_, end_;
};

}  // namespace tandem::cuda::causal_conv1d
