// attention_backward_wide_queries_kernel: dq of wide heads, without sums in memory.
//
// Beside dk and dv of wide heads registers hold no dq, and sums that one block of 64 keys after the
// other adds to move as many bytes as products take time. So S and dP are multiplied again here, by
// blocks of keys for a tile of 128 queries, 64 of each of two warpgroups:
//   P  = 2^(scale Q Kt - L),  dP = dO Vt,  dS = P (.) (dP - delta)   [queries, keys]
//   dQ += dS K                in registers, dS as the operand too
// The warpgroups do not wait for each other: one multiplies while the other weighs. Keys come from
// the last that the tile sees on. L and delta are attention_backward_rows_kernel's.
//
// Role     threads       registers  work
//   load     warp 0             24   Q and dO once, K and V through rings
//   rows     2 warpgroups      240   all else
//
// Floor: 6 * keys * queries * dim flops per head; a block of keys takes 3072 clocks at dim 256, of
// shared memory as well. Numerics: rounded to 16 bits is dS. Repeatable: sums have one order.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/attention/backward_item.cuh"
#include "cuda/attention/backward_products.cuh"
#include "cuda/attention/row_loader.cuh"
#include "cuda/attention/store_rows.cuh"
#include "cuda/parts/exp2.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention {

/// A tile of queries of one head, and the blocks of keys that any of them sees.
struct WideQueriesItem {
  static constexpr int kRows = kWideQueries;

  SequenceSpan span;
  int head;
  int first_query;  // in its sequence
  int row_tile;     // of its first rows, among those of attention_backward_rows_kernel
  int first_block;
  int last_block;  // below the first: there are no queries

  /// Tiles that see most come first: with a causal mask the last ones. All lanes of a warp.
  __device__ void set(const AttentionBackwardParams& params, BackwardTile tile) {
    const AttentionForwardProblem& problem = params.problem.forward;
    const int sequences = static_cast<int>(problem.N);
    const int heads = static_cast<int>(problem.H);
    const int tiles = static_cast<int>(gridDim.x) / heads;
    const int index = static_cast<int>(blockIdx.x) / heads;
    head = static_cast<int>(blockIdx.x) % heads;
    int n, at;
    if (problem.cu_seqlens_q == nullptr) {
      n = index % sequences;
      at = tiles / sequences - 1 - index / sequences;
    } else {
      find_block(problem.cu_seqlens_q, sequences, problem.TQ, kRows, tiles - 1 - index, n, at);
    }
    span.set(problem, n);
    first_query = at * kRows;
    row_tile = span.tiles_before(params, tile, n) + first_query / tile.queries;
    first_block = 0;
    last_block = -1;
    const int last_query = min(first_query + kRows, span.queries) - 1;
    if (at < 0 || last_query < first_query) {
      first_query = span.queries;
      return;
    }
    const int first_key = span.first_key(first_query), last_key = span.last_key(last_query);
    if (last_key < first_key) return;
    first_block = first_key / tile.keys;
    last_block = last_key / tile.keys;
  }
};

template <class Config>
struct WideQueriesShared {
  static constexpr int kQueryBytes = Config::kKeyPanels * panel_bytes(64);
  static constexpr int kGradientBytes = Config::kValuePanels * panel_bytes(64);
  static constexpr int kKeyStages = 2;
  static constexpr int kValueStages = Config::kValueDim > 192 ? 1 : 2;

  alignas(1024) char q[2][kQueryBytes];  // of each warpgroup
  alignas(1024) char d_o[2][kGradientBytes];
  alignas(1024) char k[kKeyStages][kQueryBytes];
  alignas(1024) char v[kValueStages][kGradientBytes];

  WideQueriesItem item;
  RowLoader rows;
  Barrier queries_full;
  Barrier gradients_full;
  Ring<kKeyStages> keys;
  Ring<kValueStages> values;
};

/// All lanes of the first warp.
template <class Config>
struct WideQueriesLoad {
  const AttentionBackwardParams& params;
  WideQueriesShared<Config>& shared;

  using Shared = WideQueriesShared<Config>;

  template <int kPanels, int kBytes>
  __device__ void load_tile(const CUtensorMap& map, Barrier& full, char (&tile)[2][kBytes]) const {
    const WideQueriesItem& item = shared.item;
    if (!RowLoader::is_first()) return;
    full.arrive_and_expect(2 * kBytes);
    for (int half = 0; half < 2; ++half) {
      RowLoader::load_whole<64, kPanels>(
          map, full, tile[half],
          {0, item.head, item.span.query_begin + item.first_query + 64 * half, item.span.batch});
    }
  }

  __device__ void run() const {
    const WideQueriesItem& item = shared.item;
    const AttentionForwardProblem& problem = params.problem.forward;
    const int key_head = item.head / static_cast<int>(problem.H / problem.HKV);
    const bool cuts = problem.cu_seqlens_q != nullptr || problem.lengths_k != nullptr;
    typename Ring<Shared::kKeyStages>::Position keys_at;
    typename Ring<Shared::kValueStages>::Position values_at;
    load_tile<Config::kKeyPanels>(params.q_map, shared.queries_full, shared.q);
    load_tile<Config::kValuePanels>(params.d_o_map, shared.gradients_full, shared.d_o);
    for (int block = item.last_block; block >= item.first_block; --block) {
      const int key = block * Config::kKeys;
      const TileCoordinate at{0, key_head, item.span.key_begin + key, item.span.batch};
      shared.keys.wait_empty(keys_at);
      shared.rows.template load<Config::kKeys, Config::kKeyPanels>(
          params.k_map, shared.keys.full[keys_at.stage], shared.k[keys_at.stage], at,
          cuts ? item.span.keys - key : Config::kKeys, 0);
      keys_at.advance();
      // why values keep what lies behind a sequence: of their products the mask takes dS.
      shared.values.wait_empty(values_at);
      if (RowLoader::is_first()) {
        Barrier& full = shared.values.full[values_at.stage];
        full.arrive_and_expect(Shared::kGradientBytes);
        RowLoader::load_whole<Config::kKeys, Config::kValuePanels>(params.v_map, full,
                                                                   shared.v[values_at.stage], at);
      }
      values_at.advance();
    }
  }
};

/// A warpgroup with 64 queries.
template <class Config>
struct WideQueriesRows {
  const AttentionBackwardParams& params;
  WideQueriesShared<Config>& shared;
  const int warpgroup;  // 0 or 1

  using Element = typename Config::Element;
  using Shared = WideQueriesShared<Config>;
  static constexpr int kKeys = Config::kKeys;
  static_assert(2 * Config::kQueries == WideQueriesItem::kRows);
  using Scores = float[kKeys / 2];
  using Operand = std::uint32_t[kKeys / 16][4];

  /// Issues acc = A Bt: this warpgroup's rows by keys, contracting kSteps * 16 columns.
  template <int kSteps>
  __device__ static void multiply(Scores& acc, const char* rows, const char* keys) {
    const std::uint64_t a = k_major_descriptor<64>(rows, 0);
    const std::uint64_t b = k_major_descriptor<kKeys>(keys, 0);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma_ss<Element, kKeys, Major::K, Major::K>(acc, move_descriptor(a, k_major_bytes<64>(step)),
                                                   move_descriptor(b, k_major_bytes<kKeys>(step)),
                                                   step > 0);
    }
    wgmma_commit();
  }

  /// Sets dS to 0 where a query does not see a key.
  __device__ void mask(Scores& d_score, int block) const {
    const SequenceSpan& span = shared.item.span;
    const int query = shared.item.first_query + 64 * warpgroup, key = block * kKeys;
    if (key + kKeys <= span.keys && key >= query + 63 + span.first &&
        key + kKeys - 1 <= query + span.last) {
      return;
    }
    int low[2], high[2];  // columns that this thread's rows see
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = query + fragment_row() + 8 * half;
      low[half] = own + span.first - key - fragment_column(0);
      high[half] = min(own + span.last, span.keys - 1) - key - fragment_column(0);
    }
    keep_columns(d_score, low, high);
  }

  __device__ void run() const {
    const AttentionForwardProblem& problem = params.problem.forward;
    const WideQueriesItem& item = shared.item;
    const int rows = min(item.span.queries - item.first_query - 64 * warpgroup, 64);
    const float scale = problem.scale * kLog2E;
    float log_sum_exp[2] = {INFINITY, INFINITY}, row_product[2] = {};
    if (rows > 0) {
      const std::int64_t first =
          (std::int64_t{item.head} * params.query_tiles + item.row_tile + warpgroup) * 64;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int64_t row = first + fragment_row() + 8 * half;
        log_sum_exp[half] = params.log_sum_exp[row];
        row_product[half] = params.row_products[row];
      }
    }

    float dq[Config::kKeyDim / 2] = {};
    Scores score, d_weight;
    Operand d_score = {};
    typename Ring<Shared::kKeyStages>::Position keys_at;
    typename Ring<Shared::kValueStages>::Position values_at;
    shared.queries_full.wait(0);
    shared.gradients_full.wait(0);
    fence_registers(dq);
    int last_keys = -1;  // of the block before, whose dQ is still under way
#pragma unroll 1
    for (int block = item.last_block; block >= item.first_block; --block) {
      const char* const keys = shared.k[keys_at.stage];
      shared.keys.wait_full(keys_at);
      multiply<Config::kKeySteps>(score, shared.q[warpgroup], keys);
      shared.values.wait_full(values_at);
      multiply<Config::kValueSteps>(d_weight, shared.d_o[warpgroup], shared.v[values_at.stage]);
      wgmma_wait<1>();
      hold_operand(d_score);
      fence_registers(score);
      if (last_keys >= 0) shared.keys.empty[last_keys].arrive();
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        score[i] = fast_exp2(fmaf(score[i], scale, -log_sum_exp[i / 2 % 2]));
      }
      wgmma_wait<0>();
      fence_registers(d_weight);
      shared.values.empty[values_at.stage].arrive();
      values_at.advance();
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) score[i] *= d_weight[i] - row_product[i / 2 % 2];
      mask(score, block);
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
        accumulator_to_operand<Element>(score, step, d_score[step]);
      }
      const std::uint64_t b = mn_major_descriptor<kKeys>(keys, 0);
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
        wgmma_rs<Element, Config::kKeyDim, Major::MN>(
            dq, d_score[step], move_descriptor(b, mn_major_bytes(step)), true);
      }
      wgmma_commit();
      last_keys = keys_at.stage;
      keys_at.advance();
    }
    wgmma_wait<0>();
    hold_operand(d_score);
    fence_registers(dq);

    const StridedTensor& to = params.problem.dq;
    const std::int64_t time =
        item.span.query_begin + std::int64_t{item.first_query} + 64 * warpgroup;
    const float scales[2] = {problem.scale, problem.scale};
    store_rows<Element>(dq, scales,
                        static_cast<Element*>(to.data) + item.span.batch * to.batch_stride +
                            time * to.time_stride + item.head * to.head_stride,
                        to.time_stride, rows, problem.K);
  }
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_backward_wide_queries_kernel(
    const __grid_constant__ AttentionBackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<WideQueriesShared<Config>*>(shared_memory);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&params.q_map, &params.k_map, &params.v_map, &params.d_o_map}) {
      prefetch_tensor_map(*map);
    }
    shared.rows.init();
    shared.queries_full.init(1);
    shared.gradients_full.init(1);
    shared.keys.init(1, Config::kWorkers);
    shared.values.init(1, Config::kWorkers);
    fence_barriers_initialised();
  }
  follow_stream();
  if (warp == 0) {
    WideQueriesItem item;
    item.set(params, Config::kTile);
    if (threadIdx.x == 0) shared.item = item;
  }
  __syncthreads();
  if (shared.item.first_query >= shared.item.span.queries) return;
  // why not Config's: dq takes twice the registers of dk's or dv's share.
  if (warp < 4) {
    cutlass::arch::warpgroup_reg_dealloc<24>();
    if (warp == 0) WideQueriesLoad<Config>{params, shared}.run();
  } else {
    cutlass::arch::warpgroup_reg_alloc<240>();
    WideQueriesRows<Config>{params, shared, warp / 4 - 1}.run();
  }
}

}  // namespace tandem::cuda::attention
