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

  /// Adds diag(factors) A St to `sum`, A being a panel [64,V], 64 columns of K at a time. why not
  /// with the factors in A, and without products of their own: A would be rounded once more.
  __device__ static void add_state(float (&sum)[Config::kKeyDim / 2], const char* a,
                                   const char* state, const float (&factors)[64]) {
    const float factor[2] = {factors[fragment_row()], factors[fragment_row() + 8]};
#pragma unroll
    for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
      float product[32];
      wgmma_begin();
      multiply_by_state<Config>(product, a, state + panel * panel_bytes(64));
      wgmma_wait<0>();
      fence_registers(product);
#pragma unroll
      for (int i = 0; i < 32; ++i) sum[32 * panel + i] += factor[i / 2 % 2] * product[i];
    }
  }

  __device__ void run() const {
    RingPosition<GroupShared<Config>::kStages> at;
    for (unsigned index = blockIdx.x; index < group_items(params); index += gridDim.x) {
      float dq[Config::kKeyDim / 2] = {}, dk[Config::kKeyDim / 2] = {};
#pragma unroll 1
      for (int head = 0; head < params.share; ++head, at.advance()) {
        const Stage& stage = shared.stages[at.stage];
        const GroupDecay& decay = shared.tokens[at.stage].decay;
        shared.full[at.stage].wait(at.parity);
        shared.state_made[at.stage].wait(at.parity);
        add_state(dk, stage.v, stage.gradient, decay.from_behind);
        shared.values_read[at.stage].arrive();
        add_state(dq, stage.d_o, stage.state, decay.from_state);
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
      put_rows<Element>(dq, shared.q);
      put_rows<Element>(dk, shared.k);
      fence_shared_for_async_proxy();
      sync_warpgroup(Config::kGradientsSync);
      if (threadIdx.x % 128 == 0) {
        const GroupItem item = find_item(params, index);
        for (int panel = 0; panel < Config::kKeyPanels; ++panel) {
          const TileCoordinate to{64 * panel, item.group, item.begin(), item.batch};
          store_panel(params.dq_map, shared.q + panel * panel_bytes(64), to);
          store_panel(params.dk_map, shared.k + panel * panel_bytes(64), to);
        }
        wait_stores_read();
        shared.left.arrive();
      }
    }
  }
};

}  // namespace tandem::cuda::gla
