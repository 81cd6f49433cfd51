#include "cuda/scan/walk.cuh"

#include <cmath>
#include <limits>

#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"
#include "tests/parts/gpu_test.h"

namespace tandem::cuda::scan {
namespace {

constexpr int kWarps = 4;

/// kLanes threads beside each other have kChannels channels each of one token.
template <int kLanesOf, int kChannelsOf, bool kReverseOf>
struct Shape {
  static constexpr int kLanes = kLanesOf;
  static constexpr int kChannels = kChannelsOf;
  static constexpr bool kReverse = kReverseOf;
  static constexpr int kWidth = kLanes * kChannels;
  static constexpr int kWarpTokens = 32 / kLanes;
  static constexpr int kTileTokens = kWarps * kWarpTokens;
};

/// One chain, of ranks * steps tiles.
struct WalkParams {
  int ranks;
  int steps;
  const ScanMap* maps;   // [time][channel]
  const float* initial;  // [channel]
  float* states;         // [time][channel], each before its token
  float* warp_states;    // [time / kWarpTokens][channel], what pass_states visits
  float* final_states;   // [rank][channel]
};

template <class Shape>
__global__ void walk_chain(const __grid_constant__ WalkParams params) {
  constexpr int kChannels = Shape::kChannels, kWidth = Shape::kWidth;
  using Shared = WalkShared<kWarps, kWidth>;
  __shared__ alignas(16) unsigned char memory[sizeof(Shared)];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const int rank = blockIdx.x, warp = threadIdx.x / 32;
  const int column = threadIdx.x % Shape::kLanes * kChannels;
  start_walk(shared, params.ranks);
  follow_stream();
  join_walk(params.ranks);
  float carry = threadIdx.x < kWidth ? params.initial[threadIdx.x] : 0.0f;
  for (int step = 0; step < params.steps; ++step) {
    const int tile = step * params.ranks + rank;
    const int tiles = params.steps * params.ranks;
    const int begin = (Shape::kReverse ? tiles - 1 - tile : tile) * Shape::kTileTokens;
    const int at = (begin + static_cast<int>(threadIdx.x) / Shape::kLanes) * kWidth + column;
    ScanMap maps[kChannels];
    for (int j = 0; j < kChannels; ++j) maps[j] = params.maps[at + j];
    scan_warp<Shape::kLanes, Shape::kReverse>(maps, are_small(maps),
                                              &shared.warp_maps[warp][column]);
    __syncthreads();
    pass_states<Shape::kReverse>(shared, {params.ranks, rank, step}, carry,
                                 [&](int visited, float state) {
                                   const int group = begin / Shape::kWarpTokens + visited;
                                   params.warp_states[group * kWidth + threadIdx.x] = state;
                                 });
    __syncthreads();
    for (int j = 0; j < kChannels; ++j) {
      params.states[at + j] = apply(maps[j], shared.warp_states[warp][column + j]);
    }
  }
  if (threadIdx.x < kWidth) params.final_states[rank * kWidth + threadIdx.x] = carry;
}

/// By pass_tile, with the states of whole tiles for what they pass: [tile][channel].
template <class Shape>
__global__ void walk_tiles(const __grid_constant__ WalkParams params) {
  constexpr int kWidth = Shape::kWidth;
  using Shared = WalkShared<kWarps, kWidth>;
  __shared__ alignas(16) unsigned char memory[sizeof(Shared)];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const int rank = blockIdx.x, column = threadIdx.x;
  start_walk(shared, params.ranks);
  follow_stream();
  join_walk(params.ranks);
  float carry = column < kWidth ? params.initial[column] : 0.0f;
  for (int step = 0; step < params.steps; ++step) {
    const int tile = step * params.ranks + rank;
    for (int i = column; i < kWarps * kWidth; i += blockDim.x) {
      shared.warp_maps[i / kWidth][i % kWidth] = params.maps[tile * kWarps * kWidth + i];
    }
    __syncthreads();
    if (column < kWidth) {
      params.states[tile * kWidth + column] =
          pass_tile(shared, shared.warp_maps, {params.ranks, rank, step}, column, carry);
    }
    __syncthreads();
  }
  if (column < kWidth) params.final_states[rank * kWidth + column] = carry;
}

/// Maps whose walk fp32 computes exactly in any order: of factors of 1, -1 and, now and then, 0.
std::vector<ScanMap> exact_maps(int count, std::mt19937& generator) {
  std::vector<ScanMap> maps;
  for (int i = 0; i < count; ++i) {
    const int draw = generator() % 20;
    maps.push_back({draw == 0  ? 0.0f
                    : draw % 2 ? 1.0f
                               : -1.0f,
                    static_cast<float>(static_cast<int>(generator() % 201) - 100)});
  }
  return maps;
}

bool same(float got, float expected) {
  return std::isfinite(expected) ? got == expected : !std::isfinite(got);
}

class GpuScanWalk : public GpuPart {
 protected:
  /// The same walk, one token after the other.
  static void step_on(float& state, ScanMap map) {
    state = map.factor == 0 ? map.sum : map.factor * state + map.sum;
  }

  static LaunchShape cluster_of(int ranks) {
    const auto blocks = static_cast<unsigned>(ranks);
    return {.blocks = blocks, .threads = 32 * kWarps, .cluster = blocks};
  }

  template <class Shape>
  static void check(int ranks, int steps, const std::vector<ScanMap>& maps) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks of " << Shape::kWidth << " channels");
    constexpr int kWidth = Shape::kWidth;
    const int tokens = ranks * steps * Shape::kTileTokens;
    ASSERT_EQ(maps.size(), static_cast<std::size_t>(tokens) * kWidth);
    DeviceArray<ScanMap> in(maps);
    DeviceArray<float> initial(std::vector<float>(kWidth, 7.0f));
    DeviceArray<float> states(tokens * kWidth), final_states(ranks * kWidth);
    DeviceArray<float> warp_states(tokens / Shape::kWarpTokens * kWidth);
    launch_kernel("walk_chain", walk_chain<Shape>, cluster_of(ranks), nullptr,
                  {ranks, steps, in.device, initial.device, states.device, warp_states.device,
                   final_states.device});
    finish();
    states.download();
    warp_states.download();
    final_states.download();
    for (int channel = 0; channel < kWidth; ++channel) {
      float state = 7;
      for (int i = 0; i < tokens; ++i) {
        const int t = Shape::kReverse ? tokens - 1 - i : i;
        const int at = t * kWidth + channel;
        ASSERT_TRUE(same(states.host[at], state)) << "token " << t << ", channel " << channel
                                                  << ": " << states.host[at] << ", not " << state;
        if (i % Shape::kWarpTokens == 0) {
          ASSERT_TRUE(same(warp_states.host[t / Shape::kWarpTokens * kWidth + channel], state));
        }
        step_on(state, maps[at]);
      }
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_TRUE(same(final_states.host[rank * kWidth + channel], state)) << rank;
      }
    }
  }

  template <class Shape>
  static void check_ranks() {
    std::mt19937 generator(9);
    for (const int ranks : {1, 2, 4, 16}) {
      constexpr int kSteps = 5;
      const int count = ranks * kSteps * Shape::kTileTokens * Shape::kWidth;
      std::vector<ScanMap> maps = exact_maps(count, generator);
      check<Shape>(ranks, kSteps, maps);
      // What is not finite lasts until a factor of 0 forgets it.
      for (int i = 0; i < count / 100; ++i) {
        constexpr float kInf = std::numeric_limits<float>::infinity();
        constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
        maps[generator() % count].sum = i % 3 == 0 ? kNan : i % 3 == 1 ? kInf : -kInf;
      }
      check<Shape>(ranks, kSteps, maps);
    }
  }
};

TEST_F(GpuScanWalk, InTime) {
  check_ranks<Shape<1, 2, false>>();
  check_ranks<Shape<8, 4, false>>();
  check_ranks<Shape<16, 4, false>>();
  check_ranks<Shape<32, 2, false>>();
}

TEST_F(GpuScanWalk, FromTheLastTokenToTheFirst) {
  check_ranks<Shape<1, 2, true>>();
  check_ranks<Shape<8, 4, true>>();
  check_ranks<Shape<16, 4, true>>();
  check_ranks<Shape<32, 2, true>>();
}

TEST_F(GpuScanWalk, TilesAlone) {
  using Tiles = Shape<32, 2, false>;
  constexpr int kWidth = Tiles::kWidth, kSteps = 5;
  std::mt19937 generator(10);
  for (const int ranks : {1, 2, 16}) {
    const int tiles = ranks * kSteps;
    DeviceArray<ScanMap> maps(exact_maps(tiles * kWarps * kWidth, generator));
    DeviceArray<float> initial(std::vector<float>(kWidth, -2.0f));
    DeviceArray<float> states(tiles * kWidth), final_states(ranks * kWidth);
    launch_kernel(
        "walk_tiles", walk_tiles<Tiles>, cluster_of(ranks), nullptr,
        {ranks, kSteps, maps.device, initial.device, states.device, nullptr, final_states.device});
    finish();
    states.download();
    final_states.download();
    for (int channel = 0; channel < kWidth; ++channel) {
      float state = -2;
      for (int i = 0; i < tiles * kWarps; ++i) {
        if (i % kWarps == 0) {
          ASSERT_EQ(states.host[i / kWarps * kWidth + channel], state) << i;
        }
        step_on(state, maps.host[i * kWidth + channel]);
      }
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(final_states.host[rank * kWidth + channel], state) << rank;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cuda::scan
