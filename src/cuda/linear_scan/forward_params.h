// What linear_scan_forward_kernel receives: the checked problem, its tiles, what tiles tell each
// other, and the tensor maps.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

#include "ops/linear_scan_problem.h"

namespace tandem::cuda::linear_scan {

/// Memory through which tiles pass states on; all bits are set before the kernel.
struct Exchange {
  float2* maps = nullptr;           // (column, tile in time, channel): a tile's map
  float* states = nullptr;          // (column, tile group, channel): the state after the group
  std::uint32_t* ticket = nullptr;  // tiles taken so far, less 1
};

struct ForwardParams {
  CUtensorMap u_map;
  CUtensorMap weight_map;
  CUtensorMap decay_map;
  CUtensorMap gate_map;  // where there is a gate
  CUtensorMap out_map;
  CUtensorMap x_map;  // where x is kept
  LinearScanForwardProblem problem;
  int time_tiles = 0;     // of kTokens, per batch row
  int channel_tiles = 0;  // of kChannels
  int columns = 0;        // tiles that begin at one time: of all batch rows and channels
  int tiles = 0;          // (time, batch, channels) from the outermost axis
  Exchange exchange;
};

/// Launches linear_scan_forward_kernel<Config> on `blocks` CTAs; `name` is the variant's, for
/// errors. Instantiated in forward_instances.cuh.
template <class Config>
void launch_forward(const char* name, const ForwardParams& params, unsigned blocks, void* stream);

/// Sets all bits of a multiple of 16 bytes, by at most four CTAs per multiprocessor.
void launch_clear(void* memory, std::int64_t bytes, int multiprocessors, void* stream);

}  // namespace tandem::cuda::linear_scan
