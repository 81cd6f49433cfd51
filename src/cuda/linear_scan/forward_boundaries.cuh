// Where sequences begin and end inside a tile of linear_scan_forward_kernel. The scan itself knows
// no boundaries: before it, the tile's decays, gates and x are changed so that one uninterrupted
// scan gives every sequence's states. Boundaries are rare, so the code is kept small, not quick.
#pragma once

#include "cuda/linear_scan/forward_shared.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/scan/map.cuh"

namespace tandem::cuda::linear_scan {

/// One tile as a thread of the scan role sees it: 64 channels, 16 for each warp. Lane (g, c) has
/// channels g and g + 8 of the warp's, and tokens 2c and 2c + 1 of every 8.
template <class Config>
struct ThreadTile {
  using Element = typename Config::Element;
  using Position = typename ForwardShared<Config>::StageRing::Position;

  const ForwardParams& params;
  ForwardShared<Config>& shared;
  Tile tile;
  const TokenKind* tokens;  // of the tile
  int warpgroup;            // warpgroup, which has 64 channels
  int slot;                 // of the ring of tiles
  int channel;              // this lane's first one; the other is 8 further
  int panel_stage;          // first stage of the ring that holds panels

  __device__ char* panel(int kind, int token_panel) const {
    const PanelPlace<Config> place(kind, token_panel, warpgroup);
    const int stage = panel_stage + place.stage;
    return shared.stages[stage < Config::kStages ? stage : stage - Config::kStages] + place.offset;
  }
  /// Returns the first token that this lane has in 8-token block `block`.
  __device__ int token(int block) const { return fragment_column(block); }
  __device__ int time() const { return tile.time_tile * Config::kTokens; }
};

/// Returns a decay of the tile in shared memory.
template <class Config>
__device__ typename Config::Element& decay_element(const ThreadTile<Config>& t, int token,
                                                   int channel) {
  return *reinterpret_cast<typename Config::Element*>(
      t.panel(0, token / 64) + panel_offset(token % 64, channel / 8) + channel % 8 * 2);
}

/// Returns a token's decay as a factor; `channel` counts among the warpgroup's 64.
template <class Config>
__device__ float decay_factor(const ThreadTile<Config>& t, int token, int channel) {
  const float stored = static_cast<float>(decay_element(t, token, channel));
  return t.params.problem.log_decay ? fast_exp2(stored * kLog2E) : stored;
}

/// Makes a token's decay 0, so that it forgets what was before.
template <class Config>
__device__ void forget_before(const ThreadTile<Config>& t, int token, int channel) {
  const float zero = t.params.problem.log_decay ? __uint_as_float(0xFF800000u) : 0.0f;
  decay_element(t, token, channel) = static_cast<typename Config::Element>(zero);
}

/// Calls use(token, kind) for the tokens of a tile where `concerns(kind)`, in all lanes.
template <class Config, class Concerns, class Use>
__device__ void for_each_boundary(const ThreadTile<Config>& t, Concerns concerns, Use use) {
  for (int begin = 0; begin < Config::kTokens; begin += 32) {
    const TokenKind own = t.tokens[begin + threadIdx.x % 32];
    unsigned left = __ballot_sync(0xFFFFFFFFu, concerns(own));
    while (left != 0) {
      const int token = begin + __ffs(static_cast<int>(left)) - 1;
      left &= left - 1;
      use(token, t.tokens[token]);
    }
  }
}

/// Clears x, gate and decay of tokens of no sequence, so that their states and outputs are 0.
template <class Config>
__device__ void clear_outside(const ThreadTile<Config>& t, float (&acc)[Config::kTokens / 2]) {
  const bool clears_gates = t.params.problem.gate.data != nullptr;
  const int warp_channel = threadIdx.x % 128 / 32 * 16;
  for (int token = threadIdx.x % 32; token < Config::kTokens; token += 32) {
    if (t.tokens[token].first != TokenKind::kOutside) continue;
    for (int i = 0; i < 16; ++i) forget_before(t, token, warp_channel + i);
    for (int i = 0; clears_gates && i < 2; ++i) {
      *reinterpret_cast<uint4*>(t.panel(1, token / 64) +
                                panel_offset(token % 64, warp_channel / 8 + i)) = uint4{};
    }
  }
#pragma unroll
  for (int i = 0; i < Config::kTokens / 2; ++i) {
    if (t.tokens[t.token(i / 4) + i % 2].first == TokenKind::kOutside) acc[i] = 0.0f;
  }
}

/// Makes first tokens take in their sequence's initial state and forget what was before.
template <class Config>
__device__ void begin_sequences(const ThreadTile<Config>& t, float (&acc)[Config::kTokens / 2]) {
  const LinearScanForwardProblem& problem = t.params.problem;
  clear_outside(t, acc);
  const auto begins = [](TokenKind kind) { return kind.first >= 0; };
  for_each_boundary(t, begins, [&](int token, TokenKind kind) {
    const bool own = token % 8 / 2 == threadIdx.x % 4;
    float taken[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int channel = t.channel + 8 * r;
      if (own && problem.initial_state != nullptr && channel < problem.D) {
        taken[r] = apply({decay_factor(t, token, fragment_row() + 8 * r), 0.0f},
                         problem.initial_state[std::int64_t{kind.first} * problem.D + channel]);
      }
      if (own) forget_before(t, token, fragment_row() + 8 * r);
    }
#pragma unroll
    for (int i = 0; i < Config::kTokens / 2; ++i) {
      if (own && i / 4 == token / 8 && i % 2 == token % 2) acc[i] += taken[i / 2 % 2];
    }
  });
  fence_shared_for_async_proxy();  // TMA loads over what was stored here later
  __syncwarp();
}

/// Stores the states behind last tokens as final states.
template <class Config>
__device__ void end_sequences(const ThreadTile<Config>& t,
                              const float (&states)[Config::kTokens / 2]) {
  const LinearScanForwardProblem& problem = t.params.problem;
  const auto ends = [](TokenKind kind) { return kind.last >= 0; };
  for_each_boundary(t, ends, [&](int token, TokenKind kind) {
    float state[2] = {};
#pragma unroll
    for (int i = 0; i < Config::kTokens / 2; ++i) {
      if (i / 4 == token / 8 && i % 2 == token % 2) state[i / 2 % 2] = states[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int channel = t.channel + 8 * r;
      if (token % 8 / 2 == threadIdx.x % 4 && channel < problem.D) {
        problem.final_state[std::int64_t{kind.last} * problem.D + channel] = state[r];
      }
    }
  });
}

}  // namespace tandem::cuda::linear_scan
