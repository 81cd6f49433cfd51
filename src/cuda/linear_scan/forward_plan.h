// How a call of linear_scan_forward is cut into tiles, and its workspace. Host only; pure functions
// of the shape and the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear_scan_problem.h"
#include "tandem/device.h"

namespace tandem::cuda::linear_scan {

/// Channels by tokens of a tile, and how tiles pass the state on.
enum class Tiling {
  kAlone,     // 64 x 64, no more tiles than multiprocessors
  kSmall,     // 64 x 64
  kChain,     // 128 x 256, one scan, each tile waits for the previous one
  kComposed,  // no tiles: a product and a scan of its own (composed.h)
};

struct TileShape {
  const char* name;
  int channels;
  int tokens;
  int ctas;         // per multiprocessor
  int group_tiles;  // ForwardConfig::kGroupTiles
  bool chain;
};
TileShape tile_shape(Tiling tiling);

/// Predicted microseconds; infinity where a tiling is not to be used.
double predict(const LinearScanForwardProblem& problem, Tiling tiling,
               const DeviceProperties& device);

/// The quickest tiling on a device, where every tiling can run.
Tiling choose_tiling(const LinearScanForwardProblem& problem, const DeviceProperties& device);

/// Offsets into the workspace in bytes; all of it is cleared before the kernel.
struct ForwardPlan {
  std::int64_t time_tiles = 0;
  std::int64_t channel_tiles = 0;
  std::int64_t tiles = 0;
  unsigned blocks = 1;
  std::size_t maps = 0;
  std::size_t states = 0;
  std::size_t ticket = 0;
  std::size_t workspace_bytes = 0;
};
ForwardPlan plan_forward(const LinearScanForwardProblem& problem, Tiling tiling,
                         const DeviceProperties& device);

}  // namespace tandem::cuda::linear_scan
