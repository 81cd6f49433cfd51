// The scan inside a block of 8 tokens, by the four lanes that hold a channel: two tokens each.
#pragma once

#include "cuda/linear_scan/carry.cuh"

namespace tandem::cuda::linear_scan {

/// What 8 tokens, two of each lane, do to a channel. kExact means what it does for apply() in
/// scan/map.cuh.
template <bool kExact>
struct BlockMaps {
  ScanMap left;   // of the lane to the left
  ScanMap front;  // of the first two lanes
  ScanMap back;   // of the last two lanes

  __device__ explicit BlockMaps(ScanMap own) {
    constexpr unsigned kWarp = 0xFFFFFFFFu;
    const auto of_lane = [](ScanMap map, int lane) {
      return ScanMap{__shfl_sync(kWarp, map.factor, lane, 4), __shfl_sync(kWarp, map.sum, lane, 4)};
    };
    left = lane_above(own);
    const ScanMap pair = compose<kExact>(left, own);  // of lanes 1 and 3
    front = of_lane(pair, 1);
    back = of_lane(pair, 3);
  }

  /// Moves `before` from before the block to behind it, and returns what is before the lane's
  /// tokens. `go_on(before, map)` applies or composes a map: `before` is a state, or a map.
  template <class Before, class GoOn>
  __device__ Before pass(Before& before, GoOn go_on) const {
    const int lane = threadIdx.x % 4;
    const Before middle = go_on(before, front);
    const Before half = select(lane >= 2, middle, before);
    before = go_on(middle, back);
    return select(lane % 2 == 1, go_on(half, left), half);
  }

 private:
  __device__ static float select(bool first, float a, float b) { return first ? a : b; }
  __device__ static ScanMap select(bool first, ScanMap a, ScanMap b) {
    return {first ? a.factor : b.factor, first ? a.sum : b.sum};
  }
};

}  // namespace tandem::cuda::linear_scan
