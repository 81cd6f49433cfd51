// The load roles of linear_scan_forward_kernel: tickets, W and u by 64 columns, then decays and
// gates; what a tile's tokens are; states of empty sequences.
#pragma once

#include "cuda/linear_scan/forward_shared.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::linear_scan {

/// Panels of a stage that are loaded, of decays, gates or both. As many for every tile: panels
/// outside the tensors are loaded as zeros.
template <class Config>
__device__ int panels_of_stage(int stage, bool with_gate) {
  constexpr int kPerStage = Config::kPanelRowsPerStage * Config::kWarpgroups;
  constexpr int kOfKind = Config::kTokenPanels * Config::kWarpgroups;
  return max(min((with_gate ? 2 : 1) * kOfKind - stage * kPerStage, kPerStage), 0);
}

/// Takes the tiles of this CTA, one ahead of the ring. One thread. With a tile for each CTA, takes
/// the one of its own index; else by ticket, so that a tile's CTA runs whenever a later tile's
/// does. The next ticket is under way while a tile is loaded.
template <class Config, class UseTile>
__device__ void take_tiles(const ForwardParams& params, ForwardShared<Config>& shared,
                           UseTile use_tile) {
  typename ForwardShared<Config>::TileRing::Position at;
  const bool by_ticket = params.tiles > static_cast<int>(gridDim.x);
  const auto next = [&] {
    return by_ticket ? atomicAdd(params.exchange.ticket, 1u) + 1 : gridDim.x;
  };
  unsigned index = by_ticket ? next() : blockIdx.x;
  while (true) {
    shared.tile_ring.wait_empty(at);
    shared.tickets[at.stage] = index;
    shared.ticket_ring.full[at.stage].arrive();
    at.advance();
    const Tile tile = find_tile(params, index, Config::kChannels);
    if (tile.batch == Tile::kNone) return;
    const unsigned following = next();
    use_tile(tile);
    index = following;
  }
}

/// Loads all tiles. One thread.
template <class Config>
__device__ void load_tiles(const ForwardParams& params, ForwardShared<Config>& shared) {
  const LinearScanForwardProblem& problem = params.problem;
  const int k_steps = (problem.d + 63) / 64;
  const bool with_gate = problem.gate.data != nullptr;
  typename ForwardShared<Config>::StageRing::Position at;
  take_tiles(params, shared, [&](const Tile& tile) {
    const int time = tile.time_tile * Config::kTokens;
    for (int k = 0; k < k_steps; ++k, at.advance()) {
      shared.ring.wait_empty(at);
      Barrier& full = shared.ring.full[at.stage];
      char* stage = shared.stages[at.stage];
      full.arrive_and_expect(Config::kStageBytes);
      load_panel(params.weight_map, full, stage, {64 * k, 0, tile.first_channel, 0});
      load_panel(params.u_map, full, stage + Config::kWeightBytes, {64 * k, 0, time, tile.batch});
    }
    for (int s = 0; s < Config::kPanelStages; ++s, at.advance()) {
      shared.ring.wait_empty(at);
      Barrier& full = shared.ring.full[at.stage];
      const int first = s * Config::kPanelRowsPerStage * Config::kWarpgroups;
      const int panels = panels_of_stage<Config>(s, with_gate);
      full.arrive_and_expect(panels * panel_bytes(64));
      for (int i = 0; i < panels; ++i) {
        const int row = (first + i) / Config::kWarpgroups;
        load_panel(row < Config::kTokenPanels ? params.decay_map : params.gate_map, full,
                   shared.stages[at.stage] + i * panel_bytes(64),
                   {tile.first_channel + i % Config::kWarpgroups * 64, 0,
                    time + row % Config::kTokenPanels * 64, tile.batch});
      }
    }
  });
}

/// Stores panels of a kind, of a warpgroup of a tile whose panels begin at a stage, by TMA, where
/// they lie inside of the tensor. One thread.
template <class Config>
__device__ void store_panels(const ForwardParams& params, const ForwardShared<Config>& shared,
                             const CUtensorMap& map, int kind, const Tile& tile, int first_stage,
                             int warpgroup, int begin, int end) {
  const int channel = tile.first_channel + 64 * warpgroup;
  for (int token_panel = begin; token_panel < end && channel < params.problem.D; ++token_panel) {
    const int time = tile.time_tile * Config::kTokens + 64 * token_panel;
    if (time >= params.problem.T) break;
    const PanelPlace<Config> place(kind, token_panel, warpgroup);
    const int stage = first_stage + place.stage;
    const char* panel =
        shared.stages[stage < Config::kStages ? stage : stage - Config::kStages] + place.offset;
    store_panel(map, panel, {channel, 0, time, tile.batch});
  }
}

/// Stores x of a tile by TMA, panel by panel as the scan fills them, and gives back the stages that
/// hold nothing else. One thread.
template <class Config>
__device__ void store_kept_x(const ForwardParams& params, ForwardShared<Config>& shared,
                             const Tile& tile, int slot, std::uint32_t parity,
                             typename ForwardShared<Config>::StageRing::Position at) {
  const int first_stage = at.stage;
  for (int token_panel = 0; token_panel < Config::kTokenPanels; ++token_panel) {
    for (int i = 0; i < Config::kWarpgroups; ++i) {
      shared.x_ready[slot][i][token_panel].wait(parity);
      if (!tile.plain || params.problem.x.data == nullptr) continue;
      store_panels(params, shared, params.x_map, 0, tile, first_stage, i, token_panel,
                   token_panel + 1);
    }
    if ((token_panel + 1) % Config::kPanelRowsPerStage == 0 &&
        token_panel / Config::kPanelRowsPerStage < Config::kDecayStages) {
      wait_stores_read();
      shared.ring.empty[at.stage].arrive();
      at.advance();
    }
  }
}

/// Stores the outputs of each tile by TMA, as soon as they are in their panels, and x where it is
/// kept. One thread.
template <class Config>
__device__ void store_outputs(const ForwardParams& params, ForwardShared<Config>& shared) {
  const int k_steps = (params.problem.d + 63) / 64;
  typename ForwardShared<Config>::StageRing::Position at;
  typename ForwardShared<Config>::TileRing::Position slot;
  while (true) {
    shared.tile_ring.wait_full(slot);
    const Tile tile = shared.tiles[slot.stage];
    if (tile.batch == Tile::kNone) return;
    for (int k = 0; k < k_steps; ++k) at.advance();
    const int first_stage = at.stage;
    if constexpr (Config::kKeeps) {
      store_kept_x(params, shared, tile, slot.stage, slot.parity, at);
    }
    for (int i = 0; i < Config::kWarpgroups; ++i) {
      shared.outputs_ready[slot.stage][i].wait(slot.parity);
      store_panels(params, shared, params.out_map, 1, tile, first_stage, i, 0,
                   Config::kTokenPanels);
    }
    wait_stores_read();
    for (int s = 0; s < Config::kPanelStages; ++s, at.advance()) {
      if (s >= Config::kDecayStages) shared.ring.empty[at.stage].arrive();
    }
    shared.tile_ring.empty[slot.stage].arrive();
    slot.advance();
  }
}

/// Finds out what the tokens of each tile are. One warp.
template <class Config>
__device__ void look_at_tokens(const ForwardParams& params, ForwardShared<Config>& shared) {
  const LinearScanForwardProblem& problem = params.problem;
  const ScanSequences sequences{problem.cu_seqlens, static_cast<int>(problem.N),
                                static_cast<int>(problem.T)};
  const int lane = threadIdx.x % 32;
  typename ForwardShared<Config>::TileRing::Position at;
  while (true) {
    shared.ticket_ring.wait_full(at);
    Tile tile = find_tile(params, shared.tickets[at.stage], Config::kChannels);
    const bool exists = tile.batch != Tile::kNone;
    if (exists) {
      const int time = tile.time_tile * Config::kTokens;
      const bool ends = problem.final_state != nullptr;
      tile.plain = true;
      const bool inside =
          problem.cu_seqlens == nullptr && sequences.T - time - (ends ? 1 : 0) >= Config::kTokens;
      for (int i = lane; i < Config::kTokens && !inside; i += 32) {
        const TokenKind kind = kind_of_token(sequences, tile.batch, time + i, ends);
        shared.tokens[at.stage][i] = kind;
        if (kind.first != TokenKind::kInside || kind.last != TokenKind::kInside) {
          tile.plain = false;
        }
      }
      tile.plain = __all_sync(0xFFFFFFFFu, tile.plain);
    }
    if (lane == 0) shared.tiles[at.stage] = tile;
    shared.tile_ring.full[at.stage].arrive();
    at.advance();
    if (!exists) return;
  }
}

/// Passes the states of empty sequences on: what goes in comes out. One warp per CTA.
template <class Config>
__device__ void pass_empty_sequences(const LinearScanForwardProblem& problem) {
  if (problem.final_state == nullptr) return;
  if (problem.cu_seqlens == nullptr && problem.T > 0) return;
  const ScanSequences sequences{problem.cu_seqlens, static_cast<int>(problem.N),
                                static_cast<int>(problem.T)};
  for (std::int64_t n = blockIdx.x; n < problem.N; n += gridDim.x) {
    const int i = static_cast<int>(n);
    const bool empty = problem.cu_seqlens == nullptr ||
                       sequence_boundary(sequences, i + 1) <= sequence_boundary(sequences, i);
    if (!empty) continue;
    for (int channel = threadIdx.x % 32; channel < problem.D; channel += 32) {
      const std::int64_t j = n * problem.D + channel;
      problem.final_state[j] = problem.initial_state ? problem.initial_state[j] : 0.0f;
    }
  }
}

}  // namespace tandem::cuda::linear_scan
