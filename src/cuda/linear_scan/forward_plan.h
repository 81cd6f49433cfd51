// How a call of linear_scan_forward is cut into tiles, and its workspace. Host only; pure functions
// of the shape and the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear_scan_problem.h"
#include "tandem/device.h"

namespace tandem::cuda {

/// Channels by tokens of a tile, and how tiles pass the state on.
enum class LinearScanTiling {
  kAlone,  // 64 x 64, no more tiles than multiprocessors
  kSmall,  // 64 x 64
  kChain,  // 128 x 256, one scan, each tile waits for the previous one
};

struct LinearScanTileShape {
  const char* name;
  int channels;
  int tokens;
  int ctas;         // per multiprocessor
  int group_tiles;  // LinearScanConfig::kGroupTiles
  bool chain;
};
LinearScanTileShape tile_shape(LinearScanTiling tiling);

/// The quickest tiling on a device, where every tiling can run.
LinearScanTiling choose_tiling(const LinearScanForwardProblem& problem,
                               const DeviceProperties& device);

/// Offsets into the workspace in bytes; all of it is cleared before the kernel.
struct LinearScanPlan {
  std::int64_t time_tiles = 0;
  std::int64_t channel_tiles = 0;
  std::int64_t tiles = 0;
  unsigned blocks = 1;
  std::size_t maps = 0;
  std::size_t states = 0;
  std::size_t ticket = 0;
  std::size_t workspace_bytes = 0;
};
LinearScanPlan plan_linear_scan(const LinearScanForwardProblem& problem, LinearScanTiling tiling,
                                const DeviceProperties& device);

}  // namespace tandem::cuda
