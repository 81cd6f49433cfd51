// What the roles of attention_backward_kernel that multiply make of scores, and how they store dk
// and dv. Scores are transposed: rows are keys.
#pragma once

#include <utility>

#include "cuda/attention/backward_load.cuh"
#include "cuda/attention/backward_products.cuh"
#include "cuda/attention/store_rows.cuh"
#include "cuda/parts/exp2.cuh"

namespace tandem::cuda::attention {

/// Keeps the compiler from moving accesses of registers across asynchronous products. why not
/// fence_registers: its loop over 64 registers is unrolled too late for them to be registers.
template <int kCount>
__device__ inline void fence_each(float (&registers)[kCount]) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (cute::warpgroup_fence_operand(registers[I]), ...);
  }
  (std::make_index_sequence<kCount>{});
}

/// Where a warpgroup is along the steps of all its items. Few registers: there are none to spare.
template <class Config>
struct BackwardPosition {
  unsigned step = 0;

  __device__ BackwardPosition next() const { return {step + 1}; }
  __device__ auto query() const { return ring_position<Config::kQueryStages>(step); }
  __device__ auto gradient() const { return ring_position<Config::kGradientStages>(step); }
  __device__ auto d_scores() const { return ring_position<Config::kScoreStages>(step); }
};

/// Tiles of queries that see all keys of a block: [first, last].
template <class Config>
struct PlainTiles {
  int first;
  int last;

  explicit __device__ PlainTiles(const BackwardItem& item) {
    const SequenceSpan& span = item.span;
    const int key = item.block * Config::kKeys;
    first = tile_of(key + Config::kKeys - 1 - span.last + Config::kQueries - 1);
    last = key + Config::kKeys <= span.keys ? tile_of(key - span.first + 1) - 1 : first - 1;
  }
  __device__ bool has(int tile) const { return first <= tile && tile <= last; }
  /// Rounded down, also of negative ones.
  static __device__ int tile_of(int query) { return query >> (Config::kQueries == 128 ? 7 : 6); }
};

/// The scores that a warpgroup makes.
template <class Config>
struct BackwardScores {
  const AttentionBackwardParams& params;
  BackwardShared<Config>& shared;
  const int warpgroup;  // 0 or 1

  using Element = typename Config::Element;
  using Scores = float[Config::kScores];
  using Operand = std::uint32_t[Config::kScoreQueries / 16][4];
  static constexpr int kQueries = Config::kQueries;
  const int first_key = Config::first_key(warpgroup);
  const int first_query = Config::first_query(warpgroup);

  // What belongs to the queries of a thread's two columns of each eight. The first of a tile are
  // loaded while its products are under way.
  static constexpr int kEights = Config::kScoreQueries / 8;
  static constexpr int kAhead = kEights / 2;
  using RowValues = float2[kAhead];

  __device__ float2 load_row_value(const float* of_rows, int eight) const {
    return *reinterpret_cast<const float2*>(&of_rows[first_query + fragment_column(eight)]);
  }
  __device__ void load_ahead(const float* of_rows, RowValues& ahead) const {
#pragma unroll
    for (int eight = 0; eight < kAhead; ++eight) ahead[eight] = load_row_value(of_rows, eight);
  }

  /// P = 2^(scale S - log_sum_exp), in the place of S. `ahead`: the first of log_sum_exp.
  __device__ void weigh(Scores& score, float scale, const float* log_sum_exp,
                        const RowValues& ahead) const {
#pragma unroll
    for (int i = 0; i < Config::kScores; i += 2) {
      const int eight = i / 4;
      const float2 of_query = eight < kAhead ? ahead[eight] : load_row_value(log_sum_exp, eight);
      score[i] = fast_exp2(fmaf(score[i], scale, -of_query.x));
      score[i + 1] = fast_exp2(fmaf(score[i + 1], scale, -of_query.y));
    }
  }

  /// Sets P to 0 where a query of the tile does not see a key. why not the scores to -inf: a scale
  /// may be 0 or negative.
  __device__ void mask(Scores& p, const BackwardItem& item, int tile) const {
    const SequenceSpan& span = item.span;
    const int key = item.block * Config::kKeys, query = tile * kQueries;
    // Columns of the tile that see this thread's two keys: [low, high].
    int low[2], high[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = key + first_key + fragment_row() + 8 * half;
      const int column = own - query - first_query - fragment_column(0);
      low[half] = own < span.keys ? column - span.last : kQueries;
      high[half] = column - span.first;
    }
    keep_columns(p, low, high);
  }

  /// Rounds P. why not in weigh: a scheduler that packs each pair as it is there waits for every
  /// exponential; mask's branch lies between.
  __device__ static void round(const Scores& score, Operand& p) {
#pragma unroll
    for (int pair = 0; pair < Config::kScores / 2; ++pair) {
      p[pair / 4][pair % 4] = pack_pair<Element>(score[2 * pair], score[2 * pair + 1]);
    }
  }

  /// dS = P (dP - row product), rounded: to registers, and transposed to the panels [query, key]
  /// `to`. `ahead`: the first of row_products.
  __device__ void differentiate(const Operand& p, const Scores& d_weight, const float* row_products,
                                RowValues& ahead, Operand& d_score, char* to) const {
    char* const rows = of_own_keys(to) + panel_bytes(first_query);
#pragma unroll
    for (int step = 0; step < Config::kScoreQueries / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = 4 * step + i;
        const float2 weight = unpack_pair<Element>(p[step][i]);
        const float2 product = ahead[pair / 2 % kAhead];
        d_score[step][i] = pack_pair<Element>(weight.x * (d_weight[2 * pair] - product.x),
                                              weight.y * (d_weight[2 * pair + 1] - product.y));
      }
      // why before the store: no load passes one.
#pragma unroll
      for (int eight = 2 * step + kAhead; eight < 2 * step + 2 + kAhead; ++eight) {
        if (eight < kEights) ahead[eight % kAhead] = load_row_value(row_products, eight);
      }
      store_columns(rows, step, d_score[step]);
    }
  }

  /// The panel of the keys whose scores this warpgroup makes.
  __device__ char* of_own_keys(char* scores) const {
    return scores + first_key / 64 * panel_bytes(kQueries);
  }

  /// Stores what this warpgroup has of an item's dk and dv, or of what the item's part has of them.
  __device__ void store(const BackwardItem& item, Accumulator<typename Config::KeyShare>& dk,
                        Accumulator<typename Config::ValueShare>& dv) const {
    const AttentionForwardProblem& problem = params.problem.forward;
    store(dv, 1.0f, item, params.problem.dv, params.value_parts, problem.V);
    store(dk, problem.scale, item, params.problem.dk, params.key_parts, problem.K);
  }

 private:
  template <class Share>
  __device__ void store(Accumulator<Share>& acc, float scale, const BackwardItem& item,
                        const StridedTensor& to, float* parts, int columns) const {
    if (to.data == nullptr) return;
    if (params.parts.count() > 1) return store_part(acc, item, parts, columns);
    const int first = item.block * Config::kKeys + first_key;
    const std::int64_t time = item.span.key_begin + std::int64_t{first};
    auto* const rows = static_cast<Element*>(to.data) + item.span.batch * to.batch_stride +
                       time * to.time_stride + item.key_head * to.head_stride;
    const float scales[2] = {scale, scale};
    acc.for_parts(warpgroup, [&](const auto& part, int column) {
      store_rows<Element>(part, scales, rows + column, to.time_stride, item.span.key_room - first,
                          columns - column);
    });
  }

  template <class Share>
  __device__ void store_part(Accumulator<Share>& acc, const BackwardItem& item, float* parts,
                             int columns) const {
    const AttentionForwardProblem& problem = params.problem.forward;
    columns = (columns + 7) / 8 * 8;
    const int first = item.block * Config::kKeys + first_key;
    const std::int64_t token = (item.part * problem.B + item.span.batch) * problem.TK +
                               item.span.key_begin + std::int64_t{first};
    const std::int64_t row_stride = std::int64_t{problem.HKV} * columns;
    float* const rows = parts + token * row_stride + std::int64_t{item.key_head} * columns;
    acc.for_parts(warpgroup, [&](const auto& part, int column) {
      store_sums(part, rows + column, row_stride, item.span.key_room - first, columns - column);
    });
  }
};

/// Puts a half of dq where the summing role takes it from.
template <class Config>
__device__ void put_sums(BackwardShared<Config>& shared, int stage, int half,
                         Accumulator<typename Config::SumShare>& dq) {
  auto* to = reinterpret_cast<float4*>(shared.dq[stage]) + Config::place_of_four(0, half);
  dq.for_fours([&](int i, const float* four) {
    to[i * 128] = {four[0], four[1], four[2], four[3]};
  });
}

/// Calls walk(item, the phase of its keys and values, position) for one item after another, with
/// the position behind the steps of those before. All threads of a role.
template <class Config, class Walk>
__device__ void for_items(BackwardShared<Config>& shared, const Walk& walk) {
  BackwardPosition<Config> at;
  for (unsigned count = 0;; ++count) {
    const auto item_at = ring_position<Config::kItemSlots>(count);
    shared.item_ring.wait_full(item_at);
    const BackwardItem& item = shared.items[item_at.stage];
    if (item.key_head == BackwardItem::kNone) return;
    walk(item, ring_position<1>(count), at);
    shared.item_ring.empty[item_at.stage].arrive();
  }
}

}  // namespace tandem::cuda::attention
