// The scan role of linear_scan_forward_kernel: x of 64 channels by the tile's tokens as one
// product, the scan on its accumulator, gates, outputs.
#pragma once

#include "cuda/linear_scan/block_maps.cuh"
#include "cuda/linear_scan/carry.cuh"
#include "cuda/linear_scan/forward_keep.cuh"
#include "cuda/parts/decay.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"
#include "cuda/scan/functions.cuh"

namespace tandem::cuda::linear_scan {

/// Gives a stage back that holds no outputs.
__device__ inline void give_back(Barrier& empty) {
  empty.arrive();
  if (threadIdx.x == 128) empty.arrive();  // kStoreArrivals
}

/// Computes acc = W u^T, [channels, tokens].
template <class Config>
__device__ void project(float (&acc)[Config::kTokens / 2], ForwardShared<Config>& shared,
                        int k_steps, int warpgroup,
                        typename ForwardShared<Config>::StageRing::Position& at) {
  auto behind = at;
  for (int k = 0; k < k_steps; ++k) {
    shared.ring.wait_full(at);
    const char* weight = shared.stages[at.stage] + warpgroup * panel_bytes(64);
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
      give_back(shared.ring.empty[behind.stage]);
      behind.advance();
    }
    at.advance();
  }
  wgmma_wait<0>();
  fence_registers(acc);
  give_back(shared.ring.empty[behind.stage]);
}

/// Loads the decays of the 16 tokens of a step: [block, row, token].
template <class Config>
__device__ void load_decays(const ThreadTile<Config>& t, int step, float (&a)[2][2][2]) {
  const bool log_decay = t.params.problem.log_decay;
  std::uint32_t words[4];
  load_columns(t.panel(0, step / 4), step % 4, words);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 pair = unpack_pair<typename Config::Element>(words[i / 2]);
    a[i / 4][i / 2 % 2][i % 2] = i % 2 == 0 ? pair.x : pair.y;
  }
  if (Config::kChain && !log_decay) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& value = a[i / 4][i / 2 % 2][i % 2];
    const float power = fast_exp2(value * kLog2E);
    // why no branch but in a chain, which has no registers for more of them: it parts a step's
    // loads and functions from the others'.
    value = Config::kChain || log_decay ? power : value;
  }
}

/// Takes the decays of a step in a loop over all steps. Where x replaces them, they come from
/// `next`, for they are loaded a step ahead: no load passes what is stored between.
template <class Config>
__device__ void take_decays(const ThreadTile<Config>& t, int step, float (&next)[2][2][2],
                            float (&a)[2][2][2]) {
  if constexpr (!Config::kKeeps) return load_decays(t, step, a);
  if (step == 0) load_decays(t, 0, next);
  memcpy(a, next, sizeof(a));
  if (step + 1 < Config::kTokens / 16) load_decays(t, step + 1, next);
}

/// Loads silu of the gates of 16 tokens.
template <class Config>
__device__ void load_gates(const ThreadTile<Config>& t, int step, float (&silu)[8]) {
  std::uint32_t words[4];
  load_columns(t.panel(1, step / 4), step % 4, words);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 pair = unpack_pair<typename Config::Element>(words[i / 2]);
    const float gate = i % 2 == 0 ? pair.x : pair.y;
    silu[i] = gate * reciprocal(1.0f + fast_exp2(-gate * kLog2E));
  }
}

/// Writes the outputs of 16 tokens from their states; with kAlone the states are multiplied by
/// gates already.
template <class Config>
__device__ void write_outputs(const ThreadTile<Config>& t, int step, float (&out)[8]) {
  const LinearScanForwardProblem& problem = t.params.problem;
  if (!Config::kAlone && problem.gate.data != nullptr) {
    float silu[8];
    load_gates(t, step, silu);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] *= silu[i];
  }
  put_in_panel(t, step, 1, out);
}

/// States before the first tile of a batch row. Packed sequences take theirs at their first token.
template <class Config>
__device__ ChannelPair initial_states(const ThreadTile<Config>& t) {
  const LinearScanForwardProblem& problem = t.params.problem;
  ChannelPair state{};
  if (problem.initial_state == nullptr || problem.cu_seqlens != nullptr) return state;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int channel = t.channel + 8 * r;
    if (channel < problem.D) {
      state.value[r] = problem.initial_state[std::int64_t{t.tile.batch} * problem.D + channel];
    }
  }
  return state;
}

/// Whether the final states of a dense batch go where its initial states are.
template <class Config>
__device__ bool replaces_initial_state(const ThreadTile<Config>& t) {
  const LinearScanForwardProblem& problem = t.params.problem;
  return problem.initial_state != nullptr && problem.initial_state == problem.final_state &&
         problem.cu_seqlens == nullptr;
}

/// Where the records of this warp's channels lie, of the tile's column.
template <class Config>
__device__ ColumnRecords records_of(const ThreadTile<Config>& t) {
  constexpr int kTilesPerGroup = Config::kChain ? 1 : Config::kGroupTiles;
  const int time_tiles = t.params.time_tiles;
  const int tile_groups = (time_tiles + kTilesPerGroup - 1) / kTilesPerGroup;
  const int warp_channel = t.warpgroup * 64 + threadIdx.x % 128 / 32 * 16;
  const Exchange& exchange = t.params.exchange;
  const std::int64_t column = t.tile.column;
  return {exchange.maps + column * time_tiles * Config::kChannels + warp_channel,
          exchange.states + column * tile_groups * Config::kChannels + warp_channel,
          Config::kChannels};
}

/// Whether some decay of this warp's channels is 0 as a factor.
template <class Config>
__device__ bool forgets(const ThreadTile<Config>& t) {
  using Element = typename Config::Element;
  using Pair = std::conditional_t<std::is_same_v<Element, __nv_bfloat16>, __nv_bfloat162, __half2>;
  const bool log_decay = t.params.problem.log_decay;
  const std::uint32_t kept = log_decay ? ~0u : 0x7FFF7FFFu;  // without signs
  Pair lowest;
#pragma unroll
  for (int step = 0; step < Config::kTokens / 16; ++step) {
    std::uint32_t words[4];
    load_columns(t.panel(0, step / 4), step % 4, words);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word = words[i] & kept;
      Pair pair;
      memcpy(&pair, &word, 4);
      lowest = step == 0 && i == 0 ? pair : __hmin2(lowest, pair);
    }
  }
  const float low = fminf(static_cast<float>(lowest.x), static_cast<float>(lowest.y));
  constexpr float kVanishes = -87.0f;  // e^-87 is not flushed to 0
  return __any_sync(0xFFFFFFFFu, log_decay ? low < kVanishes : low == 0.0f);
}

/// Turns x into states by one scan from `state`, and leaves the state behind the tile in it.
template <bool kExact, class Config>
__device__ void scan_from(const ThreadTile<Config>& t, ChannelPair& state,
                          float (&acc)[Config::kTokens / 2]) {
  float next[2][2][2];
#pragma unroll
  for (int step = 0; step < Config::kTokens / 16; ++step) {
    float a[2][2][2];
    take_decays(t, step, next, a);
    if constexpr (Config::kKeeps) keep_x(t, step, *reinterpret_cast<float(*)[8]>(&acc[8 * step]));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int block = i / 2, row = i % 2;
      float& s0 = acc[8 * step + 2 * i];
      float& s1 = acc[8 * step + 2 * i + 1];
      const float* decay = a[block][row];
      const BlockMaps<kExact> maps(compose<kExact>({decay[0], s0}, {decay[1], s1}));
      const float before =
          maps.pass(state.value[row], [](float s, ScanMap map) { return apply<kExact>(map, s); });
      s0 = apply<kExact>({decay[0], s0}, before);
      s1 = apply<kExact>({decay[1], s1}, s0);
    }
  }
}

/// Turns x into states by one scan from the state that the previous tile stored.
template <class Config>
__device__ void scan_chain(const ThreadTile<Config>& t, float (&acc)[Config::kTokens / 2]) {
  const ColumnRecords records = records_of(t);
  const bool exact = forgets(t);
  ChannelPair state;
  if (t.tile.time_tile == 0) {
    state = initial_states(t);
  } else {
    const float* states = records.states + (t.tile.time_tile - 1) * records.channels;
    state = try_states(states);
    wait_states(states, state);
  }
  if constexpr (Config::kKeeps) keep_state(t, 0, 0, state);
  // why: looking at every factor is a third of the scan's instructions.
  if (exact) {
    scan_from<true>(t, state, acc);
  } else {
    scan_from<false>(t, state, acc);
  }
  if constexpr (Config::kKeeps) keep_inner_states(t, acc);
  if (t.tile.time_tile + 1 < t.params.time_tiles) {
    put_states(records.states + t.tile.time_tile * records.channels, state);
  }
  if (!t.tile.plain) end_sequences(t, acc);
}

/// Turns x into the states of a scan from 0. Also makes the factors from the state before the tile
/// to each token's, and the tile's map.
template <bool kExact, class Config>
__device__ void scan_from_zero(const ThreadTile<Config>& t, float (&acc)[Config::kTokens / 2],
                               float (&factor)[Config::kTokens / 2], ScanMap (&map)[2]) {
  float next[2][2][2];
#pragma unroll
  for (int step = 0; step < Config::kTokens / 16; ++step) {
    float a[2][2][2];
    take_decays(t, step, next, a);
    if constexpr (Config::kKeeps) keep_x(t, step, *reinterpret_cast<float(*)[8]>(&acc[8 * step]));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int block = i / 2, row = i % 2;
      float& s0 = acc[8 * step + 2 * i];
      float& s1 = acc[8 * step + 2 * i + 1];
      const float* decay = a[block][row];
      const BlockMaps<kExact> maps(compose<kExact>({decay[0], s0}, {decay[1], s1}));
      const ScanMap before =
          maps.pass(map[row], [](ScanMap all, ScanMap next) { return compose<kExact>(all, next); });
      const ScanMap first = compose<kExact>(before, {decay[0], s0});
      const ScanMap second = compose<kExact>(first, {decay[1], s1});
      s0 = first.sum;
      s1 = second.sum;
      factor[8 * step + 2 * i] = first.factor;
      factor[8 * step + 2 * i + 1] = second.factor;
    }
  }
}

/// Turns x into states: scans from 0, publishes the tile's map, gets the state before the tile and
/// adds what remains of it at each token.
template <class Config>
__device__ void scan_look_back(const ThreadTile<Config>& t, float (&acc)[Config::kTokens / 2]) {
  const ColumnRecords records = records_of(t);
  float factor[Config::kTokens / 2];
  ScanMap map[2];
  if (forgets(t)) {
    scan_from_zero<true>(t, acc, factor, map);
  } else {
    scan_from_zero<false>(t, acc, factor, map);
  }
  const int time = t.tile.time_tile;
  const bool is_last = time + 1 == t.params.time_tiles;
  const bool ends_tile_group = time % Config::kGroupTiles == Config::kGroupTiles - 1;
  const bool in_first_tile_group = time < Config::kGroupTiles;
  ChannelPair state;
  if (in_first_tile_group) state = initial_states(t);
  // why before the map is there for others: whoever stores the final state, perhaps in the initial
  // state's place, waits for the other tiles' maps and nothing else.
  const bool in_place = replaces_initial_state(t);
  if (in_place) __threadfence();
  if (!is_last && !ends_tile_group) put_maps(records, time, map);
  if (Config::kTestDelay > 0 && !is_last) __nanosleep(Config::kTestDelay);
  const bool gates_now = Config::kAlone && t.params.problem.gate.data != nullptr;
  float silu[Config::kTokens / 2];
#pragma unroll
  for (int step = 0; gates_now && step < Config::kTokens / 16; ++step) {
    load_gates(t, step, *reinterpret_cast<float(*)[8]>(&silu[8 * step]));
  }
  const float* states = records.states + (time / Config::kGroupTiles - 1) * records.channels;
  // why before the maps: most often the state is there already.
  if (!in_first_tile_group) state = try_states(states);
  ScanMap before[2];  // of the tile group's earlier tiles
  // Waits bind with a tile for each CTA, or with so few columns that each waits for a whole tile
  // warpgroup under way; else all instructions together do.
  const int ctas = static_cast<int>(gridDim.x);
  const bool patient = t.params.tiles > ctas && t.params.columns * Config::kGroupTiles > ctas;
  if (time > 0) fold_maps<Config::kGroupTiles>(records, time, patient, before);
  if (!in_first_tile_group) wait_states(states, state);
#pragma unroll
  for (int r = 0; r < 2; ++r) state.value[r] = apply(before[r], state.value[r]);
  if constexpr (Config::kKeeps) keep_state(t, 0, 0, state);
  if (!is_last && ends_tile_group) {
    ChannelPair after;
#pragma unroll
    for (int r = 0; r < 2; ++r) after.value[r] = apply(map[r], state.value[r]);
    put_states(records.states + time / Config::kGroupTiles * records.channels, after);
  }
#pragma unroll
  for (int i = 0; i < Config::kTokens / 2; ++i) {
    acc[i] = apply({factor[i], acc[i]}, state.value[i / 2 % 2]);
  }
  if (in_place) __threadfence();
  if (!t.tile.plain) end_sequences(t, acc);
#pragma unroll
  for (int i = 0; gates_now && i < Config::kTokens / 2; ++i) acc[i] *= silu[i];
}

/// Scans all tiles of this CTA. One warpgroup.
template <class Config>
__device__ void scan_tiles(const ForwardParams& params, ForwardShared<Config>& shared,
                           int warpgroup) {
  const int k_steps = (params.problem.d + 63) / 64;
  typename ForwardShared<Config>::StageRing::Position at;
  typename ForwardShared<Config>::TileRing::Position slot;
  while (true) {
    shared.tile_ring.wait_full(slot);
    ThreadTile<Config> t{params,    shared,    shared.tiles[slot.stage], shared.tokens[slot.stage],
                         warpgroup, slot.stage};
    if (t.tile.batch == Tile::kNone) return;
    float acc[Config::kTokens / 2];
    project<Config>(acc, shared, k_steps, warpgroup, at);
    t.channel = t.tile.first_channel + 64 * warpgroup + fragment_row();
    const auto first_panel = at;
    t.panel_stage = at.stage;
    for (int s = 0; s < Config::kPanelStages; ++s, at.advance()) shared.ring.wait_full(at);
    if (Config::kKeeps && !t.tile.plain) write_x(t, acc);
    if (!t.tile.plain) begin_sequences(t, acc);
    if constexpr (Config::kChain) {
      scan_chain(t, acc);
    } else {
      scan_look_back(t, acc);
    }
    auto done = first_panel;
    for (int s = 0; s < Config::kDecayStages; ++s, done.advance()) {
      if constexpr (Config::kKeeps) {
        shared.ring.empty[done.stage].arrive();
      } else {
        give_back(shared.ring.empty[done.stage]);
      }
    }
#pragma unroll
    for (int step = 0; step < Config::kTokens / 16; ++step) {
      write_outputs(t, step, *reinterpret_cast<float(*)[8]>(&acc[8 * step]));
    }
    fence_shared_for_async_proxy();
    shared.outputs_ready[slot.stage][warpgroup].arrive();
    for (int s = Config::kDecayStages; s < Config::kPanelStages; ++s, done.advance()) {
      shared.ring.empty[done.stage].arrive();
    }
    shared.tile_ring.empty[slot.stage].arrive();
    slot.advance();
  }
}

}  // namespace tandem::cuda::linear_scan
