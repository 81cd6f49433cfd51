// The role of attention_backward_kernel that multiplies: two warpgroups, each with half of dk and
// dv of a block of keys in its registers, and with half of dq of every step.
#pragma once

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
  __device__ std::uint32_t d_scores_parity() const { return step & 1 ^ 1; }
};

template <class Config>
struct BackwardGradients {
  const AttentionBackwardParams& params;
  BackwardShared<Config>& shared;
  const int warpgroup;  // 0 or 1

  using Element = typename Config::Element;
  using Operand = std::uint32_t[Config::kScoreQueries / 16][4];
  static constexpr int kScores = Config::kScores;
  static constexpr int kQueries = Config::kQueries;
  // Of the scores that this warpgroup makes.
  const int first_key = Config::first_key(warpgroup);
  const int first_query = Config::first_query(warpgroup);

  /// Sets P to 0 where a query does not see a key. why not the scores to -inf: a scale may be 0 or
  /// negative.
  __device__ void mask(Operand& p, const BackwardItem& item, int tile) const {
    const SequenceSpan& span = item.span;
    const int key = item.block * Config::kKeys, query = tile * kQueries;
    if (key + Config::kKeys <= span.keys && key >= query + kQueries - 1 + span.first &&
        key + Config::kKeys - 1 <= query + span.last) {
      return;
    }
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

  /// P = 2^(scale S - log_sum_exp), rounded.
  __device__ void weigh(const float (&score)[kScores], const float* log_sum_exp, float scale,
                        Operand& p) const {
#pragma unroll
    for (int pair = 0; pair < kScores / 2; ++pair) {
      const float2 of_query =
          *reinterpret_cast<const float2*>(&log_sum_exp[first_query + fragment_column(pair / 2)]);
      p[pair / 4][pair % 4] =
          pack_pair<Element>(fast_exp2(fmaf(score[2 * pair], scale, -of_query.x)),
                             fast_exp2(fmaf(score[2 * pair + 1], scale, -of_query.y)));
    }
  }

  /// dS = P (dP - row product), rounded: to registers, and transposed to shared memory.
  __device__ void differentiate(const Operand& p, const float (&d_weight)[kScores],
                                const float* row_products, Operand& d_score) const {
    char* const rows = of_own_keys(shared.d_scores()) + panel_bytes(first_query);
#pragma unroll
    for (int step = 0; step < Config::kScoreQueries / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = 4 * step + i;
        const float2 product = *reinterpret_cast<const float2*>(
            &row_products[first_query + fragment_column(pair / 2)]);
        const float2 weight = unpack_pair<Element>(p[step][i]);
        d_score[step][i] = pack_pair<Element>(weight.x * (d_weight[2 * pair] - product.x),
                                              weight.y * (d_weight[2 * pair + 1] - product.y));
      }
      store_columns(rows, step, d_score[step]);
    }
  }

  /// The panel [query, key] of the keys whose scores this warpgroup makes.
  __device__ char* of_own_keys(char* scores) const {
    return scores + first_key / 64 * panel_bytes(kQueries);
  }

  /// Gives P to both warpgroups.
  __device__ void share(const Operand& p) const {
    char* const rows = of_own_keys(shared.weights()) + panel_bytes(first_query);
#pragma unroll
    for (int step = 0; step < Config::kScoreQueries / 16; ++step) {
      store_columns(rows, step, p[step]);
    }
    fence_shared_for_async_proxy();
  }

  /// Hands this warpgroup's share of dq of a step to the summing role.
  __device__ void hand_over(Accumulator<typename Config::SumShare>& dq, unsigned step) const {
    const auto at = ring_position<Config::kSumStages>(step);
    shared.sums.wait_empty(at);
    auto* to = reinterpret_cast<float4*>(shared.dq[at.stage]) + Config::place_of_four(0, warpgroup);
    dq.for_fours([&](int i, const float* four) {
      to[i * 128] = {four[0], four[1], four[2], four[3]};
    });
    fence_shared_for_async_proxy();
    shared.sums.full[at.stage].arrive();
  }

  /// Stores this warpgroup's share of dk or dv, or of what the item's part has of it.
  template <class Share>
  __device__ void store(Accumulator<Share>& acc, float scale, const BackwardItem& item,
                        const StridedTensor& to, float* parts, int columns) const {
    if (to.data == nullptr) return;
    if (params.group_parts > 1) return store_part(acc, item, parts, columns);
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

  __device__ void run() const {
    BackwardPosition<Config> at;
    for (unsigned count = 0;; ++count) {
      const auto item_at = ring_position<Config::kItemSlots>(count);
      shared.item_ring.wait_full(item_at);
      const BackwardItem& item = shared.items[item_at.stage];
      if (item.key_head == BackwardItem::kNone) return;
      compute(item, ring_position<1>(count), at);
      shared.item_ring.empty[item_at.stage].arrive();
    }
  }

  __device__ void compute(const BackwardItem& item, RingPosition<1> keys_at,
                          BackwardPosition<Config>& at) const {
    const AttentionForwardProblem& problem = params.problem.forward;
    const float scale = problem.scale * kLog2E;
    const char* own_keys = shared.k + panel_bytes(first_key);
    const char* own_values = shared.v + panel_bytes(first_key);
    Accumulator<typename Config::KeyShare> dk{};
    Accumulator<typename Config::ValueShare> dv{};

    shared.keys.wait_full(keys_at);
    int left = item.tiles() * (item.end_head - item.first_head);  // steps
    if (left > 0) {
      float score[kScores], d_weight[kScores];
      Accumulator<typename Config::SumShare> dq;
      Operand p, d_score;

      // Issues S of a step.
      const auto issue_scores = [&](const BackwardPosition<Config>& of) {
        shared.queries.wait_full(of.query());
        multiply_keys<Config, Config::kKeySteps>(
            score, own_keys, shared.q[of.query().stage] + panel_bytes(first_query));
      };
      // P of a step whose S is there.
      const auto weigh_scores = [&](const BackwardPosition<Config>& of) {
        fence_each(score);
        weigh(score, shared.log_sum_exp[of.query().stage], scale, p);
        mask(p, item, shared.query_tiles[of.query().stage]);
        if constexpr (Config::kSplitColumns) share(p);
      };
      // Issues dP and dV's share; waits for dP and what was under way before.
      const auto multiply_gradients = [&] {
        shared.gradients.wait_full(at.gradient());
        const char* d_o = shared.d_o[at.gradient().stage];
        multiply_keys<Config, Config::kValueSteps>(d_weight, own_values,
                                                   d_o + panel_bytes(first_query));
        if constexpr (Config::kSplitColumns) {
          sync_workers();
          add_queries_of_shared<Config>(dv, shared.weights(), d_o, warpgroup);
        } else {
          add_queries<Config>(dv, p, d_o, warpgroup);
        }
        wgmma_wait<1>();
        if constexpr (!Config::kSharedScores) hold_operand(d_score);
        fence_each(d_weight);
      };
      // Makes dS, and issues S of the next step, dQ and dK's share.
      const auto multiply_d_scores = [&](const BackwardPosition<Config>& next, bool exists) {
        shared.d_scores_empty.wait(at.d_scores_parity());
        differentiate(p, d_weight, shared.row_products[at.gradient().stage], d_score);
        fence_shared_for_async_proxy();
        // dV is done, or nearly: its operand gives room to what follows.
        wgmma_wait<0>();
        if constexpr (!Config::kSplitColumns) hold_operand(p);
        sync_workers();
        shared.gradients.empty[at.gradient().stage].arrive();
        if (!Config::kLastScores && exists) issue_scores(next);
        if constexpr (Config::kMakesSums) {
          multiply_scores<Config>(dq, shared.d_scores(), shared.k, warpgroup);
        }
        const char* q = shared.q[at.query().stage];
        if constexpr (Config::kSharedScores) {
          add_queries_of_shared<Config>(dk, of_own_keys(shared.d_scores()), q, warpgroup);
        } else {
          add_queries<Config>(dk, d_score, q, warpgroup);
        }
      };
      // Takes dQ. Only the last product, dK's, may still be under way.
      const auto take_sums = [&] {
        wgmma_wait<1>();
        dq.fence();
        arrive_warp(shared.d_scores_empty);
      };
      // Ends a step whose S of the next one, dQ and dK are under way: dK still is then.
      const auto finish_with_sums = [&](const BackwardPosition<Config>& next) {
        if constexpr (Config::kSumsFirst) {
          take_sums();
          hand_over(dq, at.step);
        } else {
          wgmma_wait<2>();
        }
        if constexpr (Config::kLastScores) {
          issue_scores(next);
          wgmma_wait<0>();
        }
        weigh_scores(next);
        if constexpr (!Config::kSumsFirst) {
          take_sums();
          hand_over(dq, at.step);
        }
      };
      // Waits for dK, the last product under way. Where both warpgroups' dK read all of dS, they
      // are its last readers.
      const auto finish_d_keys = [&] {
        wgmma_wait<0>();
        shared.queries.empty[at.query().stage].arrive();
        if constexpr (!Config::kMakesSums) arrive_warp(shared.d_scores_empty);
      };

#pragma unroll
      for (auto& four : d_score) {
        for (std::uint32_t& word : four) word = 0;
      }
      issue_scores(at);
      wgmma_wait<0>();
      weigh_scores(at);
      shared.values.wait_full(keys_at);
      // Of the step before, where its dK is still under way.
      int last_query = -1;
#pragma unroll 1
      while (--left > 0) {
        // why the loop begins here: at most dK of the step before is under way, whose accumulator
        // nobody reads. ptxas serialises products whose results are read in the next turn.
        multiply_gradients();
        if (last_query >= 0) shared.queries.empty[last_query].arrive();
        const BackwardPosition<Config> next = at.next();
        multiply_d_scores(next, true);
        if constexpr (Config::kMakesSums) {
          last_query = at.query().stage;
          finish_with_sums(next);
        } else {
          wgmma_wait<1>();
          weigh_scores(next);
          // why not in the next turn: q of the step after is loaded in its place.
          finish_d_keys();
        }
        at = next;
      }
      multiply_gradients();
      if (last_query >= 0) shared.queries.empty[last_query].arrive();
      arrive_warp(shared.values.empty[0]);
      multiply_d_scores(at, false);
      if constexpr (Config::kMakesSums) take_sums();
      arrive_warp(shared.keys.empty[0]);
      if constexpr (Config::kMakesSums) hand_over(dq, at.step);
      finish_d_keys();
      if constexpr (!Config::kSharedScores) hold_operand(d_score);
      dk.fence();
      dv.fence();
      ++at.step;
    } else {
      shared.values.wait_full(keys_at);
      arrive_warp(shared.values.empty[0]);
      arrive_warp(shared.keys.empty[0]);
    }
    store(dv, 1.0f, item, params.problem.dv, params.value_parts, problem.V);
    store(dk, problem.scale, item, params.problem.dk, params.key_parts, problem.K);
  }
};

}  // namespace tandem::cuda::attention
