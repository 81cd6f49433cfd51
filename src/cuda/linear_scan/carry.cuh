// How the state before a tile comes out of the tiles before it, warp by warp. A warp has 16
// channels, of which lane (g, c) = (lane / 4, lane % 4) holds g and g + 8, as in an accumulator.
//
// A record is its own flag: memory of set bits is "not there yet", no value is stored as such, and
// a record is written and read as a whole. So no fences, and a value is there one trip through the
// L2 after it was stored.
//
// Sums have one order: kGroupTiles consecutive tiles of a column are a tile group. The state before
// a tile is the earlier maps of its tile group, composed in quarters, applied to the state after
// the previous tile group, which that group's last tile stores.
#pragma once

#include "cuda/linear_scan/forward_params.h"
#include "cuda/scan/map.cuh"

namespace tandem::cuda::linear_scan {

using namespace scan;

constexpr std::uint32_t kNotThere = 0xFFFFFFFFu;

/// Values of channels g and g + 8.
struct ChannelPair {
  float value[2];
};

__device__ inline float storable(float value) {
  return __float_as_uint(value) == kNotThere ? __uint_as_float(0x7FFFFFFFu) : value;
}

__device__ inline void put(float* to, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(storable(value)) : "memory");
}
__device__ inline void put(float2* to, ScanMap map) {
  const std::uint64_t bits = static_cast<std::uint64_t>(__float_as_uint(map.sum)) << 32 |
                             __float_as_uint(storable(map.factor));
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(bits) : "memory");
}

__device__ inline float try_get(const float* from) {
  float value;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}
/// Two records side by side, of channels g and g + 8, each with its flag.
struct MapPairBits {
  std::uint64_t bits[2];

  __device__ bool there() const {
    return static_cast<std::uint32_t>(bits[0]) != kNotThere &&
           static_cast<std::uint32_t>(bits[1]) != kNotThere;
  }
  __device__ ScanMap map(int row) const {
    return {__uint_as_float(static_cast<std::uint32_t>(bits[row])),
            __uint_as_float(static_cast<std::uint32_t>(bits[row] >> 32))};
  }
};
__device__ inline MapPairBits try_get(const float2* from) {
  MapPairBits pair;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(pair.bits[0]), "=l"(pair.bits[1])
               : "l"(from)
               : "memory");
  return pair;
}

__device__ inline ChannelPair try_states(const float* of_warp) {
  const int channel = threadIdx.x % 32 / 4;
  return {try_get(of_warp + channel), try_get(of_warp + channel + 8)};
}
/// Waits for the states that try_states() did not find.
__device__ inline void wait_states(const float* of_warp, ChannelPair& state) {
  const int channel = threadIdx.x % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    while (__float_as_uint(state.value[r]) == kNotThere) {
      state.value[r] = try_get(of_warp + channel + 8 * r);
    }
  }
  __syncwarp();
}

/// Publishes a warp's states. The four lanes of a channel hold the same values; one stores them.
__device__ inline void put_states(float* of_warp, ChannelPair state) {
  if (threadIdx.x % 4 != 0) return;
  const int channel = threadIdx.x % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) put(of_warp + channel + 8 * r, state.value[r]);
}

/// Returns the map of the lane before this one.
__device__ inline ScanMap lane_above(ScanMap map) {
  constexpr unsigned kWarp = 0xFFFFFFFFu;
  return {__shfl_up_sync(kWarp, map.factor, 1), __shfl_up_sync(kWarp, map.sum, 1)};
}

/// Returns the maps of four neighbouring lanes composed in their order, in each of the four.
__device__ inline ScanMap compose_lanes(ScanMap own) {
  constexpr unsigned kWarp = 0xFFFFFFFFu;
  const auto of_lane = [](ScanMap map, int lane) {
    return ScanMap{__shfl_sync(kWarp, map.factor, lane, 4), __shfl_sync(kWarp, map.sum, lane, 4)};
  };
  const ScanMap pair = compose(lane_above(own), own);  // of lanes 1 and 3
  return compose(of_lane(pair, 1), of_lane(pair, 3));
}

/// Where a warp's records of one column are.
struct ColumnRecords {
  float2* maps;   // of the column's first tile
  float* states;  // of the column's first tile group
  int channels;   // stride from tile to tile, from tile group to tile group
};

/// Composes the maps of tile `time`'s tile group before that tile, of both channels. Missing maps
/// are polled all at once, since one trip through the L2 for each would be a chain of trips; with
/// `patient` one at a time, since polling takes issue slots from the multiprocessor's other CTA.
template <int kGroupTiles>
__device__ void fold_maps(const ColumnRecords& records, int time, bool patient, ScanMap (&all)[2]) {
  constexpr int kEach = kGroupTiles / 4;
  const int lane = threadIdx.x % 32;
  const int first = time / kGroupTiles * kGroupTiles + lane % 4 * kEach;
  const int count = min(max(time - first, 0), kEach);
  const float2* from = records.maps + std::int64_t{first} * records.channels + lane / 4 * 2;
  MapPairBits found[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (i < count) found[i] = try_get(from + i * records.channels);
  }
  const auto add = [&](int i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) all[r] = compose(all[r], found[i].map(r));
  };
  if (patient) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= count) break;
      while (!found[i].there()) found[i] = try_get(from + i * records.channels);
      add(i);
    }
  } else {
    for (bool missing = true; missing;) {
      missing = false;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i < count && !found[i].there()) {
          found[i] = try_get(from + i * records.channels);
          missing = true;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= count) break;
      add(i);
    }
  }
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 2; ++r) all[r] = compose_lanes(all[r]);
}

/// Publishes a tile's maps; nobody waits for those of the last tile of a tile group.
__device__ inline void put_maps(const ColumnRecords& records, int time, const ScanMap (&maps)[2]) {
  if (threadIdx.x % 4 != 0) return;
  float2* to = records.maps + std::int64_t{time} * records.channels + threadIdx.x % 32 / 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) put(to + r, maps[r]);
}

}  // namespace tandem::cuda::linear_scan
