// Where sequences begin and end inside a tile of linear_scan_forward_kernel. The scan itself knows
// nothing of it: before it, the tile's decays, gates and x are changed so that one uninterrupted
// scan gives every sequence's states. Rare, so the code is kept small, not quick.
#pragma once

#include "cuda/linear_scan/forward_shared.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/scan/map.cuh"

namespace tandem::cuda {

/// One tile as a thread of the scan role sees it. Of its 64 channels a warp has 16, lane (g, c)
/// g and g + 8; of every 8 tokens lane (g, c) has 2c and 2c + 1.
template <class Config>
struct ScanTile {
  using Element = typename Config::Element;
  using Position = typename LinearScanShared<Config>::StageRing::Position;

  const LinearScanForwardParams& params;
  LinearScanShared<Config>& shared;
  LinearScanTile tile;
  const TokenKind* tokens;  // of the tile
  int group;                // of 64 channels
  int channel;              // this lane's first one; the other is 8 further
  int panel_stage;          // of the ring, the first with panels

  __device__ char* panel(int kind, int part) const {
    const PanelPlace<Config> place(kind, part, group);
    const int stage = panel_stage + place.stage;
    return shared.stages[stage < Config::kStages ? stage : stage - Config::kStages] + place.offset;
  }
  /// Of the first token of 8-token block `block` that this lane has.
  __device__ int token(int block) const { return fragment_column(block); }
  __device__ int time() const { return tile.time_tile * Config::kTokens; }
};

/// Where a decay of the tile lies in shared memory.
template <class Config>
__device__ typename Config::Element& decay_element(const ScanTile<Config>& t, int token,
                                                   int channel) {
  return *reinterpret_cast<typename Config::Element*>(
      t.panel(0, token / 64) + panel_offset(token % 64, channel / 8) + channel % 8 * 2);
}

/// The factor of a token's decay; `channel` of the group's 64.
template <class Config>
__device__ float decay_factor(const ScanTile<Config>& t, int token, int channel) {
  if constexpr (Config::kGeneral) {
    return t.shared.decays[token][channel];
  } else {
    const float stored = static_cast<float>(decay_element(t, token, channel));
    return t.params.problem.log_decay ? fast_exp2(stored * kLog2E) : stored;
  }
}

/// Makes the factor 0.
template <class Config>
__device__ void forget_before(const ScanTile<Config>& t, int token, int channel) {
  if constexpr (Config::kGeneral) {
    t.shared.decays[token][channel] = 0.0f;
  } else {
    const float zero = t.params.problem.log_decay ? __uint_as_float(0xFF800000u) : 0.0f;
    decay_element(t, token, channel) = static_cast<typename Config::Element>(zero);
  }
}

/// Calls use(token, kind) for the tokens of a tile where `concerns(kind)`, in all lanes.
template <class Config, class Concerns, class Use>
__device__ void for_each_boundary(const ScanTile<Config>& t, Concerns concerns, Use use) {
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

/// Tokens of no sequence: x, gate and decay become 0, so that states and outputs are.
template <class Config>
__device__ void clear_outside(const ScanTile<Config>& t, float (&acc)[Config::kTokens / 2]) {
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

/// First tokens take their sequence's initial state in, and forget what was before.
template <class Config>
__device__ void begin_sequences(const ScanTile<Config>& t, float (&acc)[Config::kTokens / 2]) {
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
  fence_shared_for_async_proxy();  // what was stored here is loaded over later
  __syncwarp();
}

/// The states behind last tokens are final states.
template <class Config>
__device__ void end_sequences(const ScanTile<Config>& t,
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

}  // namespace tandem::cuda
