// What causal_conv1d's kernels are launched with, and how a call is cut over the device.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/causal_conv1d_problem.h"

namespace tandem::cuda::causal_conv1d {

/// Neighbouring channels of a thread, where tensors are aligned: with more, taps, inputs and sums
/// do not fit its registers.
constexpr int kChannels = 4;

/// Threads of a CTA, tokens that are loaded at a time, and how often a warp has room for so many
/// of each of `sources` tensors. why not more stages where few CTAs run: what is asked for first
/// comes later then.
constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kStageTokens = 8;
constexpr int stages(int sources, int element_bytes) {
  return sources == 1 && element_bytes == 2 ? 3 : 2;
}

/// How fast CTAs are, fitted to an H200 (docs/ops/causal_conv1d.log.md): a strip takes the time of
/// `start` tokens more than it has, times the CTAs that its multiprocessor has to do.
struct Pace {
  int blocks;       // CTAs that run at once on a multiprocessor
  int most_tokens;  // of a strip
  double start;     // tokens
  double uneven;    // where all run at once, how much the multiprocessors with one more count
  double round;     // the least that a round of `blocks` takes, of a full one
};
constexpr Pace kForwardPace{7, 64, 1, 0.75, 0.65};
constexpr Pace backward_pace(int element_bytes) {
  return {element_bytes == 4 ? 3 : 4, 128, 2, 0, 0.9};
}

/// How tokens and channels are cut: a thread takes some neighbouring channels of a strip of tokens
/// of a batch row; a CTA `columns` threads side by side, of as many strips as it has room for.
struct Cut {
  int columns = 32;
  int strip_tokens = 8;
  int strips_per_row = 0;
  std::int64_t strips = 0;
  int channel_blocks = 0;
  std::int64_t token_blocks = 0;
  std::int64_t state_blocks =
      0;  // CTAs that have a state's channels instead, a thread some of them

  constexpr std::int64_t blocks() const { return token_blocks * channel_blocks + state_blocks; }
  constexpr int strips_per_block() const { return kThreads / columns; }
};

/// Cuts a call for CTAs of threads of so many channels; `states`: whether there are CTAs that write
/// states.
Cut cut_tokens(const CausalConv1dForwardProblem& problem, const Pace& pace, int channels,
               bool states, int multiprocessors);

struct ForwardParams {
  static constexpr int kSources = 1;  // tensors that are walked along

  CausalConv1dForwardProblem problem;
  Cut cut;
  CUtensorMap maps[kSources];  // of several channels, copies of kStageTokens by a warp's

  constexpr const TokenTensor& source(int) const { return problem.x; }
};

struct BackwardParams {
  static constexpr int kSources = 2;

  CausalConv1dBackwardProblem problem;
  Cut cut;
  CUtensorMap maps[kSources];
  float* sums = nullptr;  // over the tokens of a CTA, [token_blocks,W+1,D]; null: not wanted

  constexpr const TokenTensor& source(int i) const {
    return i == 0 ? problem.forward.x : problem.d_out;
  }
};

struct StepParams {
  CausalConv1dStepProblem problem;
};

/// Launch the kernel of the problem's W, for threads of kChannels channels; `name` is the
/// variant's, for errors. Instantiated by instances.cuh.
template <class Element, int kChannels>
void launch_forward(const char* name, const ForwardParams& params, void* stream);
template <class Element, int kChannels>
void launch_backward(const char* name, const BackwardParams& params, void* stream);
template <class Element>
void launch_step(const char* name, const StepParams& params, void* stream);

}  // namespace tandem::cuda::causal_conv1d
