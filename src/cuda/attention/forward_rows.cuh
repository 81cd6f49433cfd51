// The rows role of attention_forward_kernel: a warpgroup's 64 queries of a tile.
#pragma once

#include "cuda/attention/forward_shared.cuh"
#include "cuda/attention/forward_softmax.cuh"
#include "cuda/attention/product_sizes.cuh"
#include "cuda/attention/store_rows.cuh"

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

  using Element = typename Config::Element;
  using Position = typename Ring<Config::kStages>::Position;
  using Scores = float[Config::kKeys / 2];
  using Weights = std::uint32_t[Config::kKeys / 16][4];
  using Output = float[Config::kValueDim / 2];

  Position keys_at{}, values_at{};
  typename Ring<Config::kQueryStages>::Position queries_at{};

  /// Waits until the warpgroup before this one has issued its products, or lets the next: one's
  /// softmax then runs beside the products of the others.
  __device__ void wait_for_turn() const {
    if constexpr (Config::kTurns) cutlass::arch::NamedBarrier::sync(256, kTurnBarrier + group);
  }
  __device__ void pass_turn() const {
    if constexpr (Config::kTurns) {
      const int next = group + 1 == Config::kGroups ? 0 : group + 1;
      cutlass::arch::NamedBarrier::arrive(256, kTurnBarrier + next);
    }
  }

  /// Issues S = Q Kt for the block in the ring's next stage.
  __device__ void multiply_keys(Scores& s) const {
    const std::uint64_t q = k_major_descriptor(shared.q[queries_at.stage][group], 0);
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
    const int position = item.position + 64 * group;
    const int rows = min(item.queries - 64 * group, 64);
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
    shared.queries[group].empty[queries_at.stage].arrive();
    queries_at.advance();
  }

  /// Zeroes values behind a sequence's last, where tensors may hold anything: 0 * NaN is NaN. Every
  /// warpgroup does, and writes the same zeros.
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

  /// A tile's part of this warpgroup.
  struct Tile {
    SeenKeys seen;
    Blocks blocks;               // at least one
    int whole_begin, whole_end;  // blocks that all rows see whole
  };
  __device__ Tile tile_of(const ForwardItem& item, Blocks blocks) const {
    const Reach reach(params.problem.mask);
    const int position = item.position + 64 * group;
    return {{reach, position + fragment_row(), item.keys},
            blocks,
            (max(position + 63 - reach.left, 0) + Config::kKeys - 1) / Config::kKeys,
            min(position + reach.right + 1, item.keys) / Config::kKeys};
  }
  __device__ void mask(const Tile& tile, Scores& s, int block) const {
    if (params.problem.scale < 0.0f) {
#pragma unroll
      for (int i = 0; i < Config::kKeys / 2; ++i) s[i] = -s[i];
    }
    if (block < tile.whole_begin || block >= tile.whole_end) {
      tile.seen.mask(s, block * Config::kKeys);
    }
  }

  /// Waits for S of a block, while the products of the values of the one before may go on.
  template <int kOthers>
  __device__ void wait_for_scores(const Tile& tile, Scores& s, int block) {
    wgmma_wait<kOthers>();
    fence_registers(s);
    release_keys();
    if (block == tile.blocks.begin) release_queries();
    mask(tile, s, block);
  }

  /// Waits for the products of p, behind the next block's weights `s`, and rounds these to p.
  __device__ void wait_for_output(Scores& s, Weights& p, Output& o, float2 factor, bool scales) {
    finish(s);
    // why no wait in a branch: a warpgroup's warps have to wait at the same place, and each
    // decides for itself. why the event, which nobody counts: ptxas moves nothing across it, or
    // it would wait for the products first, and then make the weights.
    const bool changes = changes_any(factor);
    if (changes) asm volatile("pmevent 0;");
    wgmma_wait<0>();
    fence_registers(o);
    hold_operand(p);
    if (scales && changes) scale_rows(o, factor);
    release_values();
    round(s, p);
  }

  /// Makes the weights of a tile's last block, the first one that is done. `kJoined`: beside the
  /// products of the tile before, which make `o` whole.
  template <bool kJoined>
  __device__ Softmax begin_tile(const Tile& tile, Weights& p, Output& o, bool accumulate) {
    // why not 0: times -inf it is NaN.
    Softmax softmax{.log2_scale = fmaxf(fabsf(params.problem.scale) * kLog2E, 1e-30f)};
    Scores s;
    shared.queries[group].wait_full(queries_at);
    shared.keys.wait_full(keys_at);
    wait_for_turn();
    multiply_keys(s);
    if constexpr (kJoined) {
      shared.values.wait_full(values_at);
      multiply_values(p, o, accumulate);
    }
    pass_turn();
    wait_for_scores<kJoined ? 1 : 0>(tile, s, tile.blocks.end - 1);
    const float2 factor = softmax.raise(s);
    softmax.weigh(s, factor);
    if constexpr (kJoined) {
      wait_for_output(s, p, o, factor, false);
    } else {
      round(s, p);
    }
    return softmax;
  }

  /// Goes through the tile's other blocks. The products of the last of them are left to do.
  __device__ void walk_blocks(const Tile& tile, Softmax& softmax, Weights& p, Output& o) {
#pragma unroll 1
    for (int block = tile.blocks.end - 2; block >= tile.blocks.begin; --block) {
      Scores s;
      shared.keys.wait_full(keys_at);
      wait_for_turn();
      multiply_keys(s);
      shared.values.wait_full(values_at);
      multiply_values(p, o, block + 2 < tile.blocks.end);
      pass_turn();
      wait_for_scores<1>(tile, s, block);
      const float2 factor = softmax.raise(s);
      softmax.weigh(s, factor);
      wait_for_output(s, p, o, factor, true);
    }
  }

  __device__ void finish_output(const Weights& p, Output& o, bool accumulate) {
    shared.values.wait_full(values_at);
    multiply_values(p, o, accumulate);
    wgmma_wait<0>();
    fence_registers(o);
    hold_operand(p);
    release_values();
  }

  /// Divides by the sums and stores o and the log-sum-exp.
  __device__ void store(const ForwardItem& item, const Softmax& softmax, const Output& o) const {
    const AttentionForwardProblem& problem = params.problem;
    const int first = item.first_query + 64 * group;
    const int rows = item.queries - 64 * group;
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

  /// A tile's last products and its results are left until the next one's first scores are on
  /// their way, unless blocks lie between the two that only other warpgroups see.
  __device__ void run() {
    if constexpr (Config::kTurns) {  // the first turn
      if (group == 0) cutlass::arch::NamedBarrier::arrive(256, kTurnBarrier);
    }
    using ItemPosition = typename Ring<Config::kItemSlots>::Position;
    ItemPosition at, open_at;
    bool open = false;     // the tile before is not done
    bool several = false;  // it has several blocks, and o their products but the last
    int behind = 0;        // its blocks behind those, for others
    Output o;
    Weights p;
    Softmax softmax{};
    const auto store_open = [&](const Softmax& of) {
      store(shared.items[open_at.stage], of, o);
      shared.item_ring.empty[open_at.stage].arrive();
    };
#pragma unroll 1
    for (;; at.advance()) {
      shared.item_ring.wait_full(at);
      const ForwardItem& item = shared.items[at.stage];
      const bool none = item.batch == ForwardItem::kNone;
      const Blocks own = none ? Blocks{} : seen_blocks(item);
      const bool sees = own.begin < own.end;
      const bool joined = open && sees && behind == 0 && own.end == item.block_end;
      if (open && !joined) {
        finish_output(p, o, several);
        skip_blocks(behind);
        store_open(softmax);
      }
      if (none) return;
      open = sees;
      if (!sees) {
        pass_over(item);
        shared.item_ring.empty[at.stage].arrive();
        continue;
      }
      const Tile tile = tile_of(item, own);
      if (joined) {
        const Softmax before = softmax;
        softmax = begin_tile<true>(tile, p, o, several);
        store_open(before);
      } else {
        skip_blocks(item.block_end - own.end);
        softmax = begin_tile<false>(tile, p, o, several);
      }
      const int last_keys = item.keys - (own.end - 1) * Config::kKeys;
      if (last_keys < Config::kKeys) clear_values_behind(last_keys);
      walk_blocks(tile, softmax, p, o);
      several = own.end - own.begin > 1;
      behind = own.begin - item.block_begin;
      open_at = at;
    }
  }

  /// A tile of which the queries see no key: zeros and -inf.
  __device__ void pass_over(const ForwardItem& item) {
    if (item.block_begin < item.block_end) {
      shared.queries[group].wait_full(queries_at);
      skip_blocks(item.block_end - item.block_begin);
      release_queries();
    }
    Output o;
#pragma unroll
    for (float& value : o) value = 0.0f;
    store(item, Softmax{.log2_scale = 1.0f}, o);
  }
};

}  // namespace tandem::cuda::attention
