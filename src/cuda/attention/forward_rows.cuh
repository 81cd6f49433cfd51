// The rows role of attention_forward_kernel: a warpgroup's 64 queries of a tile.
#pragma once

#include "cuda/attention/forward_shared.cuh"
#include "cuda/attention/forward_softmax.cuh"
#include "cuda/attention/store_rows.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::attention {

/// Has the compiler finish values here.
template <int kCount>
__device__ inline void finish(const float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" ::"f"(values[i]));
}

template <class Config>
struct ForwardRows {
  const AttentionForwardParams& params;
  ForwardShared<Config>& shared;
  const int group;
  int query = 0;       // of the tile, the warpgroup's first
  bool turns = false;  // whether all warpgroups have queries, and take turns

  using Element = typename Config::Element;
  using Position = typename Ring<Config::kStages>::Position;
  using Scores = float[Config::kKeys / 2];
  using Weights = std::uint32_t[Config::kKeys / 16][4];
  using Output = float[Config::kValueDim / 2];

  Position keys_at{}, values_at{};
  RingPosition<1> queries_at{};

  /// Waits until the warpgroup before this one has issued its products, or lets the next: one's
  /// softmax then runs beside the products of the others.
  __device__ void wait_for_turn() const {
    if (Config::kTurns && turns) cutlass::arch::NamedBarrier::sync(256, kTurnBarrier + group);
  }
  __device__ void pass_turn() const {
    if (Config::kTurns && turns) {
      const int next = group + 1 == Config::kGroups ? 0 : group + 1;
      cutlass::arch::NamedBarrier::arrive(256, kTurnBarrier + next);
    }
  }

  /// Issues S = Q Kt for the block in the ring's next stage.
  __device__ void multiply_keys(Scores& s) const {
    const std::uint64_t q = k_major_descriptor(shared.q[group], 0);
    const std::uint64_t k = k_major_descriptor<Config::kKeys>(shared.k[keys_at.stage], 0);
    fence_registers(s);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < Config::kKeyDim / 16; ++step) {
      const int inside = step % 4 * 32;
      wgmma_ss<Element, Config::kKeys, Major::K, Major::K>(
          s, move_descriptor(q, step / 4 * panel_bytes(64) + inside),
          move_descriptor(k, step / 4 * panel_bytes(Config::kKeys) + inside), step > 0);
    }
    wgmma_commit();
  }

  /// Issues O += P V, or = with `accumulate` false.
  __device__ void multiply_values(const Weights& p, Output& o, bool accumulate) const {
    const std::uint64_t v = mn_major_descriptor<Config::kKeys>(shared.v[values_at.stage], 0);
    fence_registers(o);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < Config::kKeys / 16; ++step) {
      wgmma_rs<Element, Config::kValueDim, Major::MN>(
          o, p[step], move_descriptor(v, step * panel_bytes(16)), accumulate || step > 0);
    }
    wgmma_commit();
  }

  static __device__ void round(const Scores& s, Weights& p) {
#pragma unroll
    for (int step = 0; step < Config::kKeys / 16; ++step) {
      accumulator_to_operand<Element>(s, step, p[step]);
    }
  }

  __device__ void release_keys() {
    shared.keys.empty[keys_at.stage].arrive();
    keys_at.advance();
  }
  __device__ void release_values() {
    shared.values.empty[values_at.stage].arrive();
    values_at.advance();
  }

  struct Blocks {
    int begin;
    int end;
  };
  /// Blocks of a tile that this warpgroup's queries see; where they see none, the tile's last is
  /// behind them.
  __device__ Blocks seen_blocks(const ForwardItem& item) const {
    const Reach reach(params.problem.mask);
    const int position = item.position + query;
    const int rows = min(item.queries - query, 64);
    const int keys = min(position + rows + reach.right, item.keys);
    const Blocks seen{max(position - reach.left, 0) / Config::kKeys,
                      (max(keys, 0) + Config::kKeys - 1) / Config::kKeys};
    if (rows <= 0 || seen.begin >= seen.end) return {item.block_begin, item.block_begin};
    return seen;
  }

  /// Goes past blocks that others see, in step with them.
  __device__ void skip_blocks(int count) {
#pragma unroll 1
    for (; count > 0; --count) {
      shared.keys.wait_full(keys_at);
      wait_for_turn();
      pass_turn();
      release_keys();
      shared.values.wait_full(values_at);
      release_values();
    }
  }

  /// Lets the next tile's queries be loaded.
  __device__ void release_queries() {
    shared.queries[group].empty[0].arrive();
    queries_at.advance();
  }

  /// Zeroes values behind a short sequence's last, where the tensor goes on and may hold anything:
  /// 0 * NaN is NaN. Every warpgroup does, and writes the same zeros.
  __device__ void clear_values_behind(int keys) {
    char* const tile = shared.v[values_at.stage];
    const int pieces = (Config::kKeys - keys) * 8;
    shared.values.wait_full(values_at);
    for (int i = threadIdx.x % 128; i < Config::kValuePanels * pieces; i += 128) {
      char* const panel = tile + i / pieces * panel_bytes(Config::kKeys);
      const int piece = i % pieces;
      *reinterpret_cast<uint4*>(panel + panel_offset(keys + piece / 8, piece % 8)) = uint4{};
    }
    fence_shared_for_async_proxy();
    sync_warpgroup(kGroupBarrier + group);
  }

  /// Computes o, up to a factor, and returns what is needed for it.
  __device__ Softmax walk_blocks(const ForwardItem& item, Blocks blocks, Output& o) {
    const AttentionForwardProblem& problem = params.problem;
    // why not 0: times -inf it is NaN.
    Softmax softmax{.log2_scale = fmaxf(fabsf(problem.scale) * kLog2E, 1e-30f)};
    const Reach reach(problem.mask);
    const int position = item.position + query;
    const int keys = item.keys;
    // Blocks that all rows see whole.
    const int whole_end = min(position + reach.right + 1, keys) / Config::kKeys;
    const int whole_begin =
        (max(position + 63 - reach.left, 0) + Config::kKeys - 1) / Config::kKeys;
    const auto mask = [&](Scores& s, int block) {
      if (problem.scale < 0.0f) {
#pragma unroll
        for (int i = 0; i < Config::kKeys / 2; ++i) s[i] = -s[i];
      }
      if (block < whole_begin || block >= whole_end) {
        SeenKeys{reach, position + fragment_row(), block * Config::kKeys, keys}.mask(
            s, item.first_key_of<Config>(block));
      }
    };

    Scores s;
    Weights p;
    int block = blocks.end - 1;
    shared.keys.wait_full(keys_at);
    wait_for_turn();
    multiply_keys(s);
    pass_turn();
    wgmma_wait<0>();
    fence_registers(s);
    release_keys();
    mask(s, block);
    softmax.weigh(s, softmax.raise(s));
    round(s, p);
    if (keys < Config::kKeys && item.first_key + keys < problem.TK) clear_values_behind(keys);

    bool accumulate = false;
#pragma unroll 1
    while (--block >= blocks.begin) {
      shared.keys.wait_full(keys_at);
      wait_for_turn();
      multiply_keys(s);
      shared.values.wait_full(values_at);
      multiply_values(p, o, accumulate);
      accumulate = true;
      pass_turn();
      wgmma_wait<1>();
      fence_registers(s);
      release_keys();
      mask(s, block);
      const float2 factor = softmax.raise(s);
      softmax.weigh(s, factor);
      finish(s);
      // why no wait in a branch: a warpgroup's warps have to wait at the same place, and each
      // decides for itself. why the event, which nobody counts: ptxas moves nothing across it, or
      // it would wait for the products first, and then make the weights.
      const bool changes = changes_any(factor);
      if (changes) asm volatile("pmevent 0;");
      wgmma_wait<0>();
      fence_registers(o);
      hold_operand(p);
      if (changes) scale_rows(o, factor);
      release_values();
      round(s, p);
    }
    release_queries();
    shared.values.wait_full(values_at);
    multiply_values(p, o, accumulate);
    wgmma_wait<0>();
    fence_registers(o);
    hold_operand(p);
    release_values();
    return softmax;
  }

  /// Divides by the sums and stores o and the log-sum-exp.
  __device__ void store(const ForwardItem& item, const Softmax& softmax, const Output& o) const {
    const AttentionForwardProblem& problem = params.problem;
    const int first = item.first_query + query;
    const int rows = item.queries - query;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = softmax.sum[half];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      factor[half] = sum == 0.0f ? 0.0f : 1.0f / sum;
      const int row = fragment_row() + 8 * half;
      if (problem.log_sum_exp != nullptr && threadIdx.x % 4 == 0 && row < rows) {
        constexpr float kLn2 = 0.693147181f;
        const std::int64_t head = std::int64_t{item.batch} * problem.H + item.head;
        problem.log_sum_exp[head * problem.TQ + first + row] =
            sum == 0.0f ? -INFINITY : (softmax.reference[half] + log2f(sum)) * kLn2;
      }
    }
    const StridedTensor& to = problem.o;
    store_rows<Element>(o, factor,
                        static_cast<Element*>(to.data) + item.batch * to.batch_stride +
                            item.head * to.head_stride + first * to.time_stride,
                        to.time_stride, rows, problem.V);
  }

  __device__ void run() {
    if constexpr (Config::kTurns) {  // the first turn
      if (group == 0) cutlass::arch::NamedBarrier::arrive(256, kTurnBarrier);
    }
    typename Ring<Config::kItemSlots>::Position at;
    while (true) {
      shared.item_ring.wait_full(at);
      const ForwardItem& item = shared.items[at.stage];
      if (item.batch == ForwardItem::kNone) return;
      compute(item);
      shared.item_ring.empty[at.stage].arrive();
      at.advance();
    }
  }

  __device__ void compute(const ForwardItem& item) {
    query = item.query_of<Config>(group);
    turns = item.groups() == Config::kGroups;
    const Blocks own = seen_blocks(item);
    if (item.block_begin < item.block_end) shared.queries[group].wait_full(queries_at);
    skip_blocks(item.block_end - own.end);
    if (own.begin < own.end) {
      Output o;
      const Softmax softmax = walk_blocks(item, own, o);
      skip_blocks(own.begin - item.block_begin);
      store(item, softmax, o);
    } else {
      if (item.block_begin < item.block_end) release_queries();
      store_nothing(item);
    }
  }

  /// Stores zeros and -inf: the queries see no key.
  __device__ void store_nothing(const ForwardItem& item) const {
    Output o;
#pragma unroll
    for (float& value : o) value = 0.0f;
    store(item, Softmax{.log2_scale = 1.0f}, o);
  }
};

}  // namespace tandem::cuda::attention
