// The state role of gla_reverse_kernel: dS from chunk to chunk, and <S, dS>.
#pragma once

#include <utility>

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/common/state_elements.cuh"
#include "cuda/gla/reverse/shared.cuh"
#include "cuda/parts/warp_sums.cuh"

namespace tandem::cuda::gla {

template <class Config>
struct ReverseState {
  const ReverseParams& params;
  ReverseShared<Config>& shared;
  const ReverseHead head;

  using Element = typename Config::Element;
  using Tokens = typename ReverseShared<Config>::Tokens;
  static constexpr int kTiles = Config::kValuePanels;  // of 64 rows of V
  static constexpr int kCount = Config::kKeyDim / 2;   // registers of a tile
  using Tile = float[kCount];                          // 64 rows of dSt
  using Stage = typename ReverseShared<Config>::Stage;

  __device__ StateTile tile(int index) const {
    const GlaForwardProblem& problem = params.problem.forward;
    return {problem.K, problem.V, {problem.V, 1}, 0, 64 * index};
  }

  /// Calls visit.operator()<index>() for all tiles. why: a loop over them would put them in memory.
  template <class Visit>
  __device__ static void for_each_tile(Visit visit) {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
      (visit.template operator()<kIndex>(), ...);
    }
    (std::make_integer_sequence<int, kTiles>{});
  }

  /// Returns this thread's share of <S, dS> before a pair, of rows.
  __device__ float multiply_states(const Tile& gradient, int tile) const {
    float flows[4] = {};
#pragma unroll
    for (int step = 0; step < Config::kKeySteps; ++step) {
      std::uint32_t packed[4];
      get_columns<Config::kValueDim>(shared.state, step, tile * panel_bytes(64), packed);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_pair<Element>(packed[i]);
        flows[i] += pair.x * gradient[8 * step + 2 * i];
        flows[i] += pair.y * gradient[8 * step + 2 * i + 1];
      }
      fence_registers(flows);  // why: loads of many steps ahead would take too many registers
    }
    return flows[0] + flows[1] + (flows[2] + flows[3]);
  }

  /// Adds a chunk's queries to dS.
  __device__ void advance_gradient(Tile (&gradient)[kTiles], const Stage& stage,
                                   const ChunkDecay<64>& decay) const {
    std::uint32_t values[kTiles][4][4];
    const float factor = decay.state_to_state;
    for_each_tile([&]<int kTile>() {
      load_decayed_values<Element, 0, 4>(values[kTile], stage.d_o + kTile * panel_bytes(64),
                                         decay.to_state);
#pragma unroll
      for (float& value : gradient[kTile]) value *= factor;
      fence_registers(gradient[kTile]);
    });
    wgmma_begin();
    for_each_tile(
        [&]<int kTile>() { add_tokens<Element>(gradient[kTile], values[kTile], stage.q); });
    wgmma_wait<0>();
    for_each_tile([&]<int kTile>() {
      hold_operand(values[kTile]);
      fence_registers(gradient[kTile]);
    });
  }

  __device__ void run() const {
    const GlaBackwardProblem& problem = params.problem;
    const std::int64_t state_size = std::int64_t{problem.forward.K} * problem.forward.V;
    Tile gradient[kTiles] = {};
    if (params.entry_gradients != nullptr) {
      shared.entry_loaded.wait(0);
      for_each_tile([&]<int kTile>() { load_state(gradient[kTile], shared.entry(), tile(kTile)); });
      if (head.chunks == 0) shared.entry_read.arrive();
    }
    for (ReversePosition at; at.n < head.chunks; at = at.next()) {
      const int slot = at.stage();
      Tokens& tokens = shared.tokens[slot];
      // why here and not behind the loop's body, too: ptxas (13.0) spills dS that comes from two
      // places.
      shared.gradient_empty.wait(at.parity() ^ 1);
      for_each_tile([&]<int kTile>() {
        put_rows<Element, Config::kValueDim, kTile * panel_bytes(64)>(gradient[kTile],
                                                                      shared.gradient);
      });
      fence_shared_for_async_proxy();
      shared.gradient_full.arrive();
      // why not before: an arrival does not wait for loads under way, stores of what they load do.
      if (at.n == 0 && params.entry_gradients != nullptr) shared.entry_read.arrive();

      shared.full[slot].wait(at.stage_parity());
      if (!head.is_second(at.n)) {
        float flow = 0.0f;
        shared.state_loaded.wait(head.pair(at.n) & 1);
        for_each_tile([&]<int kTile>() { flow += multiply_states(gradient[kTile], kTile); });
        flow = sum_warp(flow);
        if (threadIdx.x % 32 == 0) tokens.flows[threadIdx.x % 128 / 32] = flow;
        // why not before: an arrival does not wait for loads under way, the store of their sum
        // does.
        shared.state_empty.arrive();
      }
      advance_gradient(gradient, shared.stages[slot], tokens.decay_behind);
      shared.queries_read[slot].arrive();
      shared.done[slot].arrive();
    }
    if (problem.d_initial_state != nullptr && head.segment == 0) {
      Item item;
      item.batch = head.batch;
      item.head = head.head;
      item.length = static_cast<int>(problem.forward.T);
      const float factor = first_factor(problem.forward.log_decay, item);
      float* const to = problem.d_initial_state +
                        (std::int64_t{head.batch} * problem.forward.H + head.head) * state_size;
      for_each_tile([&]<int kTile>() {
#pragma unroll
        for (float& value : gradient[kTile]) value *= factor;
        store_state(gradient[kTile], to, tile(kTile));
      });
    }
  }
};

}  // namespace tandem::cuda::gla
