// Shared memory of linear_scan_forward_kernel, and what its roles know of a tile.
#pragma once

#include "cuda/linear_scan/forward_params.h"
#include "cuda/linear_scan/tokens.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::linear_scan {

struct Tile {
  static constexpr int kNone = -1;

  int batch = kNone;  // kNone: there are no more tiles
  int time_tile = 0;
  int first_channel = 0;
  int column = 0;      // (batch, tile of channels)
  bool plain = false;  // every token belongs to a sequence, and no boundary needs care
};

/// Finds tile `index`. Tiles that begin later in time come later, whatever their column: a CTA that
/// waits for a state waits for a tile that some CTA has already taken.
__device__ inline Tile find_tile(const ForwardParams& params, unsigned index, int channels) {
  Tile tile;
  if (index >= static_cast<unsigned>(params.tiles)) return tile;
  const unsigned columns = params.columns, channel_tiles = params.channel_tiles;
  tile.time_tile = static_cast<int>(index / columns);
  const unsigned column = index % columns;
  tile.column = static_cast<int>(column);
  tile.batch = static_cast<int>(column / channel_tiles);
  tile.first_channel = static_cast<int>(column % channel_tiles) * channels;
  return tile;
}

template <class Config>
struct ForwardShared {
  using StageRing = Ring<Config::kStages>;
  using TileRing = Ring<Config::kTileSlots>;

  alignas(1024) char stages[Config::kStages][Config::kStageBytes];
  TokenKind tokens[Config::kTileSlots][Config::kTokens];
  Tile tiles[Config::kTileSlots];
  unsigned tickets[Config::kTileSlots];
  StageRing ring;
  TileRing ticket_ring;  // load thread -> the warp that looks at tokens
  TileRing tile_ring;    // that warp -> the scan, the thread that stores
  // x in a panel of decays, outputs in all panels of gates.
  Barrier x_ready[Config::kTileSlots][Config::kWarpgroups][Config::kTokenPanels];
  Barrier outputs_ready[Config::kTileSlots][Config::kWarpgroups];
};

/// Arrivals that give a stage back beside those of the scan's threads: one of the thread that
/// stores, where the stage holds outputs or a kept x, else one more of a scan thread.
constexpr int kStoreArrivals = 1;

/// Where panel (kind, tokens [64 token_panel, + 64), channels of a warpgroup) lies: its stage,
/// counted from the tile's first stage with panels, and its offset there.
template <class Config>
struct PanelPlace {
  int stage;
  int offset;

  __device__ PanelPlace(int kind, int token_panel, int warpgroup) {
    const int row = kind * Config::kTokenPanels + token_panel;
    stage = row / Config::kPanelRowsPerStage;
    offset = (row % Config::kPanelRowsPerStage * Config::kWarpgroups + warpgroup) * panel_bytes(64);
  }
};

}  // namespace tandem::cuda::linear_scan
