// attention_weights_backward_queries_kernel: dq, and each row's mean of dw by its weights, which
// attention_weights_backward_keys_kernel needs for dk.
//
// A CTA stays and takes tiles of 128 queries of a head, a warpgroup 64 of them. The mean is there
// only once a row is read, and a row is not kept. So two sums are made, of which the mean makes dq:
//   r    the mean over the first block of 64 keys
//   A += round(w (dw - r)) K,  B += w K,  d += sum_j w (dw - r)      per block
//   mean = r + d,  dq = scale (A - d B)
// why r: dw may be large beside its deviation, and so would be what is rounded and then cancels.
//
// Role      threads             registers  work
//   load      one                      24  w, dw and k by TMA, up to five blocks ahead
//   workers   warpgroups 1 and 2      240  64 queries each: A and B by w from registers
// What binds: the memory. By estimate a block takes 800 clocks to work on, 1900 to arrive.
//
// Floor: w and dw once; of the whole backward twice, since a head's do not fit on chip. Numerics:
// products take w as it is and w (dw - r) rounded, sums are fp32. Keys that a query does not see
// are cleared in registers, weights of other rows and past the ends are zeros. Repeatable: a tile's
// sums have one order.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/attention/store_rows.cuh"
#include "cuda/attention_weights/backward_shared.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::attention_weights {

/// 128 queries of a head, and columns of dq.
template <class Config>
struct QueriesItem {
  int batch;
  int head;
  int first_query;
  int first_column;
  int position;  // of the first query among the keys
  int end;       // of the keys that the last query sees
  int blocks;    // of 64 keys before it

  static __host__ __device__ int count(const AttentionWeightsForwardProblem& problem) {
    const int tiles = (static_cast<int>(problem.TQ) + Config::kRows - 1) / Config::kRows;
    const int parts = (problem.K + Config::kColumns - 1) / Config::kColumns;
    return tiles * static_cast<int>(problem.B) * problem.H * parts;
  }

  __device__ QueriesItem(const AttentionWeightsForwardProblem& problem, int index) {
    const int queries = static_cast<int>(problem.TQ), keys = static_cast<int>(problem.TK);
    const int tiles = (queries + Config::kRows - 1) / Config::kRows;
    const int heads = static_cast<int>(problem.B) * problem.H;
    const int unit = index / tiles;
    batch = unit % heads / problem.H;
    head = unit % problem.H;
    first_query = index % tiles * Config::kRows;
    first_column = unit / heads * Config::kColumns;
    position = first_query + keys - queries;
    const int rows = min(queries - first_query, Config::kRows);
    end = max(min(position + rows + attention::Reach(problem.mask).right, keys), 0);
    blocks = (end + 63) / 64;
  }
};

template <class Config>
__device__ void load_for_queries(const BackwardParams& params, BackwardShared<Config>& shared) {
  const AttentionWeightsForwardProblem& problem = params.problem.forward;
  const int items = QueriesItem<Config>::count(problem);
  BackwardPosition<Config> at;
#pragma unroll 1
  for (int round = 0; item_of_round(round) < items; ++round) {
    const QueriesItem<Config> item(problem, item_of_round(round));
    const int key_head = item.head / (problem.H / problem.HKV);
#pragma unroll 1
    for (int key = 0; key < item.end; key += 64, at.advance()) {
      load_weights(params, shared, at, {key, item.head, item.first_query, item.batch},
                   {0, 0, 64, 0});
      load_other_rows(params.k_map, shared, at, {item.first_column, key_head, key, item.batch});
    }
  }
}

template <class Config>
struct BackwardQueries {
  const BackwardParams& params;
  BackwardShared<Config>& shared;
  const int group;

  using Element = typename Config::Element;
  using Accumulator = float[Config::kColumns / 2];

  BackwardPosition<Config> at{};

  /// Two rows of a thread.
  struct Rows {
    float reference[2];  // about the mean: what is left of d_w is rounded with its weight
    float sum[2] = {};   // of w (d_w - reference), this thread's share
  };

  /// Reads a block of 64 keys. What a query does not see becomes 0.
  __device__ void read(const QueriesItem<Config>& item, int block, Operand& w, Operand& d_w) const {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      load_rows(shared.w[at.stage][group], step, w[step]);
      load_rows(shared.d_w[at.stage][group], step, d_w[step]);
    }
    const int right = attention::Reach(params.problem.forward.mask).right;
    const int position = item.position + 64 * group;
    if (block * 64 + 64 <= position + right + 1) return;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = block * 64 + 16 * step + i / 2 * 8 + fragment_column(0);
        const int end = position + fragment_row() + i % 2 * 8 + right + 1;
        w[step][i] = keep_below(w[step][i], key, end);
        d_w[step][i] = keep_below(d_w[step][i], key, end);
      }
    }
  }

  static __device__ float sum_quad(float value) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, 1);
    return value + __shfl_xor_sync(0xFFFFFFFFu, value, 2);
  }

  /// Takes the mean over a block, by its weights.
  static __device__ void set_references(const Operand& w, const Operand& d_w, Rows& rows) {
    float weights[2] = {}, products[2] = {};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 weight = unpack_pair<Element>(w[step][i]);
        const float2 gradient = unpack_pair<Element>(d_w[step][i]);
        weights[i % 2] += weight.x + weight.y;
        products[i % 2] += weight.x * gradient.x + weight.y * gradient.y;
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float weight = sum_quad(weights[row]), product = sum_quad(products[row]);
      rows.reference[row] = weight == 0.0f ? 0.0f : product / weight;
    }
  }

  /// Replaces d_w by w (d_w - reference).
  static __device__ void weigh(const Operand& w, Operand& d_w, Rows& rows) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 weight = unpack_pair<Element>(w[step][i]);
        const float2 gradient = unpack_pair<Element>(d_w[step][i]);
        const float low = weight.x * (gradient.x - rows.reference[i % 2]);
        const float high = weight.y * (gradient.y - rows.reference[i % 2]);
        rows.sum[i % 2] += low + high;
        d_w[step][i] = pack_pair<Element>(low, high);
      }
    }
  }

  /// Sums over all keys; of the weights themselves into `plain`.
  __device__ void add_up(const QueriesItem<Config>& item, Rows& rows, Accumulator& weighted,
                         Accumulator& plain) {
#pragma unroll 1
    for (int block = 0; block < item.blocks; ++block) {
      Operand w, d_w;
      shared.ring.wait_full(at);
      read(item, block, w, d_w);
      if (block == 0) set_references(w, d_w, rows);
      weigh(w, d_w, rows);
      fence_registers(weighted);
      fence_registers(plain);
      wgmma_begin();
      add_product<Config>(weighted, d_w, shared, at);
      add_product<Config>(plain, w, shared, at);
      wgmma_commit();
      wgmma_wait<0>();
      hold_operand(w);
      hold_operand(d_w);
      fence_registers(weighted);
      fence_registers(plain);
      shared.ring.empty[at.stage].arrive();
      at.advance();
    }
  }

  __device__ void compute(const QueriesItem<Config>& item) {
    const AttentionWeightsForwardProblem& problem = params.problem.forward;
    Rows rows{};
    Accumulator weighted = {}, plain = {};
    add_up(item, rows, weighted, plain);
    const int first = item.first_query + 64 * group;
    const std::int64_t head = std::int64_t{item.batch} * problem.H + item.head;
    float* const means = params.row_means + head * padded_queries(problem.TQ) + first;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float sum = sum_quad(rows.sum[row]);
      if (item.first_column == 0 && threadIdx.x % 4 == 0) {
        means[fragment_row() + 8 * row] = rows.reference[row] + sum;
      }
#pragma unroll
      for (int i = 0; i < Config::kColumns / 2; i += 4) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          weighted[i + 2 * row + n] = fmaf(-sum, plain[i + 2 * row + n], weighted[i + 2 * row + n]);
        }
      }
    }
    const StridedTensor& dq = params.problem.dq;
    if (dq.data == nullptr) return;
    attention::store_rows<Element>(
        weighted, {problem.scale, problem.scale},
        static_cast<Element*>(dq.data) + item.batch * dq.batch_stride + first * dq.time_stride +
            item.head * dq.head_stride + item.first_column,
        dq.time_stride, static_cast<int>(problem.TQ) - first, problem.K - item.first_column);
  }

  __device__ void run() {
    const AttentionWeightsForwardProblem& problem = params.problem.forward;
    const int items = QueriesItem<Config>::count(problem);
#pragma unroll 1
    for (int round = 0; item_of_round(round) < items; ++round) {
      compute(QueriesItem<Config>(problem, item_of_round(round)));
    }
  }
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads, 1) void attention_weights_backward_queries_kernel(
    const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(1024) char shared_memory[];
  auto& shared = *reinterpret_cast<BackwardShared<Config>*>(shared_memory);
  begin_backward(params, shared);
  follow_stream();
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (threadIdx.x == 0) load_for_queries(params, shared);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kWorkerRegisters>();
    BackwardQueries<Config>{params, shared, warpgroup - 1}.run();
  }
}

}  // namespace tandem::cuda::attention_weights
