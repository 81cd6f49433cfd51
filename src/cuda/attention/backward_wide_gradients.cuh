// The role of attention_backward_kernel that multiplies, of heads wider than 128: two warpgroups
// that go step by step together. Each has dk and dv of half of a block's keys, or half of their
// columns, in its registers, and of the former half of dq of every step.
#pragma once

#include "cuda/attention/backward_scores.cuh"

namespace tandem::cuda::attention {

template <class Config>
struct BackwardWideGradients {
  const AttentionBackwardParams& params;
  BackwardShared<Config>& shared;
  const int warpgroup;  // 0 or 1
  const BackwardScores<Config> scores{params, shared, warpgroup};

  using Scores = typename BackwardScores<Config>::Scores;
  using Operand = typename BackwardScores<Config>::Operand;
  using RowValues = typename BackwardScores<Config>::RowValues;

  /// Gives P to both warpgroups.
  __device__ void share(const Operand& p) const {
    char* const rows = scores.of_own_keys(shared.weights()) + panel_bytes(scores.first_query);
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
    put_sums(shared, at.stage, warpgroup, dq);
    fence_shared_for_async_proxy();
    shared.sums.full[at.stage].arrive();
  }

  __device__ void run() const {
    for_items(shared, [&](const BackwardItem& item, RingPosition<1> keys_at,
                          BackwardPosition<Config>& at) { walk(item, keys_at, at); });
  }

  __device__ void walk(const BackwardItem& item, RingPosition<1> keys_at,
                       BackwardPosition<Config>& at) const {
    const float scale = params.problem.forward.scale * kLog2E;
    const char* own_keys = shared.k + panel_bytes(scores.first_key);
    const char* own_values = shared.v + panel_bytes(scores.first_key);
    Accumulator<typename Config::KeyShare> dk{};
    Accumulator<typename Config::ValueShare> dv{};

    shared.keys.wait_full(keys_at);
    int left = item.tiles() * (item.end_head - item.first_head);  // steps
    if (left > 0) {
      Scores score, d_weight;
      Accumulator<typename Config::SumShare> dq;
      Operand p, d_score;

      // Issues S of a step.
      const auto issue_scores = [&](const BackwardPosition<Config>& of) {
        shared.queries.wait_full(of.query());
        multiply_keys<Config, Config::kKeySteps>(
            score, own_keys, shared.q[of.query().stage] + panel_bytes(scores.first_query));
      };
      // P of a step whose S is there.
      const auto weigh_scores = [&](const BackwardPosition<Config>& of) {
        const float* log_sum_exp = shared.log_sum_exp[of.query().stage];
        RowValues ahead;
        scores.load_ahead(log_sum_exp, ahead);
        const int tile = shared.query_tiles[of.query().stage];
        fence_each(score);
        scores.weigh(score, scale, log_sum_exp, ahead);
        // why anew: there is no register to keep them in.
        if (!PlainTiles<Config>(item).has(tile)) scores.mask(score, item, tile);
        scores.round(score, p);
        if constexpr (Config::kSplitColumns) share(p);
      };
      // Issues dP and dV's share; waits for dP and what was under way before.
      const auto multiply_gradients = [&] {
        shared.gradients.wait_full(at.gradient());
        const char* d_o = shared.d_o[at.gradient().stage];
        multiply_keys<Config, Config::kValueSteps>(d_weight, own_values,
                                                   d_o + panel_bytes(scores.first_query));
        if constexpr (Config::kSplitColumns) {
          sync_workers();
          add_queries_of_shared<Config>(dv, shared.weights(), d_o, warpgroup);
        } else {
          add_queries<Config>(dv, p, d_o, warpgroup);
        }
        wgmma_wait<1>();
        fence_each(d_weight);
      };
      // Makes dS, and issues what is left of the step: with sums dQ and dK's share, else S of the
      // next step and dK's share.
      const auto multiply_d_scores = [&](const BackwardPosition<Config>& next, bool exists) {
        const float* row_products = shared.row_products[at.gradient().stage];
        RowValues ahead;
        scores.load_ahead(row_products, ahead);
        shared.d_scores.wait_empty(at.d_scores());
        scores.differentiate(p, d_weight, row_products, ahead, d_score, shared.scores[0]);
        fence_shared_for_async_proxy();
        // dV is done, or nearly: its operand gives room to what follows.
        wgmma_wait<0>();
        if constexpr (!Config::kSplitColumns) hold_operand(p);
        sync_workers();
        shared.gradients.empty[at.gradient().stage].arrive();
        if constexpr (Config::kMakesSums) {
          multiply_scores<Config>(dq, shared.scores[0], shared.k, warpgroup);
        } else if (exists) {
          issue_scores(next);
        }
        add_queries_of_shared<Config>(dk, scores.of_own_keys(shared.scores[0]),
                                      shared.q[at.query().stage], warpgroup);
      };
      // Takes dQ. Only the last product, dK's, may still be under way.
      const auto take_sums = [&] {
        wgmma_wait<1>();
        dq.fence();
        arrive_warp(shared.d_scores.empty[0]);
      };
      // Waits for dK, the last product under way. Where both warpgroups' dK read all of dS, they
      // are its last readers.
      const auto finish_d_keys = [&] {
        wgmma_wait<0>();
        shared.queries.empty[at.query().stage].arrive();
        if constexpr (!Config::kMakesSums) arrive_warp(shared.d_scores.empty[0]);
      };

      issue_scores(at);
      wgmma_wait<0>();
      weigh_scores(at);
      shared.values.wait_full(keys_at);
#pragma unroll 1
      while (--left > 0) {
        multiply_gradients();
        const BackwardPosition<Config> next = at.next();
        multiply_d_scores(next, true);
        if constexpr (Config::kMakesSums) {
          // why S is last: dk and dv leave registers for one tile of scores.
          take_sums();
          hand_over(dq, at.step);
          issue_scores(next);
          finish_d_keys();
          weigh_scores(next);
        } else {
          wgmma_wait<1>();
          weigh_scores(next);
          // why not in the next turn: q of the step after is loaded in its place.
          finish_d_keys();
        }
        at = next;
      }
      multiply_gradients();
      arrive_warp(shared.values.empty[0]);
      multiply_d_scores(at, false);
      if constexpr (Config::kMakesSums) take_sums();
      arrive_warp(shared.keys.empty[0]);
      if constexpr (Config::kMakesSums) hand_over(dq, at.step);
      finish_d_keys();
      dk.fence();
      dv.fence();
      ++at.step;
    } else {
      shared.values.wait_full(keys_at);
      arrive_warp(shared.values.empty[0]);
      arrive_warp(shared.keys.empty[0]);
    }
    scores.store(item, dk, dv);
  }
};

}  // namespace tandem::cuda::attention
