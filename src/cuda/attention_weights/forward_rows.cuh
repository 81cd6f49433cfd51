// The rows role of attention_weights_forward_kernel: a warpgroup and its tiles of 64 queries.
#pragma once

#include "cuda/attention/forward_softmax.cuh"
#include "cuda/attention_weights/forward_store.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::attention_weights {

template <class Config>
struct ForwardRows {
  const ForwardParams& params;
  ForwardShared<Config>& shared;
  const int group;

  using Element = typename Config::Element;
  using Scores = float[32];  // of 64 keys: half of a block
  using Softmax = attention::Softmax;

  static constexpr int kHalvesPerStage = Config::kStageKeys / 64;

  // why __forceinline__ below, and a fence of its own: scores that a call takes by reference, or a
  // loop by pointer, would lie in memory.
  __device__ __forceinline__ static void fence(Scores& s) {
#pragma unroll
    for (int i = 0; i < 32; ++i) cute::warpgroup_fence_operand(s[i]);
  }

  typename Ring<Config::kStages>::Position keys_at{};  // of the next product
  typename Ring<Config::kStages>::Position read_at{};  // of the products under way
  int queries_stage = 0;

  /// Starts S of half of the next block.
  template <int kHalf>
  __device__ __forceinline__ void start(Scores& s) {
    // Of a stage.
    constexpr bool kBegins = kHalf == 0 || kHalvesPerStage == 1;
    constexpr bool kEnds = kHalf == 1 || kHalvesPerStage == 1;
    if constexpr (kBegins) shared.keys.wait_full(keys_at);
    std::uint64_t q = k_major_descriptor(shared.q[group][queries_stage], 0);
    // why: what is added to it would be kept in registers from one product to the next.
    asm volatile("" : "+l"(q));
    const std::uint64_t k = k_major_descriptor<Config::kStageKeys>(
        shared.k[keys_at.stage] + (kBegins ? 0 : panel_bytes(64)), 0);
    fence(s);
    wgmma_begin();
#pragma unroll
    for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_ss<Element, 64, Major::K, Major::K>(
            s, move_descriptor(q, panel * panel_bytes(64) + 32 * step),
            move_descriptor(k, panel * panel_bytes(Config::kStageKeys) + 32 * step),
            panel + step > 0);
      }
    }
    wgmma_commit();
    if constexpr (kEnds) keys_at.advance();
  }

  /// Waits for the S of a half, with the sign of the scale; another product may be under way.
  template <int kHalf>
  __device__ __forceinline__ void finish(Scores& s) {
    wgmma_wait<0>();
    fence(s);
    if constexpr (kHalf == 1 || kHalvesPerStage == 1) {
      shared.keys.empty[read_at.stage].arrive();
      read_at.advance();
    }
    if (params.problem.scale < 0.0f) {
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = -s[i];
    }
  }

  /// Goes through blocks of which the first is under way: calls use<half>(s, block) with each
  /// half's scores while the product of the next one runs.
  template <class Use>
  __device__ __forceinline__ void walk(Scores& first, Scores& second, int blocks, const Use& use) {
#pragma unroll 1
    for (int block = 0; block < blocks - 1; ++block) {
      finish<0>(first);
      start<1>(second);
      use.template use<0>(first, block);
      finish<1>(second);
      start<0>(first);
      use.template use<1>(second, block);
    }
    // why apart: products that a branch may leave out are serialised by the compiler.
    finish<0>(first);
    start<1>(second);
    use.template use<0>(first, blocks - 1);
    finish<1>(second);
    use.template use<1>(second, blocks - 1);
  }

  /// Goes past blocks that other warpgroups see.
  __device__ void skip(int blocks) {
#pragma unroll 1
    for (blocks *= 2 / kHalvesPerStage; blocks > 0; --blocks) {
      shared.keys.wait_full(keys_at);
      shared.keys.empty[keys_at.stage].arrive();
      keys_at.advance();
    }
    read_at = keys_at;
  }

  /// What a tile's rows see.
  struct Sight {
    attention::SeenKeys keys;
    int whole_blocks;  // that all rows see whole
    int blocks;
  };
  __device__ Sight sight(int query) const {
    const int position = query + shared.strip.distance;
    return {
        {attention::Reach(params.problem.mask), position + fragment_row(), 0, shared.strip.keys},
        min(position + shared.strip.right + 1, shared.strip.keys) / Config::kKeys,
        shared.strip.seen_blocks(query)};
  }
  __device__ __forceinline__ static void mask(Scores& s, const Sight& sees, int half, int block,
                                              float hidden) {
    if (block >= sees.whole_blocks) sees.keys.mask(s, block * Config::kKeys + 64 * half, hidden);
  }

  /// What is added to exponents. In a row that sees nothing these are -inf.
  __device__ static float shift(const Softmax& softmax, int row) {
    return softmax.reference[row] == -INFINITY ? 0.0f : -softmax.reference[row];
  }

  /// The sums of weights, this thread's share of them.
  __device__ __forceinline__ static float2 add_up(const Scores& s, const Softmax& softmax) {
    float sums[2][2] = {};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int row = i / 2 % 2;
      sums[row][i % 2] += fast_exp2(fmaf(s[i], softmax.log2_scale, shift(softmax, row)));
    }
    return {sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]};
  }

  /// Adds weights to the rows' sums. References are the first scores' largest, and raised where
  /// weights come near what fp32 holds: to look for the largest each time would take as long as the
  /// weights do.
  __device__ __forceinline__ static void add(const Scores& s, Softmax& softmax, bool first) {
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

  /// What makes weights of scores: w = 2^(c s + exponent) factor.
  struct Weights {
    float log2_scale;
    float exponent[2];
    float factor[2];  // what the exponent's rounding leaves
    bool multiplies;  // whether that is to be seen

    __device__ explicit Weights(const Softmax& softmax) : log2_scale(softmax.log2_scale) {
      float largest = 0.0f;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float sum = softmax.sum[row];
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        const float reference = softmax.reference[row], log2_sum = log2f(sum);
        // In a row that sees nothing both are -inf.
        const float both = reference + log2_sum;
        const float part = both - reference;
        const float rest = (reference - (both - part)) + (log2_sum - part);
        exponent[row] = sum == 0.0f ? -INFINITY : -both;
        factor[row] = sum == 0.0f ? 1.0f : fast_exp2(-rest);
        largest = fmaxf(largest, sum == 0.0f ? 0.0f : fabsf(both));
      }
      constexpr float kMost = 64.0f;  // below it rounding takes 3e-6 at most
      multiplies = __any_sync(0xFFFFFFFFu, largest >= kMost) != 0;
    }

    __device__ __forceinline__ void weigh(Scores& s) const {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        s[i] = fast_exp2(fmaf(s[i], log2_scale, exponent[i / 2 % 2]));
      }
      if (multiplies) {
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] *= factor[i / 2 % 2];
      }
    }
  };

  /// What is done with a half's scores in the first pass,
  struct Add {
    const Sight& sees;
    Softmax& softmax;

    template <int kHalf>
    __device__ __forceinline__ void use(Scores& s, int block) const {
      mask(s, sees, kHalf, block, -INFINITY);
      add(s, softmax, block == 0 && kHalf == 0);
    }
  };
  /// and in the second.
  struct Store {
    const Sight& sees;
    const Weights weights;
    const StoredRows<Config>& rows;
    char (&panels)[Config::kStoredHalves][panel_bytes(64)];

    template <int kHalf>
    __device__ __forceinline__ void use(Scores& s, int block) const {
      constexpr bool kTogether = Config::kStoredHalves == 2;
      weights.weigh(s);
      mask(s, sees, kHalf, block, 0.0f);
      rows.put(s, panels[kTogether ? kHalf : 0]);
      if constexpr (kTogether && kHalf == 0) return;
      rows.store(panels, block * Config::kKeys + (kTogether ? 0 : 64 * kHalf));
    }
  };

  /// A tile: its rows' sums, then its weights, and zeros behind what it sees.
  __device__ void run_tile(int turn, Softmax softmax) {
    const int query = shared.strip.query(group, turn);
    const Sight sees = sight(query);
    const StoredRows<Config> rows(params, shared.strip, query);
    rows.store_zeros(sees.blocks * Config::kKeys);
    // Blocks of each pass that other warpgroups see alone.
    const int others[2] = {shared.strip.blocks(turn, false) - sees.blocks,
                           shared.strip.blocks(turn, true) - max(sees.blocks - 1, 0)};
    if (sees.blocks == 0) return skip(others[0] + others[1]);
    Scores first, second;
    start<0>(first);
    walk(first, second, sees.blocks, Add{sees, softmax});
    skip(others[0]);
    // The last block's scores are still there.
    const int last = sees.blocks - 1;
    const Store store{sees, Weights(softmax), rows, shared.w[group]};
    store.template use<0>(first, last);
    store.template use<1>(second, last);
    if (last > 0) {
      start<0>(first);
      walk(first, second, last, store);
    }
    skip(others[1]);
  }

  __device__ void run() {
    // why not 0: times -inf it is NaN.
    const Softmax empty{.log2_scale = fmaxf(fabsf(params.problem.scale) * kLog2E, 1e-30f)};
#pragma unroll 1
    for (int turn = 0; turn < shared.strip.turns(); ++turn) {
      if (!shared.strip.works(group, turn)) {
        skip(shared.strip.blocks(turn, false) + shared.strip.blocks(turn, true));
      } else {
        const auto at = shared.strip.queries(turn);
        shared.queries[group].wait_full(at);
        queries_stage = at.stage;
        run_tile(turn, empty);
        shared.queries[group].empty[queries_stage].arrive();
      }
    }
  }
};

}  // namespace tandem::cuda::attention_weights
