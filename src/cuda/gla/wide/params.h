// A backward of heads whose K or V is wider than 128: the states at both ends of every span of 256
// tokens, then each gradient's blocks of 128 rows by up to 256 columns, by themselves
// (docs/ops/gla_backward_wide.md).
#pragma once

#include "cuda/gla/common/backward_maps.h"
#include "cuda/gla/wide/plan.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

struct WideDecay;  // wide/decay.cuh

/// Heads here are the launch's: `heads` of B * H, from `first_head` on. States from one kernel to
/// the other are, per head, span and 64 columns of V, two panels per part of K of 64 x 64 values of
/// 16 bits [V,K], side by side along K, in the layout of shared memory (parts/panel.cuh).
struct WideBackwardParams : BackwardMaps {
  GlaBackwardProblem problem;
  int first_head = 0;
  int heads = 0;
  int spans = 0;         // per sequence
  int value_panels = 0;  // of 64 columns of V
  int key_parts = 0;     // of kWideKeys columns of K
  int multiprocessors = 1;
  WideDecay* decays = nullptr;      // [heads,spans,4]
  char* states = nullptr;           // S before each span
  char* state_gradients = nullptr;  // dS behind it, without the decay of the token there
  // For the gradient by the decays; null: not wanted.
  float* query_rows = nullptr;      // [heads,spans,256]: q . dq
  float* key_rows = nullptr;        // the same of k . dk
  float* key_state_rows = nullptr;  // and of what dk has from dS
  float* decay_sums = nullptr;      // [B,H,spans], of a constant decay

  /// Bytes of a span's state of a head.
  constexpr std::int64_t state_bytes() const {
    return std::int64_t{value_panels} * columns() * (64 * 2);
  }
  /// Of a gradient that a CTA makes at a time.
  constexpr int columns() const { return key_parts * kWideKeys; }
  constexpr int kinds() const { return wide_kinds(value_panels, key_parts); }
};

/// Launches gla_wide_states_kernel and gla_wide_gradients_kernel; `name` is the variant's, for
/// errors. Instantiated by wide/instances.cuh.
template <class Element>
void launch_wide_backward(const char* name, const WideBackwardParams& params, void* stream);
using WideBackwardLaunch = void (*)(const char* name, const WideBackwardParams& params,
                                    void* stream);

/// Makes `decays`.
void launch_wide_decays(const WideBackwardParams& params, void* stream);

/// Makes d_log_decay, or `decay_sums` of a constant decay, of what the other kernels left.
void launch_wide_decay_gradient(const WideBackwardParams& params, void* stream);

}  // namespace tandem::cuda::gla
