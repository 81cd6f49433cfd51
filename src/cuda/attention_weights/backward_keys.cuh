// attention_weights_backward_keys_kernel: dk, once the rows' means are there.
//
// A CTA stays and takes blocks of 128 keys of a key head, a warpgroup 64 of them, and walks over
// the tiles of 64 queries that see any, of all heads of the group, in order:
//   dS = w (dw - mean)   [keys, queries], from w and dw transposed on their way to registers
//   dK += round(dS) Q    at the end times scale
// Roles, memory and floor are those of attention_weights_backward_queries_kernel. Numerics: dS is
// rounded once. Repeatable: dk is one thread's, in one order.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/attention/store_rows.cuh"
#include "cuda/attention_weights/backward_shared.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention_weights {

/// 128 keys of a key head.
template <class Config>
struct KeysItem {
  int batch;
  int key_head;
  int first_key;
  int first_tile;  // of 64 queries, that sees any of them
  int tiles_end;

  static __host__ __device__ int count(const AttentionWeightsForwardProblem& problem) {
    const int blocks = (static_cast<int>(problem.TK) + Config::kRows - 1) / Config::kRows;
    return blocks * static_cast<int>(problem.B) * problem.HKV;
  }

  __device__ KeysItem(const AttentionWeightsForwardProblem& problem, int index) {
    const int queries = static_cast<int>(problem.TQ), keys = static_cast<int>(problem.TK);
    const int blocks = (keys + Config::kRows - 1) / Config::kRows;
    batch = index / blocks / problem.HKV;
    key_head = index / blocks % problem.HKV;
    first_key = index % blocks * Config::kRows;
    tiles_end = (queries + 63) / 64;
    const int first_query = first_key - (keys - queries) - attention::Reach(problem.mask).right;
    first_tile = min(max(first_query, 0) / 64, tiles_end);
  }
};

template <class Config>
__device__ void load_for_keys(const BackwardParams& params, BackwardShared<Config>& shared) {
  const AttentionWeightsForwardProblem& problem = params.problem.forward;
  const int items = KeysItem<Config>::count(problem), share = problem.H / problem.HKV;
  BackwardPosition<Config> at;
#pragma unroll 1
  for (int round = 0; item_of_round(round) < items; ++round) {
    const KeysItem<Config> item(problem, item_of_round(round));
#pragma unroll 1
    for (int head = item.key_head * share; head < (item.key_head + 1) * share; ++head) {
      const float* const means = params.row_means + (std::int64_t{item.batch} * problem.H + head) *
                                                        padded_queries(problem.TQ);
#pragma unroll 1
      for (int tile = item.first_tile; tile < item.tiles_end; ++tile, at.advance()) {
        constexpr int kMeanBytes = sizeof(shared.row_means[0]);
        load_weights(params, shared, at, {item.first_key, head, tile * 64, item.batch},
                     {64, 0, 0, 0}, kMeanBytes);
        load_other_rows(params.q_map, shared, at, {0, head, tile * 64, item.batch});
        cute::SM90_BULK_COPY_G2S::copy(means + tile * 64, &shared.ring.full[at.stage].word,
                                       shared.row_means[at.stage], kMeanBytes);
      }
    }
  }
}

template <class Config>
struct BackwardKeys {
  const BackwardParams& params;
  BackwardShared<Config>& shared;
  const int group;

  using Element = typename Config::Element;

  BackwardPosition<Config> at{};

  /// Makes dS of 64 queries, transposed: keys are rows. What a query does not see becomes 0.
  __device__ void differentiate(const KeysItem<Config>& item, int tile, Operand& d_score) const {
    const AttentionWeightsForwardProblem& problem = params.problem.forward;
    // Of the tile's queries, counted from its first, those from here on see a key.
    const int key = item.first_key + 64 * group;
    const int distance = static_cast<int>(problem.TK - problem.TQ) + tile * 64 +
                         attention::Reach(problem.mask).right;
    const bool cut = key + 63 > distance;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Operand words;
      load_columns(shared.w[at.stage][group], step, words[0]);
      load_columns(shared.d_w[at.stage][group], step, words[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = 16 * step + i / 2 * 8 + fragment_column(0);
        const float2 mean = *reinterpret_cast<const float2*>(&shared.row_means[at.stage][query]);
        const float2 weight = unpack_pair<Element>(words[0][i]);
        const float2 gradient = unpack_pair<Element>(words[1][i]);
        d_score[step][i] =
            pack_pair<Element>(weight.x * (gradient.x - mean.x), weight.y * (gradient.y - mean.y));
      }
    }
    if (!cut) return;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = 16 * step + i / 2 * 8 + fragment_column(0);
        const int first = key + fragment_row() + i % 2 * 8 - distance;
        d_score[step][i] &= ~keep_below(0xFFFFFFFFu, query, first);
      }
    }
  }

  __device__ void compute(const KeysItem<Config>& item) {
    const AttentionWeightsForwardProblem& problem = params.problem.forward;
    const int tiles = item.tiles_end - item.first_tile;
    const int steps = tiles * (problem.H / problem.HKV);
    float dk[Config::kColumns / 2] = {};
    int tile = item.first_tile;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      Operand d_score;
      shared.ring.wait_full(at);
      differentiate(item, tile, d_score);
      fence_registers(dk);
      wgmma_begin();
      add_product<Config>(dk, d_score, shared, at);
      wgmma_commit();
      wgmma_wait<0>();
      hold_operand(d_score);
      fence_registers(dk);
      shared.ring.empty[at.stage].arrive();
      at.advance();
      if (++tile == item.tiles_end) tile = item.first_tile;
    }
    const StridedTensor& to = params.problem.dk;
    const int first = item.first_key + 64 * group;
    attention::store_rows<Element>(dk, {problem.scale, problem.scale},
                                   static_cast<Element*>(to.data) + item.batch * to.batch_stride +
                                       first * to.time_stride + item.key_head * to.head_stride,
                                   to.time_stride, static_cast<int>(problem.TK) - first, problem.K);
  }

  __device__ void run() {
    const AttentionWeightsForwardProblem& problem = params.problem.forward;
    const int items = KeysItem<Config>::count(problem);
#pragma unroll 1
    for (int round = 0; item_of_round(round) < items; ++round) {
      compute(KeysItem<Config>(problem, item_of_round(round)));
    }
  }
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_weights_backward_keys_kernel(
    const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<BackwardShared<Config>*>(shared_memory);
  begin_backward(params, shared);
  follow_stream();
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (threadIdx.x == 0) load_for_keys(params, shared);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kWorkerRegisters>();
    BackwardKeys<Config>{params, shared, warpgroup - 1}.run();
  }
}

}  // namespace tandem::cuda::attention_weights
