// The warps of attention_weights_whole_rows_kernel, and their tiles.
#pragma once

#include "cuda/attention/reach.cuh"
#include "cuda/attention_weights/forward_params.h"
#include "cuda/attention_weights/query_tile.cuh"
#include "cuda/attention_weights/unaligned_rows.cuh"
#include "cuda/attention_weights/unshifted.cuh"
#include "cuda/attention_weights/whole_rows_shared.cuh"
#include "cuda/parts/exp2.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/ring.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::attention_weights {

/// Starts storing a panel as store_panel() does, to leave the L2 cache first.
__device__ inline void store_panel_once(const CUtensorMap& map, const void* panel,
                                        TileCoordinate at) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint"
      " [%0, {%2, %3, %4, %5}], [%1], policy;\n"
      "}\n" ::"l"(&map),
      "r"(cute::cast_smem_ptr_to_uint(panel)), "r"(at.column), "r"(at.head), "r"(at.time),
      "r"(at.batch)
      : "memory");
  cute::tma_store_arrive();
}

/// A warp has 16 keys of each of its warpgroup's four blocks, which are neighbours: 64. Two blocks
/// are a half.
template <class Config>
struct WholeRowsTiles {
  const ForwardParams& params;
  WholeRowsShared<Config>& shared;

  using Element = typename Config::Element;
  using Tile = QueryTile<kWholeRowsQueries>;

  static constexpr int kWarps = Config::kWarps;
  static constexpr int kWarpKeys = 64;
  static constexpr int kOwn = Config::kQueries / 4;  // queries of which a thread has scores
  // Of each half and block: two keys, eight apart, and kOwn queries.
  using Scores = float[2][2][2 * kOwn];
  using OfQueries = float[kOwn];
  static __device__ int element(int query, int key) { return query / 2 * 4 + 2 * key + query % 2; }
  /// One of this thread's queries.
  static __device__ int own_query(int i) { return fragment_column(i / 2) + i % 2; }

  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int first_key = warp * kWarpKeys;
  const int keys = static_cast<int>(params.problem.TK);
  const float scale = exponent_scale(params.problem.scale);

  /// Starts the load of a tile's queries. One thread, as below.
  __device__ void load_queries(const Tile& at, int stage) const {
    Barrier& full = shared.queries[stage];
    full.arrive_and_expect(Config::kQueryBytes);
#pragma unroll
    for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
      load_panel(params.q_map, full, shared.q[stage] + panel * panel_bytes(Config::kQueries),
                 {panel * kPanelColumns, at.head, at.query(), at.batch});
    }
  }

  /// Starts the load of the warp's keys of a head. Of a block they are 16 rows.
  __device__ void load_keys(const Tile& at) const {
    const int key_head = at.head / static_cast<int>(params.problem.H / params.problem.HKV);
    shared.keys.arrive_and_expect(Config::kBlockBytes);
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      char* to = shared.k[block * (kWarps / 4) + warp / 4] + warp % 4 * panel_bytes(kWholeRowsBox);
#pragma unroll
      for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
        load_panel(params.k_map, shared.keys, to + panel * panel_bytes(64),
                   {panel * kPanelColumns, key_head, first_key + block * kWholeRowsBox, at.batch});
      }
    }
  }

  template <int kHalf>
  __device__ __forceinline__ static void fence(Scores& s) {
#pragma unroll
    for (int block = 0; block < 2; ++block) fence_registers(s[kHalf][block]);
  }
  /// Starts the products of a half.
  template <int kHalf>
  __device__ __forceinline__ static void start(Scores& s, std::uint64_t k, std::uint64_t q) {
    // why: what is added to them would be kept in registers from one product to the next.
    asm volatile("" : "+l"(k), "+l"(q));
    fence<kHalf>(s);
    wgmma_begin();
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          wgmma_ss<Element, Config::kQueries, Major::K, Major::K>(
              s[kHalf][block],
              move_descriptor(k, kWarps / 4 * (2 * kHalf + block) * Config::kBlockBytes +
                                     panel * panel_bytes(64) + 32 * step),
              move_descriptor(q, panel * panel_bytes(Config::kQueries) + 32 * step),
              panel + step > 0);
        }
      }
    }
    wgmma_commit();
  }

  /// What a tile's queries see of a warp's keys: `limit` the first one, each one `more` than the
  /// one before, and no more than there are.
  struct Sight {
    int limit;
    int more;  // 1 with a mask
    int most;

    __device__ int of(int query) const { return min(limit + more * query, most); }
    /// Whether all see all, or none sees any.
    __device__ bool all() const { return of(0) >= kWarpKeys; }
    __device__ bool none() const { return of(Config::kQueries - 1) <= 0; }
  };
  __device__ Sight sight_of(const Tile& at) const {
    const AttentionWeightsForwardProblem& problem = params.problem;
    const int right = attention::Reach(problem.mask).right, most = keys - first_key;
    if (right == attention::Reach::kFar) return {most, 0, most};
    return {at.query() - static_cast<int>(problem.TQ) + right + 1 + most, 1, most};
  }

  /// Gives keys of a half that are not seen another value.
  template <int kHalf>
  __device__ __forceinline__ void mask(Scores& s, const Sight& sight, float hidden) const {
    if (sight.all()) return;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      int end = sight.of(own_query(i)) - lane / 4;
      // why: what follows from it would be kept in registers from one call to the next.
      asm volatile("" : "+r"(end));
#pragma unroll
      for (int block = 0; block < 2; ++block) {
#pragma unroll
        for (int key = 0; key < 2; ++key) {
          float& score = s[kHalf][block][element(i, key)];
          score = 32 * kHalf + 16 * block + 8 * key < end ? score : hidden;
        }
      }
    }
  }

  /// Replaces scores of a half by 2^(scale s - shift), and adds them up.
  template <int kHalf>
  __device__ __forceinline__ static void weigh(Scores& s, float scale, const OfQueries& shift,
                                               OfQueries& sums) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int key = 0; key < 2; ++key) {
          float& score = s[kHalf][block][element(i, key)];
          score = fast_exp2(fmaf(score, scale, -shift[i]));
          sums[i] += score;
        }
      }
    }
  }

  int turn = 0;  // of what warps tell each other

  /// Combines each query's values of the eight lanes that have it, and then of the warps. Each lane
  /// gets the result of one query, the one that it keeps.
  template <class Combine>
  __device__ __forceinline__ float combine(OfQueries& values, const Combine& both) {
    static_assert(kOwn == 8);
#pragma unroll
    for (int count = 4; count > 0; count /= 2) {
      const int distance = 4 * count;
      const bool upper = (lane & distance) != 0;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float given = upper ? values[i] : values[i + count];
        const float own = upper ? values[i + count] : values[i];
        values[i] = both(own, __shfl_xor_sync(0xFFFFFFFFu, given, distance));
      }
    }
    turn ^= 1;
    float* told = shared.told[turn][own_query(lane / 4)];
    told[warp] = values[0];
    __syncthreads();
    float4 four = *reinterpret_cast<const float4*>(told);
#pragma unroll
    for (int i = 4; i < kWarps; i += 4) {
      const float4 more = *reinterpret_cast<const float4*>(told + i);
      four = {both(four.x, more.x), both(four.y, more.y), both(four.z, more.z),
              both(four.w, more.w)};
    }
    return both(both(four.x, four.y), both(four.z, four.w));
  }
  /// Of each of this thread's queries what the lane that keeps it has.
  __device__ __forceinline__ void from_keepers(float kept, OfQueries& values) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      values[i] = __shfl_sync(0xFFFFFFFFu, kept, 4 * i + lane % 4);
    }
  }

  /// Scores and their exponentials once more, where sums do not hold relative to the row's largest
  /// score: returns the sum of the exponentials of the query that a lane keeps. Other rows stay as
  /// they were, to the bit.
  __device__ __forceinline__ float weigh_relative(Scores& s, const Tile& at, std::uint64_t k,
                                                  std::uint64_t q, bool holds) {
    const Sight sight = sight_of(at);
    start<0>(s, k, q);
    start<1>(s, k, q);
    wgmma_wait<0>();
    fence<0>(s);
    fence<1>(s);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
#pragma unroll
        for (int i = 0; i < 2 * kOwn; ++i) s[half][block][i] *= scale;
      }
    }
    mask<0>(s, sight, -INFINITY);
    mask<1>(s, sight, -INFINITY);
    OfQueries tops, sums = {};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      tops[i] = -INFINITY;
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        const auto& scores = s[block / 2][block % 2];
        tops[i] = fmaxf(tops[i], fmaxf(scores[element(i, 0)], scores[element(i, 1)]));
      }
    }
    const float top = combine(tops, [](float a, float b) { return fmaxf(a, b); });
    from_keepers(holds || top == -INFINITY ? 0.0f : top, tops);
    weigh<0>(s, 1.0f, tops, sums);
    weigh<1>(s, 1.0f, tops, sums);
    return combine(sums, [](float a, float b) { return a + b; });
  }

  /// Rounds weights of a half into the warp's panel.
  template <int kHalf>
  __device__ __forceinline__ void put(Scores& s, const Tile& at, const OfQueries& factors) const {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int i = 0; i < 2 * kOwn; ++i) s[kHalf][block][i] *= factors[i / 4 * 2 + i % 2];
    }
    mask<kHalf>(s, sight_of(at), 0.0f);
    // Of the four matrices of eight keys by eight queries that a warp writes at a time, the first
    // two are of the same queries.
    const int row = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int piece = 2 * (2 * kHalf + block) + lane / 8 % 2;
      char* to =
          shared.w[warp] + (Config::kPieces ? panel_offset(row, piece) : padded_offset(row, piece));
#pragma unroll
      for (int step = 0; step < kOwn / 4; ++step) {
        std::uint32_t packed[4];
        accumulator_to_operand<Element>(s[kHalf][block], step, packed);
        cute::SM90_U16x8_STSM_T::copy(packed[0], packed[1], packed[2], packed[3],
                                      *reinterpret_cast<cute::uint128_t*>(
                                          to + step * WholeRowsShared<Config>::kWeightsBytes / 2));
      }
    }
  }
  /// Stores the warp's panel.
  __device__ void store(const Tile& at) const {
    if constexpr (Config::kPieces) {
      fence_shared_for_async_proxy();
      __syncwarp();
      if (lane == 0 && first_key < keys) {
        store_panel_once(params.w_map, shared.w[warp], {first_key, at.head, at.query(), at.batch});
      }
    } else {
      const StridedTensor& w = params.problem.w;
      __syncwarp();
      store_padded_rows<Config::kQueries>(
          shared.w[warp],
          static_cast<Element*>(w.data) + at.batch * w.batch_stride + at.head * w.head_stride +
              at.query() * w.time_stride + first_key,
          w.time_stride, static_cast<int>(params.problem.TQ) - at.query(),
          min(kWarpKeys, keys - first_key));
    }
  }
  /// Waits until the panel may be written again.
  __device__ void wait_stored() const {
    if (Config::kPieces && lane == 0) wait_stores_read();
    __syncwarp();
  }

  /// Takes exponentials of a half, and adds them up.
  template <int kHalf>
  __device__ __forceinline__ void take(Scores& s, const Sight& sight, OfQueries& sums) const {
    fence<kHalf>(s);
    if (sight.none()) return;
    mask<kHalf>(s, sight, scale < 0.0f ? INFINITY : -INFINITY);
    weigh<kHalf>(s, scale, {}, sums);
  }

  __device__ void run() {
    // This CTA's equal share of all tiles.
    Tile at(params.problem, 0);
    const std::int64_t tiles = params.problem.B * params.problem.H * at.tiles_per_head;
    at = Tile(params.problem, static_cast<int>(blockIdx.x * tiles / gridDim.x));
    const int end = static_cast<int>((blockIdx.x + 1) * tiles / gridDim.x);
    if (lane == 0) load_keys(at);
    Tile next = at;  // whose queries are loaded next
    const auto load_next_queries = [&](int stage) {
      if (next.tile < end && threadIdx.x == 0) load_queries(next, stage);
      next.advance();
    };
    for (int stage = 0; stage < Config::kQueryStages; ++stage) load_next_queries(stage);
    const std::uint64_t k = k_major_descriptor(shared.k[warp / 4], 0);
    RingPosition<Config::kQueryStages> queries;
    std::uint32_t keys_parity = 0;
    // A tile's exponentials, until the next one's are made, and what they are to be multiplied by.
    Scores s = {};
    OfQueries factors = {};
    Tile before = at;
    for (bool first = true; at.tile < end; first = false) {
      shared.keys.wait(keys_parity);
      shared.queries[queries.stage].wait(queries.parity);
      const std::uint64_t q = k_major_descriptor<Config::kQueries>(shared.q[queries.stage], 0);
      const Sight sight = sight_of(at);
      OfQueries sums = {};
      wait_stored();
      put<0>(s, before, factors);
      start<0>(s, k, q);
      wgmma_wait<1>();  // of none, which the compiler does not know
      put<1>(s, before, factors);
      start<1>(s, k, q);
      wgmma_wait<1>();
      take<0>(s, sight, sums);
      // why here: sooner the fence would wait for what has just been put.
      if (!first) store(before);
      wgmma_wait<0>();
      take<1>(s, sight, sums);
      float sum = combine(sums, [](float a, float b) { return a + b; });
      // The same in all warps, which have all queries.
      const bool holds = sum_holds(sum);
      if (!__all_sync(0xFFFFFFFFu, holds)) sum = weigh_relative(s, at, k, q, holds);
      from_keepers(sum == 0.0f ? 0.0f : reciprocal(sum), factors);
      before = at;
      at.advance();
      // All have read the queries, and where a head ends the keys.
      load_next_queries(queries.stage);
      queries.advance();
      if (at.in_head == 0) {
        if (at.tile < end && lane == 0) load_keys(at);
        keys_parity ^= 1;
      }
    }
    wait_stored();
    put<0>(s, before, factors);
    put<1>(s, before, factors);
    store(before);
    wait_stored();
  }
};

}  // namespace tandem::cuda::attention_weights
