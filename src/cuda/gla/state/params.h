// What the kernels behind gla_state_forward and gla_state_backward receive.
#pragma once

#include <cuda.h>

#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// States and total log-decays of segments, each on its own; in a reverse walk the gradients by the
/// states before them, k being q and v d_o. `states` is [N,H,segments,K,V],
/// `total_log_decay` [N,H,segments].
struct StateParams {
  CUtensorMap k_map;
  CUtensorMap v_map;
  bool tma = false;  // the maps are set; else threads copy
  GlaRecurrence problem;
  float scale = 1.0f;  // factor of what a reverse walk adds
  int segments = 1;
  int segment_chunks = 0;  // of every segment but the last, in time; 0: by segment_begin_chunk
  // Of a segment only those chunks are read that the state behind it depends on
  // (common/remembered.cuh); what the others leave is 0, and the total then -inf.
  bool forgets = false;
  // A segment's state goes to the place of the one so many further; where there is none it is not
  // made, nor its total.
  int shift = 0;
  float* states = nullptr;
  float* total_log_decay = nullptr;
  int first_total = 0;  // segments before this one leave no total
};

/// Launches gla_state_kernel<Config>; `name` is the variant's, for errors. Instantiated by
/// state/instances.cuh.
template <class Config>
void launch_state(const char* name, const StateParams& params, void* stream);

/// States that segments of sequences add, and gradients by the states before them.
struct SegmentStatesParams {
  StateParams states;
  StateParams gradients;
};
/// Launches gla_segment_states_kernel; `name` is the variant's, for errors.
template <class Element, int kKeyDim, int kValueDim>
void launch_segment_states(const char* name, const SegmentStatesParams& params, void* stream);
using SegmentStatesLaunch = void (*)(const char* name, const SegmentStatesParams& params,
                                     void* stream);

/// What gla_state_combine_kernel makes of the states of segments.
struct StateCombineParams {
  std::int64_t sequence_heads = 0;  // N * H
  std::int64_t state_size = 0;      // K * V
  int segments = 1;
  const float* segment_states = nullptr;     // [N,H,segments,K,V]
  const float* segment_log_decay = nullptr;  // [N,H,segments]
  float* state = nullptr;                    // out [N,H,K,V]
  float* total_log_decay = nullptr;          // out [N,H]
};

/// Launches gla_state_combine_kernel behind launch_state on the same stream.
void launch_state_combine(const StateCombineParams& params, void* stream);

}  // namespace tandem::cuda::gla
