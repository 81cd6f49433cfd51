// The gradients role of gla_group_gradients_kernel: dq and dk, summed over heads in registers.
#pragma once

#include "cuda/gla/common/products.cuh"
#include "cuda/gla/groups/shared.cuh"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::gla {

template <class Config>
struct GroupGradients {
  const GroupBackwardParams& params;
  GroupShared<Config>& shared;

  using Element = typename Config::Element;
  using Stage = typename GroupShared<Config>::Stage;

  /// Adds diag(factors) A St to `sum`, A being a panel [64,V], 64 columns of K at a time, each of
  /// which `use(panel, product)` gets before the factors. why not with the factors in A, and
  /// without products of their own: A would be rounded once more.
  template <class Use>
  __device__ static void add_state(float (&sum)[Config::kKeyDim / 2], const char* a,
                                   const char* state, const float (&factor)[2], Use use) {
#pragma unroll
    for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
      float product[32];
      wgmma_begin();
      multiply_by_state<Config>(product, a, state + panel * panel_bytes(64));
      wgmma_wait<0>();
      fence_registers(product);
      use(panel, product);
#pragma unroll
      for (int i = 0; i < 32; ++i) sum[32 * panel + i] += factor[i / 2 % 2] * product[i];
    }
  }

  /// Stores what an item has of dq and dk in fp32, to which what other splits have is added.
  __device__ void leave(const float (&dq)[Config::kKeyDim / 2],
                        const float (&dk)[Config::kKeyDim / 2], const GroupItem& item) const {
    const GlaForwardProblem& f = params.problem.forward;
    const int time = item.begin() + fragment_row();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (time + 8 * half >= f.T) continue;
      const std::int64_t row = (item.batch * f.T + time + 8 * half) * f.HQ + item.group;
      const std::int64_t at = row * params.sums_stride + fragment_column(0);
#pragma unroll
      for (int block = 0; block < Config::kKeyDim / 8; ++block) {
        if (8 * block >= f.K) continue;
        const int value = 4 * block + 2 * half;
        *reinterpret_cast<float2*>(params.query_sums + at + 8 * block) = {dq[value], dq[value + 1]};
        *reinterpret_cast<float2*>(params.key_sums + at + 8 * block) = {dk[value], dk[value + 1]};
      }
    }
  }

  __device__ void run() const {
    RingPosition<GroupShared<Config>::kStages> at;
    for (unsigned item = first_item(); item < group_items(params); item += gridDim.x) {
      float dq[Config::kKeyDim / 2] = {}, dk[Config::kKeyDim / 2] = {};
#pragma unroll 1
      for (int member = 0; member < params.members; ++member, at.advance()) {
        const Stage& stage = shared.stages[at.stage];
        const GroupDecay& decay = shared.tokens[at.stage].decay;
        shared.full[at.stage].wait(at.parity);
        shared.state_made[at.stage].wait(at.parity);
        const int row = fragment_row();
        const float of_keys[2] = {decay.from_behind[row], decay.from_behind[row + 8]};
        add_state(dk, stage.v, stage.gradient, of_keys, [](int, const float(&)[32]) {});
        shared.values_read[at.stage].arrive();
        // a = q . what dQ has from S, but for its rounding.
        const float of_queries[2] = {decay.from_state[row], decay.from_state[row + 8]};
        float sums[2][4] = {};
        add_state(dq, stage.d_o, stage.state, of_queries,
                  [&](int panel, const float(&product)[32]) {
                    add_columns<Element>(shared.q + panel * panel_bytes(64), product, sums);
                  });
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] *= of_queries[i / 4];
        put_row_sums(sums, shared.tokens[at.stage].query_state);
        shared.made[at.stage].arrive();
      }
      cutlass::arch::NamedBarrier::sync(2 * Config::kRoleThreads, Config::kWeightsMade);
      fence_registers(dq);
      fence_registers(dk);
      wgmma_begin();
      add_tokens<Element, Major::K>(dk, shared.other, shared.q);
      add_tokens<Element, Major::MN>(dq, shared.other, shared.k);
      wgmma_wait<0>();
      fence_registers(dq);
      fence_registers(dk);
      sync_warpgroup(Config::kGradientsSync);  // no warp reads q or k any more
      if constexpr (Config::kSplit) {
        if (threadIdx.x % 128 == 0) shared.left.arrive();
        leave(dq, dk, find_item(params, item));
      } else {
        put_rows<Element>(dq, shared.q);
        put_rows<Element>(dk, shared.k);
        fence_shared_for_async_proxy();
        sync_warpgroup(Config::kGradientsSync);
        if (threadIdx.x % 128 == 0) {
          const GroupItem of = find_item(params, item);
          for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
            const TileCoordinate to{64 * panel, of.group, of.begin(), of.batch};
            store_panel(params.dq_map, shared.q + panel * panel_bytes(64), to);
            store_panel(params.dk_map, shared.k + panel * panel_bytes(64), to);
          }
          wait_stores_read();
          shared.left.arrive();
        }
      }
    }
  }
};

}  // namespace tandem::cuda::gla
