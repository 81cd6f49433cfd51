// The warpgroups of attention_weights_short_rows_kernel, and their tiles.
#pragma once

#include <cutlass/arch/memory_sm80.h>

#include "cuda/attention/reach.cuh"
#include "cuda/attention_weights/forward_params.h"
#include "cuda/attention_weights/query_tile.cuh"
#include "cuda/attention_weights/short_rows_shared.cuh"
#include "cuda/attention_weights/unaligned_rows.cuh"
#include "cuda/attention_weights/unshifted.cuh"
#include "cuda/parts/exp2.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::attention_weights {

/// Starts copying 16 bytes into shared memory, of which those from `bytes` on are zeros instead.
__device__ inline void copy_piece(void* to, const void* from, int bytes) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(cute::cast_smem_ptr_to_uint(to)),
      "l"(from), "r"(bytes)
      : "memory");
}

/// A thread has scores of two rows, eight apart, and of eight neighbouring keys of each 32.
template <class Config>
struct ShortRowsTiles {
  const ForwardParams& params;
  ShortRowsShared<Config>& shared;

  using Element = typename Config::Element;
  using Tile = QueryTile<kShortRowsQueries>;
  using Half = float[32];  // of the scores of 64 keys
  using Scores = Half[2];
  using OfRows = float[2];

  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const int group = warp / 4;
  const int lane = threadIdx.x % 32;
  const int first_key = group * kShortRowsKeys;
  const int own_key = lane % 4 * 8;  // of each 32
  const int keys = static_cast<int>(params.problem.TK);
  const int most_queries = static_cast<int>(params.problem.TQ);
  const float scale = exponent_scale(params.problem.scale);

  /// The row of shared memory where a key lies.
  static __device__ int row_of_key(int key) {
    return (key & ~31) + key / 2 % 4 * 8 + key / 8 % 4 * 2 + key % 2;
  }
  /// Of element `i` of a half: its key, counted from the thread's first one, and which row.
  static constexpr int key_of(int i) { return i / 16 * 32 + i / 4 % 4 * 2 + i % 2; }
  static constexpr int row_of(int i) { return i / 2 % 2; }

  /// Starts the load of a tile's queries. One thread.
  __device__ void load_queries(const Tile& at, int stage) const {
    shared.queries[stage].arrive_and_expect(sizeof(shared.q[0]));
    load_panel(params.q_map, shared.queries[stage], shared.q[stage],
               {0, at.head, at.query(), at.batch});
  }

  /// Starts the load of the warpgroup's keys of a head. All threads, as below.
  __device__ void load_keys(const Tile& at, int turn) const {
    const StridedTensor& k = params.problem.k;
    const int key_head = at.head / static_cast<int>(params.problem.H / params.problem.HKV);
    const auto* from =
        static_cast<const Element*>(k.data) + at.batch * k.batch_stride + key_head * k.head_stride;
    const int piece = threadIdx.x % 8;
    const int bytes = max(0, min(8, static_cast<int>(params.problem.K) - 8 * piece)) * 2;
#pragma unroll
    for (int i = 0; i < kShortRowsKeys / 16; ++i) {
      const int key = 16 * i + threadIdx.x % 128 / 8;
      const bool exists = bytes > 0 && first_key + key < keys;
      copy_piece(shared.k[turn][group] + panel_offset(row_of_key(key), piece),
                 exists ? from + (first_key + key) * k.time_stride + 8 * piece : from,
                 exists ? bytes : 0);
    }
  }
  /// Waits for this thread's part of keys. All see them after the CTA's next barrier.
  __device__ static void wait_keys() {
    cutlass::arch::cp_async_wait<0>();
    fence_shared_for_async_proxy();
  }

  RingPosition<Config::kQueryStages> queries;
  int keys_turn = 0;

  /// Starts the products of a half.
  __device__ __forceinline__ void start(Half& s, int half) const {
    const std::uint64_t q = k_major_descriptor<kShortRowsQueries>(shared.q[queries.stage], 0);
    const std::uint64_t k =
        k_major_descriptor<kShortRowsKeys>(shared.k[keys_turn][group] + half * panel_bytes(64), 0);
    fence_registers(s);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma_ss<Element, 64, Major::K, Major::K>(s, move_descriptor(q, 32 * step),
                                                move_descriptor(k, 32 * step), step > 0);
    }
    wgmma_commit();
  }

  /// How many of the warpgroup's keys a query sees, not above 0 where none.
  __device__ int seen(int query) const {
    const int right = attention::Reach(params.problem.mask).right, most = keys - first_key;
    if (right == attention::Reach::kFar) return most;
    return min(most, query - most_queries + right + 1 + most);
  }
  /// Gives keys of a half that are not seen another value.
  __device__ __forceinline__ void mask(Half& s, int half, int query, float hidden) const {
    if (seen(query) >= 64 * (half + 1)) return;
    int ends[2] = {seen(query + fragment_row()) - own_key - 64 * half,
                   seen(query + fragment_row() + 8) - own_key - 64 * half};
    // why: what follows from it would be kept in registers from one call to the next.
    asm volatile("" : "+r"(ends[0]), "+r"(ends[1]));
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = key_of(i) < ends[row_of(i)] ? s[i] : hidden;
  }

  /// Replaces scores of a half by 2^(scale s - shift), and adds them up.
  __device__ __forceinline__ static void weigh(Half& s, float scale, const OfRows& shift,
                                               OfRows& sums) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s[i] = fast_exp2(fmaf(s[i], scale, -shift[row_of(i)]));
      sums[row_of(i)] += s[i];
    }
  }
  /// Takes exponentials of a half whose products are complete.
  __device__ __forceinline__ void take(Half& s, int half, int query, OfRows& sums) const {
    fence_registers(s);
    if (seen(query + kShortRowsQueries - 1) <= 64 * half) return;
    mask(s, half, query, scale < 0.0f ? INFINITY : -INFINITY);
    weigh(s, scale, {}, sums);
  }

  int turn = 0;  // of what warpgroups tell each other

  /// Combines values of the rows over the lanes that have them, and tells all.
  template <class Combine>
  __device__ __forceinline__ void tell(OfRows& values, const Combine& both) {
    turn ^= 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      values[i] = both(values[i], __shfl_xor_sync(0xFFFFFFFFu, values[i], 1));
      values[i] = both(values[i], __shfl_xor_sync(0xFFFFFFFFu, values[i], 2));
      if (lane % 4 == 0) shared.told[turn][group][fragment_row() + 8 * i] = values[i];
    }
  }
  /// After a barrier: what was told of a row, combined.
  template <class Combine>
  __device__ __forceinline__ float hear(int row, const Combine& both) const {
    float value = shared.told[turn][0][row];
#pragma unroll
    for (int i = 1; i < Config::kGroups; ++i) value = both(value, shared.told[turn][i][row]);
    return value;
  }
  struct Sum {
    __device__ float operator()(float a, float b) const { return a + b; }
  };
  struct Largest {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  };

  /// Scores and their exponentials once more, where sums do not hold relative to the row's largest
  /// score. Other rows stay as they were, to the bit.
  __device__ __forceinline__ void weigh_relative(Scores& s, int query, OfRows& sums) {
    start(s[0], 0);
    start(s[1], 1);
    wgmma_wait<0>();
    OfRows tops = {-INFINITY, -INFINITY};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      fence_registers(s[half]);
#pragma unroll
      for (float& score : s[half]) score *= scale;
      mask(s[half], half, query, -INFINITY);
#pragma unroll
      for (int i = 0; i < 32; ++i) tops[row_of(i)] = fmaxf(tops[row_of(i)], s[half][i]);
    }
    tell(tops, Largest());
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float top = hear(fragment_row() + 8 * i, Largest());
      tops[i] = sum_holds(sums[i]) || top == -INFINITY ? 0.0f : top;
      sums[i] = 0.0f;
    }
#pragma unroll
    for (Half& half : s) weigh(half, 1.0f, tops, sums);
    tell(sums, Sum());
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i] = hear(fragment_row() + 8 * i, Sum());
  }

  /// The warp's first weight of a tile.
  __device__ Element* weights_of(const Tile& at) const {
    const StridedTensor& w = params.problem.w;
    return static_cast<Element*>(w.data) + at.batch * w.batch_stride + at.head * w.head_stride +
           (at.query() + warp % 4 * 16) * w.time_stride + first_key;
  }
  /// Makes weights of a half of a tile, and stores them, or puts them where store_rows() finds
  /// them. `to` is the warp's first one.
  __device__ __forceinline__ void put(Half& s, int half, int query, const OfRows& factors,
                                      Element* to) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] *= factors[row_of(i)];
    mask(s, half, query, 0.0f);
    const std::int64_t stride = params.problem.w.time_stride;
    const int rows = most_queries - query - fragment_row();
    const int columns = keys - first_key - own_key - 64 * half;
    if constexpr (Config::kPieces) to += lane / 4 * stride + 64 * half + own_key;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int first = 16 * block + 4 * i + 2 * row;
          words[i] = pack_pair<Element>(s[first], s[first + 1]);
        }
        const uint4 piece = make_uint4(words[0], words[1], words[2], words[3]);
        if constexpr (!Config::kPieces) {
          *reinterpret_cast<uint4*>(
              shared.w[warp] + padded_offset(lane / 4 + 8 * row, lane % 4 + 4 * block)) = piece;
        } else if (8 * row < rows && 32 * block < columns) {
          __stcs(reinterpret_cast<uint4*>(to + 8 * row * stride + 32 * block), piece);
        }
      }
    }
  }
  /// Stores the half that put() has put into shared memory.
  __device__ __forceinline__ void store_rows(int half, int query, Element* to) const {
    if constexpr (!Config::kPieces) {
      __syncwarp();
      store_padded_rows<16>(shared.w[warp], to + 64 * half, params.problem.w.time_stride,
                            most_queries - query - warp % 4 * 16,
                            min(64, keys - first_key - 64 * half));
      __syncwarp();
    }
  }

  __device__ void run() {
    // This CTA's equal share of all tiles.
    const AttentionSizes& sizes = params.problem;
    Tile at(sizes, 0);
    const std::int64_t tiles = sizes.B * sizes.H * at.tiles_per_head;
    at = Tile(sizes, static_cast<int>(blockIdx.x * tiles / gridDim.x));
    const int end = static_cast<int>((blockIdx.x + 1) * tiles / gridDim.x);
    Tile next = at, next_head = at;  // whose queries, and whose keys, are loaded next
    const auto load_next_queries = [&](int stage) {
      if (next.tile < end && threadIdx.x == 0) load_queries(next, stage);
      next.advance();
    };
    const auto load_next_keys = [&](int turn) {
      if (next_head.tile < end) load_keys(next_head, turn);
      next_head.advance_head();
    };
    for (int stage = 0; stage < Config::kQueryStages; ++stage) load_next_queries(stage);
    load_next_keys(0);
    wait_keys();
    __syncthreads();
    load_next_keys(1);
    const auto wait_queries = [&] { shared.queries[queries.stage].wait(queries.parity); };
    wait_queries();
    Scores s = {};
    start(s[0], 0);
    start(s[1], 1);
    Element* to = weights_of(at);
    while (true) {
      const int query = at.query();
      OfRows sums = {};
      wgmma_wait<1>();
      take(s[0], 0, query, sums);
      wgmma_wait<0>();
      take(s[1], 1, query, sums);
      tell(sums, Sum());
      at.advance();
      const bool last = at.tile == end, other_head = at.in_head == 0;
      if (other_head) wait_keys();
      __syncthreads();
      // All warps find the same.
      const bool all_hold = sum_holds(hear(lane, Sum())) && sum_holds(hear(lane + 32, Sum()));
#pragma unroll
      for (int i = 0; i < 2; ++i) sums[i] = hear(fragment_row() + 8 * i, Sum());
      if (!__all_sync(0xFFFFFFFFu, all_hold)) weigh_relative(s, query, sums);
      // All have read the queries, and where a head ends the keys.
      load_next_queries(queries.stage);
      queries.advance();
      if (other_head) {
        load_next_keys(keys_turn);
        keys_turn ^= 1;
      }
      OfRows factors;
#pragma unroll
      for (int i = 0; i < 2; ++i) factors[i] = sums[i] == 0.0f ? 0.0f : reciprocal(sums[i]);
      put(s[0], 0, query, factors, to);
      if (last) {
        store_rows(0, query, to);
        put(s[1], 1, query, factors, to);
        store_rows(1, query, to);
        return;
      }
      wait_queries();
      start(s[0], 0);
      store_rows(0, query, to);
      put(s[1], 1, query, factors, to);
      start(s[1], 1);
      store_rows(1, query, to);
      to = other_head ? weights_of(at) : to + kShortRowsQueries * params.problem.w.time_stride;
    }
  }
};

}  // namespace tandem::cuda::attention_weights
