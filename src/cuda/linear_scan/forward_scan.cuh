// The scan role of linear_scan_forward_kernel: x of 64 channels by the tile's tokens as one
// product, the scan on its accumulator, gates, outputs.
#pragma once

#include "cuda/linear_scan/carry.cuh"
#include "cuda/linear_scan/forward_shared.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"

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
  char* panel_stages[Config::kPanelStages];

  __device__ char* panel(int kind, int part) const {
    const PanelPlace<Config> place(kind, part, group);
    return panel_stages[place.stage] + place.offset;
  }
  /// Of the first token of 8-token block `block` that this lane has.
  __device__ int token(int block) const { return fragment_column(block); }
  __device__ int time() const { return tile.time_tile * Config::kTokens; }
};

/// acc = W u^T, [channels, tokens].
template <class Config>
__device__ void project(float (&acc)[Config::kTokens / 2], LinearScanShared<Config>& shared,
                        int k_steps, int group,
                        typename LinearScanShared<Config>::StageRing::Position& at) {
  auto behind = at;
  for (int k = 0; k < k_steps; ++k) {
    shared.ring.wait_full(at);
    const char* weight = shared.stages[at.stage] + group * panel_bytes(64);
    const char* u = shared.stages[at.stage] + Config::kWeightBytes;
    fence_registers(acc);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma_ss<typename Config::Element, Config::kTokens, Major::K, Major::K>(
          acc, k_major_descriptor(weight, step), k_major_descriptor<Config::kTokens>(u, step),
          k > 0 || step > 0);
    }
    wgmma_commit();
    fence_registers(acc);
    if (k > 0) {
      wgmma_wait<1>();
      shared.ring.empty[behind.stage].arrive();
      behind.advance();
    }
    at.advance();
  }
  wgmma_wait<0>();
  fence_registers(acc);
  shared.ring.empty[behind.stage].arrive();
}

/// Decays of the 16 tokens of a step: [block, row, token].
template <class Config>
__device__ void load_decays(const ScanTile<Config>& t, int step, float (&a)[2][2][2]) {
  using Element = typename Config::Element;
  const LinearScanForwardProblem& problem = t.params.problem;
  if (problem.decay_dtype == problem.dtype) {
    std::uint32_t words[4];
    load_columns(t.panel(0, step / 4), step % 4, words);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack_pair<Element>(words[i]);
      a[i / 2][i % 2][0] = pair.x;
      a[i / 2][i % 2][1] = pair.y;
    }
  } else {
    const float* from = static_cast<const float*>(problem.decay.data) +
                        t.tile.batch * problem.decay.batch_stride + t.channel;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int64_t time = std::int64_t{t.time()} + t.token(2 * step + i / 4) + i % 2;
      const bool inside = time < problem.T && t.channel + i / 2 % 2 * 8 < problem.D;
      a[i / 4][i / 2 % 2][i % 2] =
          inside ? from[time * problem.decay.time_stride + i / 2 % 2 * 8] : 0.0f;
    }
  }
  if (problem.log_decay) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& value = a[i / 4][i / 2 % 2][i % 2];
      value = fast_exp2(value * kLog2E);
    }
  }
}

/// A sequence's first token takes the initial state in and forgets what was before; a token of no
/// sequence is 0 and forgets too.
template <class Config>
__device__ void begin_sequences(const ScanTile<Config>& t, int block, int row, float (&a)[2],
                                float& x0, float& x1) {
  const LinearScanForwardProblem& problem = t.params.problem;
  const int channel = t.channel + 8 * row;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int first = t.tokens[t.token(block) + i].first;
    if (first == TokenKind::kInside) continue;
    float& x = i == 0 ? x0 : x1;
    if (first == TokenKind::kOutside) {
      x = 0.0f;
    } else if (problem.initial_state != nullptr && channel < problem.D) {
      x = apply_map({a[i], x}, problem.initial_state[std::int64_t{first} * problem.D + channel]);
    }
    a[i] = 0.0f;
  }
}

template <class Config>
__device__ void end_sequences(const ScanTile<Config>& t, int block, int row, float s0, float s1) {
  const LinearScanForwardProblem& problem = t.params.problem;
  const int channel = t.channel + 8 * row;
  if (problem.final_state == nullptr || channel >= problem.D) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int last = t.tokens[t.token(block) + i].last;
    if (last < 0) continue;
    problem.final_state[std::int64_t{last} * problem.D + channel] = i == 0 ? s0 : s1;
  }
}

/// What 8 tokens, two of each lane, do to a channel: all of them, and those before this lane's.
struct BlockMaps {
  ScanMap all;
  ScanMap before;
};

__device__ inline BlockMaps scan_block(ScanMap own) {
  constexpr unsigned kWarp = 0xFFFFFFFFu;
  const auto of_lane = [](ScanMap map, int lane) {
    return ScanMap{__shfl_sync(kWarp, map.factor, lane, 4), __shfl_sync(kWarp, map.sum, lane, 4)};
  };
  const int lane = threadIdx.x % 4;
  const ScanMap left = lane_above(own);
  const ScanMap pair = compose_maps(left, own);  // of lanes 1 and 3
  const ScanMap front = of_lane(pair, 1);
  const ScanMap back = of_lane(pair, 3);
  const ScanMap three = compose_maps(front, left);
  BlockMaps maps;
  maps.all = compose_maps(front, back);
  maps.before.factor = lane == 0   ? 1.0f
                       : lane == 1 ? left.factor
                       : lane == 2 ? front.factor
                                   : three.factor;
  maps.before.sum = lane == 0 ? 0.0f : lane == 1 ? left.sum : lane == 2 ? front.sum : three.sum;
  return maps;
}

__device__ inline float gated(float gate, float state) {
  return __fdividef(gate, 1.0f + fast_exp2(-gate * kLog2E)) * state;
}

/// Outputs of 16 tokens from their states acc[8 step ...].
template <class Config>
__device__ void write_outputs(const ScanTile<Config>& t, int step, float (&out)[8]) {
  using Element = typename Config::Element;
  const LinearScanForwardProblem& problem = t.params.problem;
  if (problem.gate.data != nullptr) {
    std::uint32_t words[4];
    load_columns(t.panel(1, step / 4), step % 4, words);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 gate = unpack_pair<Element>(words[i]);
      out[2 * i] = gated(gate.x, out[2 * i]);
      out[2 * i + 1] = gated(gate.y, out[2 * i + 1]);
    }
  }
  if (!t.tile.plain) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (t.tokens[t.token(2 * step + i / 4) + i % 2].first == TokenKind::kOutside) out[i] = 0.0f;
    }
  }
  if (t.params.tma) {
    std::uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = pack_pair<Element>(out[2 * i], out[2 * i + 1]);
    __syncwarp();  // all lanes have read the gates that this replaces
    store_columns(t.panel(1, step / 4), step % 4, packed);
  } else {
    Element* to = static_cast<Element*>(problem.out.data) +
                  t.tile.batch * problem.out.batch_stride + t.channel;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int64_t time = std::int64_t{t.time()} + t.token(2 * step + i / 4) + i % 2;
      if (time < problem.T && t.channel + i / 2 % 2 * 8 < problem.D) {
        to[time * problem.out.time_stride + i / 2 % 2 * 8] = static_cast<Element>(out[i]);
      }
    }
  }
}

/// Where this warp's channels of the tile's column are.
template <class Config>
__device__ ColumnRecords records_of(const ScanTile<Config>& t) {
  constexpr int kPerGroup = Config::kChain ? 1 : Config::kGroupTiles;
  const int time_tiles = t.params.time_tiles;
  const int groups = (time_tiles + kPerGroup - 1) / kPerGroup;
  const int warp_channel = t.group * 64 + threadIdx.x % 128 / 32 * 16;
  const LinearScanExchange& exchange = t.params.exchange;
  const std::int64_t column = t.tile.column;
  return {exchange.maps + column * time_tiles * Config::kChannels + warp_channel,
          exchange.states + column * groups * Config::kChannels + warp_channel, Config::kChannels};
}

/// x becomes the outputs, by one scan from the state that the tile before this one stored.
template <class Config>
__device__ void scan_chain(const ScanTile<Config>& t, float (&acc)[Config::kTokens / 2]) {
  const ColumnRecords records = records_of(t);
  ChannelPair state{};
  if (t.tile.time_tile > 0) {
    state = wait_states(records.states + (t.tile.time_tile - 1) * records.channels);
    __syncwarp();
  }
#pragma unroll
  for (int step = 0; step < Config::kTokens / 16; ++step) {
    float a[2][2][2];
    load_decays(t, step, a);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int block = i / 2, row = i % 2;
      float& s0 = acc[8 * step + 2 * i];
      float& s1 = acc[8 * step + 2 * i + 1];
      if (!t.tile.plain) begin_sequences(t, 2 * step + block, row, a[block][row], s0, s1);
      const float* decay = a[block][row];
      const BlockMaps maps = scan_block(compose_maps({decay[0], s0}, {decay[1], s1}));
      s0 = apply_map({decay[0], s0}, apply_map(maps.before, state.value[row]));
      s1 = apply_map({decay[1], s1}, s0);
      state.value[row] = apply_map(maps.all, state.value[row]);
      if (!t.tile.plain) end_sequences(t, 2 * step + block, row, s0, s1);
    }
  }
  if (t.tile.time_tile + 1 < t.params.time_tiles) {
    put_states(records.states + t.tile.time_tile * records.channels, state);
  }
#pragma unroll
  for (int step = 0; step < Config::kTokens / 16; ++step) {
    write_outputs(t, step, *reinterpret_cast<float(*)[8]>(&acc[8 * step]));
  }
}

/// The same from 0, with what remains of the state before the tile; then with that state.
template <class Config>
__device__ void scan_look_back(const ScanTile<Config>& t, float (&acc)[Config::kTokens / 2]) {
  const ColumnRecords records = records_of(t);
  float factor[Config::kTokens / 2];  // from the state before the tile to each token's
  ScanMap map[2];
#pragma unroll
  for (int step = 0; step < Config::kTokens / 16; ++step) {
    float a[2][2][2];
    load_decays(t, step, a);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int block = i / 2, row = i % 2;
      float& s0 = acc[8 * step + 2 * i];
      float& s1 = acc[8 * step + 2 * i + 1];
      if (!t.tile.plain) begin_sequences(t, 2 * step + block, row, a[block][row], s0, s1);
      const float* decay = a[block][row];
      const BlockMaps maps = scan_block(compose_maps({decay[0], s0}, {decay[1], s1}));
      const ScanMap first = compose_maps(compose_maps(map[row], maps.before), {decay[0], s0});
      const ScanMap second = compose_maps(first, {decay[1], s1});
      s0 = first.sum;
      s1 = second.sum;
      factor[8 * step + 2 * i] = first.factor;
      factor[8 * step + 2 * i + 1] = second.factor;
      map[row] = compose_maps(map[row], maps.all);
    }
  }
  const int time = t.tile.time_tile;
  const bool is_last = time + 1 == t.params.time_tiles;
  const bool ends_group = time % Config::kGroupTiles == Config::kGroupTiles - 1;
  if (!is_last && !ends_group) put_maps(records, time, map);
  ChannelPair state{};
  if (time > 0) state = look_back_groups<Config::kGroupTiles>(records, time);
  if (!is_last && ends_group) {
    ChannelPair after;
#pragma unroll
    for (int r = 0; r < 2; ++r) after.value[r] = apply_map(map[r], state.value[r]);
    put_states(records.states + time / Config::kGroupTiles * records.channels, after);
  }
#pragma unroll
  for (int step = 0; step < Config::kTokens / 16; ++step) {
    float out[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = apply_map({factor[8 * step + i], acc[8 * step + i]}, state.value[i / 2 % 2]);
    }
    if (!t.tile.plain) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        end_sequences(t, 2 * step + i / 2, i % 2, out[2 * i], out[2 * i + 1]);
      }
    }
    write_outputs(t, step, out);
  }
}

/// One thread of a group: its panels of outputs.
template <class Config>
__device__ void store_outputs(const ScanTile<Config>& t) {
  const int channel = t.tile.first_channel + 64 * t.group;
  if (channel < t.params.problem.D) {
    for (int part = 0; part < Config::kTokenPanels; ++part) {
      const int time = t.time() + 64 * part;
      if (time >= t.params.problem.T) break;
      store_panel(t.params.out_map, t.panel(1, part), {channel, 0, time, t.tile.batch});
    }
  }
  wait_stores_read();
}

/// One warpgroup: all tiles of this CTA.
template <class Config>
__device__ void scan_tiles(const LinearScanForwardParams& params, LinearScanShared<Config>& shared,
                           int group) {
  const int k_steps = (params.problem.d + 63) / 64;
  typename LinearScanShared<Config>::StageRing::Position at;
  typename LinearScanShared<Config>::TileRing::Position slot;
  while (true) {
    shared.tile_ring.wait_full(slot);
    ScanTile<Config> t{params, shared, shared.tiles[slot.stage], shared.tokens[slot.stage], group};
    if (t.tile.batch == LinearScanTile::kNone) return;
    float acc[Config::kTokens / 2];
    project<Config>(acc, shared, k_steps, group, at);
    t.channel = t.tile.first_channel + 64 * group + fragment_row();
    const auto first_panel = at;
#pragma unroll
    for (int s = 0; s < Config::kPanelStages; ++s, at.advance()) {
      shared.ring.wait_full(at);
      t.panel_stages[s] = shared.stages[at.stage];
    }
    if constexpr (Config::kChain) {
      scan_chain(t, acc);
    } else {
      scan_look_back(t, acc);
    }
    if (params.tma) {
      fence_shared_for_async_proxy();
      sync_warpgroup(1 + group);
      if (threadIdx.x % 128 == 0) store_outputs(t);
    }
    auto done = first_panel;
    for (int s = 0; s < Config::kPanelStages; ++s, done.advance()) {
      shared.ring.empty[done.stage].arrive();
    }
    shared.tile_ring.empty[slot.stage].arrive();
    slot.advance();
  }
}

}  // namespace tandem::cuda
