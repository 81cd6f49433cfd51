// The rows role of attention_weights_forward_kernel: a warpgroup and its tiles of 64 queries.
#pragma once

#include "cuda/attention/forward_softmax.cuh"
#include "cuda/attention_weights/forward_exp2.cuh"
#include "cuda/attention_weights/forward_store.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::attention_weights {

template <class Config>
struct ForwardRows {
  const ForwardParams& params;
  ForwardShared<Config>& shared;
  const int group;

  using Element = typename Config::Element;
  using Scores = float[Config::kKeys / 2];

  typename Ring<Config::kStages>::Position keys_at{};
  int queries_stage = 0;

  /// Lets the next block take this one's place.
  __device__ void release_keys() {
    shared.keys.empty[keys_at.stage].arrive();
    keys_at.advance();
  }

  /// S of the next block, with the sign of the scale.
  __device__ void multiply(Scores& s) {
    const std::uint64_t q = k_major_descriptor(shared.q[group][queries_stage], 0);
    const std::uint64_t k = k_major_descriptor<Config::kKeys>(shared.k[keys_at.stage], 0);
    shared.keys.wait_full(keys_at);
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
    wgmma_wait<0>();
    fence_registers(s);
    release_keys();
    if (params.problem.scale < 0.0f) {
#pragma unroll
      for (float& score : s) score = -score;
    }
  }

  /// Goes past blocks that other warpgroups see.
  __device__ void skip(int blocks) {
#pragma unroll 1
    for (; blocks > 0; --blocks) {
      shared.keys.wait_full(keys_at);
      release_keys();
    }
  }

  /// What a tile's rows see.
  struct Sight {
    attention::SeenKeys keys;
    int whole_blocks;  // that all rows see whole
    int blocks;
  };
  __device__ Sight sight(int query) const {
    const int position = query + shared.strip.distance;
    return {{attention::Reach(params.problem.mask), position + fragment_row(), shared.strip.keys},
            min(position + shared.strip.right + 1, shared.strip.keys) / Config::kKeys,
            shared.strip.seen_blocks(query)};
  }

  /// What is added to exponents. In a row that sees nothing these are -inf.
  __device__ static float shift(const attention::Softmax& softmax, int row) {
    return softmax.reference[row] == -INFINITY ? 0.0f : -softmax.reference[row];
  }

  /// The sums of a block's weights, this thread's share of them.
  __device__ static float2 add_up(const Scores& s, const attention::Softmax& softmax) {
    float sums[2][2] = {};
#pragma unroll
    for (int i = 0; i < Config::kKeys / 2; ++i) {
      const int row = i / 2 % 2;
      sums[row][i % 2] += shared_exp2(i, fmaf(s[i], softmax.log2_scale, shift(softmax, row)));
    }
    return {sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]};
  }

  /// Adds a block's weights to the rows' sums. References are the first block's largest scores, and
  /// raised where weights come near what fp32 holds: to look for each block's largest would take as
  /// long as the weights do.
  __device__ static void add_block(const Scores& s, attention::Softmax& softmax, bool first) {
    constexpr float kMost = 0x1p96f;
    const auto any = [](bool row) { return __any_sync(0xFFFFFFFFu, row) != 0; };
    bool raises = first || any(fminf(softmax.reference[0], softmax.reference[1]) == -INFINITY);
    float2 added;
#pragma unroll 1
    for (bool done = false; !done; raises = true) {
      if (raises) {
        const float2 factor = softmax.raise(s);
        softmax.sum[0] *= factor.x;
        softmax.sum[1] *= factor.y;
      }
      added = add_up(s, softmax);
      done = raises || !any(fmaxf(added.x, added.y) > kMost);
    }
    softmax.sum[0] += added.x;
    softmax.sum[1] += added.y;
  }

  /// The first pass: finds what the rows' weights are measured by, and stores those of the last
  /// block, which are there.
  __device__ void find_sums(int query, attention::Softmax& softmax) {
    const Sight sees = sight(query);
    Scores s;
#pragma unroll 1
    for (int block = 0; block < sees.blocks; ++block) {
      multiply(s);
      if (block >= sees.whole_blocks) sees.keys.mask(s, block * Config::kKeys);
      if (block < sees.blocks - 1) add_block(s, softmax, block == 0);
    }
    if (sees.blocks > 0) softmax.weigh(s, softmax.raise(s), shared_exp2);
#pragma unroll
    for (float& sum : softmax.sum) {
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      // What each weight is multiplied by; 0 in a row that sees nothing.
      sum = sum == 0.0f ? 0.0f : 1.0f / sum;
    }
    if (sees.blocks > 0) store(s, softmax, sees, query, sees.blocks - 1);
  }

  /// The second pass: scores again, their weights, and zeros behind what the tile sees.
  __device__ void store_weights(int query, const attention::Softmax& softmax) {
    const Sight sees = sight(query);
#pragma unroll 1
    for (int block = 0; block < sees.blocks - 1; ++block) {
      Scores s;
      multiply(s);
#pragma unroll
      for (int i = 0; i < Config::kKeys / 2; ++i) {
        s[i] = shared_exp2(i, fmaf(s[i], softmax.log2_scale, shift(softmax, i / 2 % 2)));
      }
      store(s, softmax, sees, query, block);
    }
    StoredRows<Config>(params.problem, shared.strip, query)
        .store_zeros(sees.blocks * Config::kKeys);
  }

  /// Stores a block of weights, which are still to be divided by the rows' sums.
  __device__ void store(Scores& s, const attention::Softmax& softmax, const Sight& sees, int query,
                        int block) const {
#pragma unroll
    for (int i = 0; i < Config::kKeys / 2; ++i) s[i] *= softmax.sum[i / 2 % 2];
    // why again: 0 * NaN is NaN.
    if (block >= sees.whole_blocks) sees.keys.mask(s, block * Config::kKeys, 0.0f);
    StoredRows<Config>(params.problem, shared.strip, query)
        .store(s, shared.w[group], block * Config::kKeys);
  }

  __device__ void run() {
    // why not 0: times -inf it is NaN.
    const attention::Softmax empty{.log2_scale =
                                       fmaxf(fabsf(params.problem.scale) * kLog2E, 1e-30f)};
#pragma unroll 1
    for (int turn = 0; turn < shared.strip.turns(); ++turn) {
      const bool works = shared.strip.works(group, turn);
      const int query = shared.strip.query(group, turn);
      attention::Softmax softmax = empty;
      if (works) {
        const auto at = shared.strip.queries(turn);
        shared.queries[group].wait_full(at);
        queries_stage = at.stage;
        find_sums(query, softmax);
      }
      skip(shared.strip.blocks(turn, false) - shared.strip.own_blocks(group, turn, false));
      if (works) {
        store_weights(query, softmax);
        shared.queries[group].empty[queries_stage].arrive();
      }
      skip(shared.strip.blocks(turn, true) - shared.strip.own_blocks(group, turn, true));
    }
  }
};

}  // namespace tandem::cuda::attention_weights
