// The role of attention_backward_kernel that multiplies: two warpgroups with 64 keys each, whose dk
// and dv stay in their registers, and with half of dq of every step.
#pragma once

#include "cuda/attention/backward_load.cuh"
#include "cuda/attention/backward_products.cuh"
#include "cuda/attention/backward_tile.cuh"
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

/// Where a warpgroup is along the steps. Few registers: there are none to spare.
template <class Config>
struct BackwardPosition {
  int step = 0;
  int tile;  // of queries
  RingPosition<Config::kQueryStages> query;

  explicit __device__ BackwardPosition(const BackwardItem& item) : tile(item.last_tile) {}

  __device__ BackwardPosition next(const BackwardItem& item) const {
    BackwardPosition next = *this;
    ++next.step;
    if (--next.tile < item.first_tile) next.tile = item.last_tile;
    next.query.advance();
    return next;
  }
  __device__ int last_stage() const {
    return query.stage == 0 ? Config::kQueryStages - 1 : query.stage - 1;
  }
  /// Of a ring of one or two stages.
  template <int kStages>
  __device__ RingPosition<kStages> in_ring() const {
    static_assert(kStages <= 2);
    return {step % kStages, static_cast<std::uint32_t>(step / kStages & 1)};
  }
  __device__ std::uint32_t d_scores_parity() const { return step & 1 ^ 1; }
};

template <class Config>
struct BackwardGradients {
  const AttentionBackwardParams& params;
  BackwardShared<Config>& shared;
  const int warpgroup;  // 0 or 1

  using Element = typename Config::Element;
  using Operand = std::uint32_t[Config::kQuerySteps][4];
  static constexpr int kScores = Config::kScores;
  static constexpr int kQueries = Config::kQueries;

  /// Sets P to 0 where a query does not see a key. why not the scores to -inf: a scale may be 0 or
  /// negative.
  __device__ void mask(Operand& p, int tile) const {
    const BackwardItem& item = shared.item;
    const SequenceSpan& span = item.span;
    const int key = item.first_key(), query = tile * kQueries;
    if (key + Config::kKeys <= span.keys && key >= query + kQueries - 1 + span.first &&
        key + Config::kKeys - 1 <= query + span.last) {
      return;
    }
    // Columns of the tile that see this thread's two keys: [low, high].
    int low[2], high[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = key + 64 * warpgroup + fragment_row() + 8 * half;
      const int column = own - query - fragment_column(0);
      low[half] = own < span.keys ? column - span.last : kQueries;
      high[half] = column - span.first;
    }
#pragma unroll
    for (int pair = 0; pair < kScores / 2; ++pair) {
      const int column = pair / 2 * 8, half = pair % 2;
      const auto sees = [&](int own) { return own >= low[half] && own <= high[half]; };
      p[pair / 4][pair % 4] &=
          (sees(column) ? 0x0000FFFFu : 0u) | (sees(column + 1) ? 0xFFFF0000u : 0u);
    }
  }

  /// P = 2^(scale S - log_sum_exp), rounded.
  __device__ void weigh(const float (&score)[kScores], const float* log_sum_exp, float scale,
                        Operand& p) const {
#pragma unroll
    for (int pair = 0; pair < kScores / 2; ++pair) {
      const float2 of_query =
          *reinterpret_cast<const float2*>(&log_sum_exp[fragment_column(pair / 2)]);
      p[pair / 4][pair % 4] =
          pack_pair<Element>(fast_exp2(fmaf(score[2 * pair], scale, -of_query.x)),
                             fast_exp2(fmaf(score[2 * pair + 1], scale, -of_query.y)));
    }
  }

  /// dS = P (dP - row product), rounded: to registers, and transposed to shared memory.
  __device__ void differentiate(const Operand& p, const float (&d_weight)[kScores],
                                const float* row_products, Operand& d_score) const {
    char* panel = shared.d_scores + warpgroup * panel_bytes(kQueries);
#pragma unroll
    for (int step = 0; step < Config::kQuerySteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = 4 * step + i;
        const float2 product =
            *reinterpret_cast<const float2*>(&row_products[fragment_column(pair / 2)]);
        const float2 weight = unpack_pair<Element>(p[step][i]);
        d_score[step][i] = pack_pair<Element>(weight.x * (d_weight[2 * pair] - product.x),
                                              weight.y * (d_weight[2 * pair + 1] - product.y));
      }
      store_columns(panel, step, d_score[step]);
    }
  }

  /// Hands this warpgroup's share of dq to the summing role.
  __device__ void hand_over(BackwardSums<Config>& dq, RingPosition<Config::kSumStages> at) const {
    shared.sums.wait_empty(at);
    auto* to = reinterpret_cast<float4*>(shared.dq[at.stage]) +
               warpgroup * (Config::kSums / 4) * 128 + threadIdx.x % 128;
    dq.for_fours([&](int i, const float* four) {
      to[i * 128] = {four[0], four[1], four[2], four[3]};
    });
    fence_shared_for_async_proxy();
    arrive_warp(shared.sums.full[at.stage]);
  }

  /// Stores 64 rows of dk or dv, through the tile that this warpgroup no longer needs.
  template <int kColumns, int kCount>
  __device__ void store(const float (&acc)[kCount], float scale, char* panels,
                        const StridedTensor& to, int columns) const {
    const BackwardItem& item = shared.item;
    if (to.data == nullptr) return;
    put_tile<Element, Config::kKeys>(acc, scale, panels, 64 * warpgroup, 0);
    sync_warpgroup(2 + warpgroup);
    const int first = item.first_key() + 64 * warpgroup;
    const std::int64_t time = item.span.key_begin + std::int64_t{first};
    copy_rows<Element, Config::kKeys, kColumns, 128>(
        panels + warpgroup * panel_bytes(64),
        static_cast<Element*>(to.data) + item.span.batch * to.batch_stride + time * to.time_stride +
            item.key_head * to.head_stride,
        to.time_stride, min(item.span.key_room - first, 64), columns, threadIdx.x % 128);
  }

  __device__ void run() const {
    const AttentionForwardProblem& problem = params.problem.forward;
    const BackwardItem& item = shared.item;
    const float scale = problem.scale * kLog2E;
    const char* own_keys = shared.k + warpgroup * panel_bytes(64);
    const char* own_values = shared.v + warpgroup * panel_bytes(64);
    float dk[Config::kKeyDim / 2] = {}, dv[Config::kValueDim / 2] = {};

    const int steps = item.tiles() * heads_per_key_head(problem);
    if (steps > 0) {
      float score[kScores], d_weight[kScores];
      BackwardSums<Config> dq;
      Operand p, d_score;
      BackwardPosition<Config> at(item);

      // Issues S of a step.
      const auto issue_scores = [&](const BackwardPosition<Config>& of) {
        shared.queries.wait_full(of.query);
        multiply_keys<Config, Config::kKeySteps>(score, own_keys, shared.q[of.query.stage]);
      };
      // P of a step whose S is there.
      const auto weigh_scores = [&](const BackwardPosition<Config>& of) {
        fence_each(score);
        weigh(score, shared.log_sum_exp[of.query.stage], scale, p);
        mask(p, of.tile);
      };
      // Issues dP and dV's share; waits for dP and what was under way before.
      const auto multiply_gradients = [&] {
        const auto gradient = at.template in_ring<Config::kGradientStages>();
        shared.gradients.wait_full(gradient);
        const char* d_o = shared.d_o[gradient.stage];
        multiply_keys<Config, Config::kValueSteps>(d_weight, own_values, d_o);
        add_queries<Config>(dv, p, d_o);
        wgmma_wait<1>();
        if constexpr (!Config::kSharedScores) hold_operand(d_score);
        fence_each(d_weight);
      };
      // Makes dS, and issues dQ and dK's share.
      const auto multiply_d_scores = [&](const BackwardPosition<Config>& next, bool exists) {
        shared.d_scores_empty.wait(at.d_scores_parity());
        differentiate(p, d_weight,
                      shared.row_products[at.template in_ring<Config::kGradientStages>().stage],
                      d_score);
        fence_shared_for_async_proxy();
        // dV is done, or nearly: its operand gives room to what follows.
        wgmma_wait<0>();
        hold_operand(p);
        sync_workers();
        arrive_warp(shared.gradients.empty[at.template in_ring<Config::kGradientStages>().stage]);
        if (!Config::kLastScores && exists) issue_scores(next);
        dq.multiply(shared.d_scores, shared.k, warpgroup);
        if constexpr (Config::kSharedScores) {
          add_queries_of_shared<Config>(dk, shared.d_scores + warpgroup * panel_bytes(kQueries),
                                        shared.q[at.query.stage]);
        } else {
          add_queries<Config>(dk, d_score, shared.q[at.query.stage]);
        }
      };
      // Takes dQ. Only the last product, dK's, may still be under way.
      const auto take_sums = [&] {
        wgmma_wait<1>();
        dq.fence();
        arrive_warp(shared.d_scores_empty);
        hand_over(dq, at.template in_ring<Config::kSumStages>());
      };

      shared.keys_full.wait(0);
#pragma unroll
      for (auto& four : d_score) {
        for (std::uint32_t& word : four) word = 0;
      }
      issue_scores(at);
      wgmma_wait<0>();
      weigh_scores(at);
#pragma unroll 1
      while (at.step + 1 < steps) {
        // why the loop begins here: only dK of the step before is under way, whose accumulator
        // nobody reads. ptxas serialises products whose results are read in the next turn.
        multiply_gradients();
        if (at.step > 0) arrive_warp(shared.queries.empty[at.last_stage()]);
        const BackwardPosition<Config> next = at.next(item);
        multiply_d_scores(next, true);
        if constexpr (Config::kSumsFirst) {
          take_sums();
        } else {
          wgmma_wait<2>();
        }
        if constexpr (Config::kLastScores) {
          issue_scores(next);
          wgmma_wait<0>();
        }
        weigh_scores(next);
        if constexpr (!Config::kSumsFirst) take_sums();
        at = next;
      }
      multiply_gradients();
      multiply_d_scores(at, false);
      take_sums();
      wgmma_wait<0>();
      if constexpr (!Config::kSharedScores) hold_operand(d_score);
      fence_registers(dk);
      fence_registers(dv);
      sync_workers();  // why: dk takes the place of k, which both read for dq
    }
    store<Config::kValueDim>(dv, 1.0f, shared.v, params.problem.dv, problem.V);
    store<Config::kKeyDim>(dk, problem.scale, shared.k, params.problem.dk, problem.K);
  }
};

}  // namespace tandem::cuda::attention
