// What causal_conv1d's kernels are launched with, and how a call is cut over the device.
#pragma once

#include <cstdint>

#include "ops/causal_conv1d_problem.h"

namespace tandem::cuda::causal_conv1d {

/// Threads of a CTA, and CTAs that a multiprocessor has registers for.
constexpr int kForwardThreads = 128, kForwardBlocks = 5;
constexpr int kBackwardThreads = 128, kBackwardBlocks = 3;

/// Tokens that a thread has on the way: of x, 64 bytes, or of x and of d_out each.
constexpr int forward_tokens(int element_bytes) { return 16 / element_bytes; }
constexpr int kBackwardTokens = 4;

/// Threads of a CTA that lie side by side, at most.
constexpr int kMostColumns = 32;

/// Neighbouring channels of a thread, where tensors are aligned: with more, taps, inputs and sums
/// do not fit its registers.
constexpr int kChannels = 4;

/// How tokens and channels are cut: a thread takes some neighbouring channels of a strip of tokens
/// of a batch row; a CTA `columns` threads side by side, of as many strips as it has room for.
struct Cut {
  int threads = 0;
  int columns = 32;
  int strip_tokens = 8;
  int strips_per_row = 0;
  std::int64_t strips = 0;
  int channel_blocks = 0;
  std::int64_t token_blocks = 0;
  std::int64_t state_blocks =
      0;  // CTAs that have a state's channels instead, a thread some of them

  constexpr std::int64_t blocks() const { return token_blocks * channel_blocks + state_blocks; }
  constexpr int strips_per_block() const { return threads / columns; }
};

/// Cuts a call for CTAs of so many threads of so many channels, of which some run at once;
/// `states`: whether there are CTAs that write states.
Cut cut_tokens(const CausalConv1dForwardProblem& problem, int threads, int channels, bool states,
               std::int64_t blocks_at_once);

struct ForwardParams {
  CausalConv1dForwardProblem problem;
  Cut cut;
};

struct BackwardParams {
  CausalConv1dBackwardProblem problem;
  Cut cut;
  // Sums over the tokens of a CTA, [token_blocks,D,W] and [token_blocks,D]; null: not wanted.
  float* weight_sums = nullptr;
  float* bias_sums = nullptr;
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
