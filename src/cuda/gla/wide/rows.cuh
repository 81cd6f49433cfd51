// The role of gla_wide_gradients_kernel that makes 64 rows of a gradient.
#pragma once

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/wide/shared.cuh"
#include "cuda/parts/exp2.cuh"

namespace tandem::cuda::gla {

/// A warpgroup. Its rows are a chunk of their span, and so is either half of a block of tokens that
/// they are paired with.
template <class Config>
struct WideRows {
  const WideBackwardParams& params;
  WideShared<Config>& shared;
  int warpgroup;  // of two

  using Position = RingPosition<WideShared<Config>::kSlots>;

  Position at = {};
  RingPosition<WideShared<Config>::kTables> table = {};
  bool stored = false;  // an item before, whose slots are not given back yet

  using Element = typename Config::Element;
  static constexpr int kOut = Config::kColumns / 2, kScores = kWideRows / 2;

  __device__ void run() {
    for (WidePosition position; position.more(params); ++position.round) {
      if (!position.has_item(params)) continue;
      const WideItem item = find_wide_item(params, position.item());
      switch (item.gradient) {
        case WideGradient::kQuery: make<WideGradient::kQuery>(item); break;
        case WideGradient::kKey: make<WideGradient::kKey>(item); break;
        default: make<WideGradient::kValue>(item);
      }
    }
    if (threadIdx.x % 128 == 0) wait_stores_read();
  }

 private:
  using Operand = std::uint32_t[4][4];  // of 64 tokens

  // why __forceinline__, and a fence of its own: accumulators that a call takes by reference, or a
  // loop by pointer, would lie in memory.
  template <int kCount>
  __device__ __forceinline__ static void fence(float (&acc)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) cute::warpgroup_fence_operand(acc[i]);
  }

  __device__ void release(int slot) {
    if (threadIdx.x % 128 == 0) shared.ring.empty[slot].arrive();
  }
  /// Gives back the slots before the ring's that the item before left through. why late: products
  /// of the next one run while they are read.
  __device__ void release_stored() {
    if (threadIdx.x % 128 != 0 || !stored) return;
    wait_stores_read();
    constexpr int kSlots = WideShared<Config>::kSlots;
    for (int back = 1; back <= Config::kTileSlots; ++back) {
      shared.ring.empty[(at.stage + kSlots - back) % kSlots].arrive();
    }
  }
  __device__ static Position behind(Position position) {
    position.advance();
    return position;
  }

  /// scores (+)= rows Xt of the ring's slot; with kState out (+)= rows S of the one behind, too.
  template <WideGradient kGradient, bool kState>
  __device__ __forceinline__ void multiply_step(float (&scores)[kScores], float (&out)[kOut],
                                                bool adds) {
    const auto& step = shared.slots[at.stage].step;
    const std::uint64_t rows = k_major_descriptor(step.rows + warpgroup * panel_bytes(64), 0);
    const std::uint64_t tokens = k_major_descriptor(step.tokens, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_ss<Element, kWideRows, Major::K, Major::K>(
          scores, move_descriptor(rows, 32 * i), move_descriptor(tokens, 32 * i), adds || i > 0);
    }
    if constexpr (kState) {
      constexpr Major kMajor = kGradient == WideGradient::kValue ? Major::K : Major::MN;
      const char* const tile = shared.slots[behind(at).stage].tile;
      const std::uint64_t state =
          kMajor == Major::K ? k_major_descriptor(tile, 0) : mn_major_descriptor(tile, 0);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma_ss<Element, Config::kColumns, Major::K, kMajor>(
            out, move_descriptor(rows, 32 * i),
            move_descriptor(state, kMajor == Major::K ? 32 * i : mn_major_bytes(i)), adds || i > 0);
      }
    }
    wgmma_commit();
  }

  template <WideGradient kGradient, bool kState>
  __device__ __forceinline__ void multiply_steps(const WideItem& item, float (&scores)[kScores],
                                                 float (&out)[kOut]) {
    const int steps = wide_steps(params, item);
    Position last = at;
    const auto release_last = [&] {
      release(last.stage);
      if (kState) release(behind(last).stage);
      last.advance(kState ? 2 : 1);
    };
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      shared.ring.wait_full(at);
      if (kState) shared.ring.wait_full(behind(at));
      fence(scores);
      if constexpr (kState) fence(out);
      wgmma_begin();
      multiply_step<kGradient, kState>(scores, out, step > 0);
      fence(scores);
      if constexpr (kState) fence(out);
      if (step > 0) {
        wgmma_wait<1>();
        release_last();
      } else if (kState) {
        release_stored();
      }
      at.advance(kState ? 2 : 1);
    }
    wgmma_wait<0>();
    fence(scores);
    if constexpr (kState) fence(out);
    release_last();
  }

  /// Multiplies rows by the factor between them and the state: S before the span, or dS behind it.
  template <WideGradient kGradient>
  __device__ __forceinline__ void scale_out(const WideDecay (&decays)[kWideChunks], int chunk,
                                            float (&out)[kOut]) const {
    constexpr bool kQuery = kGradient == WideGradient::kQuery;
    const WideDecay& own = decays[chunk];
    float all = kQuery ? 0.0f : decays[kWideChunks - 1].next;
    for (int i = 0; i < kWideChunks; ++i) {
      if (kQuery ? i < chunk : i > chunk) all += decays[i].total;
    }
    const float(&rows)[64] = kQuery ? own.before : own.behind;
    const float scale = kQuery ? params.problem.forward.scale : 1.0f;
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) factor[i] = scale * fast_exp2(all + rows[fragment_row() + 8 * i]);
#pragma unroll
    for (int i = 0; i < kOut; ++i) out[i] *= factor[i / 2 % 2];
  }

  /// Weights of the rows and 64 tokens of `other`, a chunk of their span that has paths to them:
  /// scale 2^(of the query + of the key) times their score.
  template <WideGradient kGradient, int kHalf>
  __device__ __forceinline__ void weigh(const WideDecay (&decays)[kWideChunks], int chunk,
                                        int other, const float (&scores)[kScores],
                                        Operand& weights) const {
    constexpr bool kQuery = kGradient == WideGradient::kQuery;
    const int query = kQuery ? chunk : other, key = kQuery ? other : chunk;
    const bool same = query == key;
    const float* const of_query = same ? decays[query].within : decays[query].before;
    const float* const of_key = same ? decays[key].within : decays[key].behind;
    const float sign = same ? -1.0f : 1.0f;
    float between = 0.0f;
    for (int i = key + 1; i < query; ++i) between += decays[i].total;
    const auto log_of_key = [&](float value) { return sign * value + between; };
    const int row = fragment_row();
    float of_row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      of_row[i] = kQuery ? of_query[row + 8 * i] : log_of_key(of_key[row + 8 * i]);
    }
    const float scale = params.problem.forward.scale;
    const int last_behind = same ? 0 : 64;  // by which a key may be behind its query
#pragma unroll
    for (int block = 0; block < 8; ++block) {
      const int column = fragment_column(block);
      const float2 pair = *reinterpret_cast<const float2*>((kQuery ? of_key : of_query) + column);
      const float of_column[2] = {kQuery ? log_of_key(pair.x) : pair.x,
                                  kQuery ? log_of_key(pair.y) : pair.y};
      float own[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int right = column + i % 2 - (row + 8 * (i / 2));  // of the row the column
        const bool paired = (kQuery ? right : -right) <= last_behind;
        const float factor = paired ? scale * fast_exp2(of_row[i / 2] + of_column[i % 2]) : 0.0f;
        own[i] = factor * scores[32 * kHalf + 4 * block + i];
      }
      weights[block / 2][block % 2 * 2] = pack_pair<Element>(own[0], own[1]);
      weights[block / 2][block % 2 * 2 + 1] = pack_pair<Element>(own[2], own[3]);
    }
  }

  /// out += what rows have from 64 tokens of the ring's slot.
  template <WideGradient kGradient, int kHalf>
  __device__ __forceinline__ void add_half(const WideDecay (&decays)[kWideChunks], int chunk,
                                           int other, const float (&scores)[kScores],
                                           float (&out)[kOut]) {
    if (kGradient == WideGradient::kQuery ? other > chunk : other < chunk) return;
    Operand weights;
    weigh<kGradient, kHalf>(decays, chunk, other, scores, weights);
    constexpr int kOffset = Config::kTileSlots == 1 ? kHalf * Config::kSlotBytes / 2 : 0;
    const std::uint64_t tokens = mn_major_descriptor(shared.slots[at.stage].tile + kOffset, 0);
    fence(out);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_rs<Element, Config::kColumns, Major::MN>(
          out, weights[i], move_descriptor(tokens, mn_major_bytes(i)), true);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold_operand(weights);
    fence(out);
  }

  /// Goes past a slot that has been read. One that is held is given back by release_stored.
  __device__ void leave(bool holds) {
    if (!holds) release(at.stage);
    at.advance();
  }

  /// out += what rows have from a block of tokens of their span.
  template <WideGradient kGradient>
  __device__ __forceinline__ void add_block(const WideDecay (&decays)[kWideChunks], int chunk,
                                            int block, const float (&scores)[kScores],
                                            float (&out)[kOut], bool holds) {
    shared.ring.wait_full(at);
    add_half<kGradient, 0>(decays, chunk, 2 * block, scores, out);
    if constexpr (Config::kTileSlots == 2) {
      leave(holds);
      shared.ring.wait_full(at);
    }
    add_half<kGradient, 1>(decays, chunk, 2 * block + 1, scores, out);
    leave(holds);
  }

  /// sums[row] = the sum over columns of out times those of the partner.
  __device__ __forceinline__ void sum_partner(const WideItem& item, int chunk,
                                              const float (&out)[kOut], float* sums, bool holds) {
    float own[2][4] = {};
#pragma unroll
    for (int slot = 0; slot < Config::kTileSlots; ++slot) {
      shared.ring.wait_full(at);
      const char* const rows = shared.slots[at.stage].tile + warpgroup * panel_bytes(64);
#pragma unroll
      for (int step = 0; step < 8; ++step) {  // of 16 columns
        std::uint32_t packed[4];
        get_columns<kWideRows>(rows, step, 0, packed);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack_pair<Element>(packed[i]);
          const int at_pair = 64 * slot + 8 * step + 2 * i;
          own[i % 2][i / 2] += pair.x * out[at_pair];
          own[i % 2][2 + i / 2] += pair.y * out[at_pair + 1];
        }
      }
      // why: products wait for reads; an arrival does not wait for loads under way.
      if (!holds) fence_shared_for_async_proxy();
      sync_warpgroup(1 + warpgroup);
      leave(holds);
    }
    const std::int64_t first =
        (std::int64_t{item.head} * params.spans + item.span) * kWideSpan + 64 * chunk;
    put_row_sums(own, reinterpret_cast<float(&)[64]>(sums[first]));
  }

  template <WideGradient kGradient>
  __device__ __forceinline__ void make(const WideItem& item) {
    const int chunk = 2 * item.block + warpgroup;
    const bool sums = kGradient != WideGradient::kValue && has_sums(params, item);
    float scores[kScores], out[kOut];
    multiply_steps<kGradient, true>(item, scores, out);
    shared.decays.wait_full(table);
    const auto& decays = shared.tables[table.stage];
    scale_out<kGradient>(decays, chunk, out);
    if (kGradient == WideGradient::kKey && sums) {
      sum_partner(item, chunk, out, params.key_state_rows, false);
    }
    // The rows' own block of tokens, then perhaps the other one.
    const int blocks = has_other_block(params, item) ? 2 : 1;
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      if (i > 0) multiply_steps<kGradient, false>(item, scores, out);
      add_block<kGradient>(decays, chunk, i ^ item.block, scores, out, !sums && i + 1 == blocks);
    }
    if (kGradient != WideGradient::kValue && sums) {
      sum_partner(item, chunk, out,
                  kGradient == WideGradient::kQuery ? params.query_rows : params.key_rows, true);
    }
    store<kGradient>(item, out);
    stored = true;
    if (threadIdx.x % 128 == 0) shared.decays.empty[table.stage].arrive();
    table.advance();
  }

  /// Stores out through the item's last slots (release_stored).
  template <WideGradient kGradient>
  __device__ __forceinline__ void store(const WideItem& item, const float (&out)[kOut]) {
    const GlaForwardProblem& problem = params.problem.forward;
    constexpr int kSlots = WideShared<Config>::kSlots;
    constexpr bool kShared = Config::kTileSlots == 1;           // by both warpgroups
    cutlass::arch::NamedBarrier::sync(256, Config::kRowsSync);  // nobody reads them any more
    const int back = kShared ? 1 : 2 - warpgroup;
    char* const tile = shared.slots[(at.stage + kSlots - back) % kSlots].tile +
                       (kShared ? warpgroup * Config::kSlotBytes / 2 : 0);
    put_rows<Element>(out, tile);
    fence_shared_for_async_proxy();
    sync_warpgroup(1 + warpgroup);
    if (threadIdx.x % 128 != 0) return;
    const CUtensorMap& map = kGradient == WideGradient::kQuery ? params.dq_map
                             : kGradient == WideGradient::kKey ? params.dk_map
                                                               : params.dv_map;
    const int width = kGradient == WideGradient::kValue ? problem.V : problem.K;
    for (int panel = 0; panel < Config::kColumns / kPanelColumns; ++panel) {
      const int column = item.column + kPanelColumns * panel;
      const int time = item.begin() + 64 * warpgroup;
      if (column >= width || time >= problem.T) break;
      store_panel(map, tile + panel * panel_bytes(64), {column, item.batch_head, time, item.batch});
    }
  }
};

}  // namespace tandem::cuda::gla
