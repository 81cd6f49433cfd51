// The scan inside a block of 8 tokens, by the four lanes that hold a channel: two tokens each.
#pragma once

#include "cuda/linear_scan/carry.cuh"

namespace tandem::cuda {

/// What 8 tokens, two of each lane, do to a channel. kExact: as of apply() in scan/map.cuh.
template <bool kExact>
struct BlockMaps {
  ScanMap left;   // the lane's to the left
  ScanMap front;  // the first two lanes'
  ScanMap back;   // the last two lanes'

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

  /// `before` the block becomes what is behind it; returned: what is before the lane's tokens.
  /// `go_on(before, map)` for a state, or for a map.
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

}  // namespace tandem::cuda
