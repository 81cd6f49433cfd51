// The roles of attention_backward_kernel that multiply, of heads up to 128: two warpgroups, each
// with dk and dv of half of a block's keys in its registers, and one that makes dq of every step.
#pragma once

#include "cuda/attention/backward_scores.cuh"

namespace tandem::cuda::attention {

/// dk and dv of 64 keys. The two warpgroups issue products in turn, so that one makes P or dS while
/// the other multiplies.
template <class Config>
struct BackwardGradients {
  const AttentionBackwardParams& params;
  BackwardShared<Config>& shared;
  const int warpgroup;  // 0 or 1
  const BackwardScores<Config> scores{params, shared, warpgroup};

  using Scores = typename BackwardScores<Config>::Scores;
  using Operand = typename BackwardScores<Config>::Operand;
  using RowValues = typename BackwardScores<Config>::RowValues;

  __device__ void wait_for_turn() const {
    cutlass::arch::NamedBarrier::sync(256, kBackwardTurnBarrier + warpgroup);
  }
  __device__ void pass_turn() const {
    cutlass::arch::NamedBarrier::arrive(256, kBackwardTurnBarrier + 1 - warpgroup);
  }

  __device__ void run() const {
    if (warpgroup == 1) pass_turn();  // the first is the other's
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
      Scores score;  // S, P, then dP
      Operand p;     // P, then dS

      // Issues S of a step.
      const auto issue_scores = [&](const BackwardPosition<Config>& of) {
        shared.queries.wait_full(of.query());
        multiply_keys<Config, Config::kKeySteps>(score, own_keys, shared.q[of.query().stage]);
      };
      wait_for_turn();
      issue_scores(at);
      pass_turn();
      const PlainTiles<Config> plain(item);
      // P of a step whose S is the last product under way.
      const auto weigh_scores = [&](const BackwardPosition<Config>& of) {
        const float* log_sum_exp = shared.log_sum_exp[of.query().stage];
        RowValues ahead;
        scores.load_ahead(log_sum_exp, ahead);
        const int tile = shared.query_tiles[of.query().stage];
        wgmma_wait<0>();
        fence_each(score);
        scores.weigh(score, scale, log_sum_exp, ahead);
        if (!plain.has(tile)) scores.mask(score, item, tile);
        scores.round(score, p);
      };
      // Adds to dv, makes dS, and issues what is added to dk.
      const auto multiply_gradients = [&] {
        const int stage = at.gradient().stage;
        shared.gradients.wait_full(at.gradient());
        wait_for_turn();
        add_queries<Config>(dv, p, shared.d_o[stage], warpgroup);
        multiply_keys<Config, Config::kValueSteps>(score, own_values, shared.d_o[stage]);
        pass_turn();
        RowValues ahead;
        scores.load_ahead(shared.row_products[stage], ahead);
        const auto to = at.d_scores();
        shared.d_scores.wait_empty(to);
        wgmma_wait<0>();
        hold_operand(p);
        fence_each(score);
        scores.differentiate(p, score, shared.row_products[stage], ahead, p,
                             shared.scores[to.stage]);
        fence_shared_for_async_proxy();
        arrive_warp(shared.d_scores.full[to.stage]);
        shared.gradients.empty[stage].arrive();
        wait_for_turn();
        add_queries<Config>(dk, p, shared.q[at.query().stage], warpgroup);
      };
      const auto release_queries = [&] {
        hold_operand(p);
        shared.queries.empty[at.query().stage].arrive();
      };

      shared.values.wait_full(keys_at);
      weigh_scores(at);
      // why S is issued in the loop and waited for there: ptxas serialises products that are under
      // way where the loop begins.
#pragma unroll 1
      while (--left > 0) {
        multiply_gradients();
        const BackwardPosition<Config> next = at.next();
        issue_scores(next);
        pass_turn();
        wgmma_wait<1>();
        release_queries();
        weigh_scores(next);
        at = next;
      }
      multiply_gradients();
      pass_turn();
      arrive_warp(shared.values.empty[0]);
      wgmma_wait<0>();
      release_queries();
      arrive_warp(shared.keys.empty[0]);
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

/// dq of every step, from dS to where the summing role takes it. Half by half: registers are few.
template <class Config>
struct BackwardQueryGradients {
  BackwardShared<Config>& shared;

  __device__ void run() const {
    for_items(shared,
              [&](const BackwardItem& item, RingPosition<1> keys_at, BackwardPosition<Config>& at) {
                shared.keys.wait_full(keys_at);
                int left = item.tiles() * (item.end_head - item.first_head);  // steps
#pragma unroll 1
                for (; left > 0; --left, at = at.next()) multiply(at);
                arrive_warp(shared.keys.empty[0]);
              });
  }

  __device__ void multiply(const BackwardPosition<Config>& at) const {
    const auto from = at.d_scores();
    const auto to = ring_position<Config::kSumStages>(at.step);
    shared.d_scores.wait_full(from);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      Accumulator<typename Config::SumShare> dq;
      multiply_scores<Config>(dq, shared.scores[from.stage], shared.k, half);
      wgmma_wait<0>();
      dq.fence();
      if (half == 1) arrive_warp(shared.d_scores.empty[from.stage]);
      if (half == 0) shared.sums.wait_empty(to);
      put_sums(shared, to.stage, half, dq);
    }
    fence_shared_for_async_proxy();
    shared.sums.full[to.stage].arrive();
  }
};

}  // namespace tandem::cuda::attention
