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

  /// Loads rows of a panel as an A operand, times the factors of their tokens.
  __device__ static void load_scaled_rows(std::uint32_t (&a)[4][4], const char* panel,
                                          const float (&factors)[64]) {
    const float factor[2] = {factors[fragment_row()], factors[fragment_row() + 8]};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      load_rows(panel, step, a[step]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_pair<Element>(a[step][i]);
        a[step][i] = pack_pair<Element>(pair.x * factor[i % 2], pair.y * factor[i % 2]);
      }
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
        std::uint32_t of_d_o[4][4], of_v[4][4];
        shared.full[at.stage].wait(at.parity);
        load_scaled_rows(of_v, stage.v, decay.from_behind);
        shared.values_read[at.stage].arrive();
        load_scaled_rows(of_d_o, stage.d_o, decay.from_state);
        shared.state_made[at.stage].wait(at.parity);
        fence_registers(dq);
        fence_registers(dk);
        wgmma_begin();
        add_tokens<Element>(dk, of_v, stage.gradient);
        add_tokens<Element>(dq, of_d_o, stage.state);
        wgmma_wait<0>();
        hold_operand(of_v);
        hold_operand(of_d_o);
        fence_registers(dq);
        fence_registers(dk);
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
