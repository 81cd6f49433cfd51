// The loading role of attention_backward_kernel: a block of keys and values, then the tiles of
// queries that see it.
#pragma once

#include "cuda/attention/backward_shared.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::attention {

/// The steps of a CTA: the tiles of each head of the group, from the last on.
struct BackwardSteps {
  int count;  // of steps left
  int head;   // of the queries
  int tile;   // in its sequence

  /// `group`: heads per key head.
  __device__ BackwardSteps(const BackwardItem& item, int group)
      : count(item.tiles() * group), head(item.key_head * group), tile(item.last_tile) {}

  __device__ void advance(const BackwardItem& item) {
    --count;
    if (--tile < item.first_tile) {
      tile = item.last_tile;
      ++head;
    }
  }
};

__device__ inline int heads_per_key_head(const AttentionForwardProblem& problem) {
  return problem.H / problem.HKV;
}

/// All lanes of a warp.
template <class Config>
struct BackwardLoad {
  const AttentionBackwardParams& params;
  BackwardShared<Config>& shared;

  using Shared = BackwardShared<Config>;

  /// Starts loading a tile of kRows rows. One thread.
  template <int kRows, int kPanels>
  __device__ static void load(const CUtensorMap& map, Barrier& full, char* tile,
                              TileCoordinate at) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      at.column = panel * kPanelColumns;
      load_panel(map, full, tile + panel * panel_bytes(kRows), at);
    }
  }

  /// Zeroes the rows of panels from `from` on.
  template <int kRows, int kPanels>
  __device__ static void clear_rows(char* panels, int from) {
#pragma unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      auto* rows = reinterpret_cast<uint4*>(panels + panel * panel_bytes(kRows));
#pragma unroll 1
      for (int piece = max(from, 0) * 8 + threadIdx.x % 32; piece < kRows * 8; piece += 32) {
        rows[piece] = uint4{};
      }
    }
  }

  /// Loads a tile whose rows from `rows` on are zero or have to be zero; they may be NaN, and enter
  /// products. `with` bytes and the arrival are another copy's.
  template <int kRows, int kPanels>
  __device__ void load_rows(const CUtensorMap& map, Barrier& full, char* tile, TileCoordinate at,
                            int rows, std::uint32_t& parity) const {
    const bool first = threadIdx.x % 32 == 0;
    if (rows >= kRows) {
      if (first) load<kRows, kPanels>(map, full, tile, at);
      return;
    }
    if (first) {
      shared.cut_full.arrive_and_expect(kPanels * panel_bytes(kRows));
      load<kRows, kPanels>(map, shared.cut_full, tile, at);
    }
    __syncwarp();
    shared.cut_full.wait(parity);
    parity ^= 1;
    clear_rows<kRows, kPanels>(tile, rows);
    fence_shared_for_async_proxy();
    __syncwarp();
  }

  __device__ void run() const {
    const AttentionForwardProblem& problem = params.problem.forward;
    const BackwardItem& item = shared.item;
    const SequenceSpan& span = item.span;
    BackwardSteps step(item, heads_per_key_head(problem));
    if (step.count == 0) return;
    const bool first = threadIdx.x % 32 == 0;
    // Rows behind the tensors' ends are zero already.
    const bool cuts_queries = problem.cu_seqlens_q != nullptr;
    const bool cuts_keys = cuts_queries || problem.lengths_k != nullptr;
    std::uint32_t parity = 0;
    const TileCoordinate keys{0, item.key_head, span.key_begin + item.first_key(), span.batch};
    const int key_rows = cuts_keys ? span.keys - item.first_key() : Config::kKeys;
    load_rows<Config::kKeys, Config::kKeyPanels>(params.k_map, shared.keys_full, shared.k, keys,
                                                 key_rows, parity);
    load_rows<Config::kKeys, Config::kValuePanels>(params.v_map, shared.keys_full, shared.v, keys,
                                                   key_rows, parity);
    if (first) {
      shared.keys_full.arrive_and_expect(
          key_rows < Config::kKeys ? 0 : sizeof(shared.k) + sizeof(shared.v));
    }
    RingPosition<Config::kQueryStages> query;
    RingPosition<Config::kGradientStages> gradient;
    for (; step.count > 0; step.advance(item), query.advance(), gradient.advance()) {
      const TileCoordinate from{0, step.head, span.query_begin + step.tile * Config::kQueries,
                                span.batch};
      const std::int64_t row =
          (std::int64_t{step.head} * params.query_tiles + item.tiles_before + step.tile) *
          Config::kQueries;
      const int rows =
          cuts_queries ? span.queries - step.tile * Config::kQueries : Config::kQueries;
      const bool cut = rows < Config::kQueries;
      Barrier& query_full = shared.queries.full[query.stage];
      shared.queries.wait_empty(query);
      load_rows<Config::kQueries, Config::kKeyPanels>(params.q_map, query_full,
                                                      shared.q[query.stage], from, rows, parity);
      if (first) {
        query_full.arrive_and_expect(Shared::kRowBytes + (cut ? 0 : Shared::kQueryBytes));
        cute::SM90_BULK_COPY_G2S::copy(params.log_sum_exp + row, &query_full.word,
                                       shared.log_sum_exp[query.stage], Shared::kRowBytes);
      }
      Barrier& gradient_full = shared.gradients.full[gradient.stage];
      shared.gradients.wait_empty(gradient);
      load_rows<Config::kQueries, Config::kValuePanels>(
          params.d_o_map, gradient_full, shared.d_o[gradient.stage], from, rows, parity);
      if (first) {
        gradient_full.arrive_and_expect(Shared::kRowBytes + (cut ? 0 : Shared::kGradientBytes));
        cute::SM90_BULK_COPY_G2S::copy(params.row_products + row, &gradient_full.word,
                                       shared.row_products[gradient.stage], Shared::kRowBytes);
      }
    }
  }
};

}  // namespace tandem::cuda::attention
