// dv beside dk in one walk (Walk::kKeyValue): both come from one dS and from the same inputs.
//
// In the walk's terms (q: v, k: do, v: q, x: k; St [K,V], a state warpgroup for each 64 rows):
//   dkt = St Qt * to_end + Vt Pt          [K,C]   state role, as in every walk
//   dvt = (St)t Xt * to_end + Kt P't      [V,C]   intra role, P' = scale D (.) (X Vt)
// For dvt all of St is needed, turned round: the state role leaves it, rounded, in shared memory.
//
//   state   -St to shared- =St Qt= =Vt Pt= =V K=  -dk: sums, store-
//   intra   =Q Kt= -decay, mask- =X Vt= -decay, mask- =(St)t Xt= -scale- =Kt P't= -dv: store-
//
// Bytes, in tensors the size of q: 4 read and 2 written, where a walk each for dk and dv reads 7.
#pragma once

#include "cuda/gla/walk/output.cuh"
#include "cuda/gla/walk/products.cuh"
#include "cuda/gla/walk/weights.cuh"

namespace tandem::cuda::gla {

/// Publishes St before a chunk, rounded. The state role.
template <class Config>
__device__ void publish_state(WalkShared<Config>& shared,
                              const StateOperand<StateRegisters<Config>::kSteps>& operand,
                              int warpgroup, typename WalkShared<Config>::IntraRing::Position at) {
  shared.value.ring.wait_empty(at);
#pragma unroll
  for (int step = 0; step < Config::kKeyDim / 16; ++step) {
    store_rows(shared.value.state[warpgroup][step / 4], step % 4, operand[step]);
  }
  fence_shared_for_async_proxy();
  shared.value.ring.full[at.stage].arrive();
}

/// Issues `o` = (St)t Xt for 64 columns of St.
template <class Config>
__device__ void multiply_turned_state(float (&o)[32], const WalkShared<Config>& shared,
                                      const char* x, int block) {
  constexpr int kSteps = 4;  // per 64 rows of St
  const std::uint64_t of_x = k_major_descriptor(x, 0);
  wgmma_begin();
#pragma unroll
  for (int rows = 0; rows < Config::kStateWarpgroups; ++rows) {
    const std::uint64_t of_state = mn_major_descriptor(shared.value.state[rows][block], 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma_ss<typename Config::Element, 64, Major::MN, Major::K>(
          o, move_descriptor(of_state, mn_major_bytes(step)),
          move_descriptor(of_x, k_major_bytes<64>(kSteps * rows + step)), rows + step > 0);
    }
  }
  wgmma_commit();
}

/// Makes dv of one chunk. The intra role. `at` is the turn of its P and of St.
template <class Config>
__device__ void make_value(const WalkParams& params, WalkShared<Config>& shared, const Item& item,
                           int chunk, typename WalkShared<Config>::InputRing::Position in,
                           typename WalkShared<Config>::IntraRing::Position at) {
  const auto& stage = shared.stages[in.stage];
  const auto& decay = shared.decay_of(in.stage, 0);
  float o[32];
  // Others may clear rows of v behind a packed sequence meanwhile: their products are masked.
  multiply_tiles<Config>(o, stage.x(), stage.v);
  wgmma_wait<0>();
  fence_registers(o);
  store_intra<Config, 1>(o, &decay, params.problem.scale, item.valid_tokens<Config>(chunk),
                         shared.value.p);
  fence_shared_for_async_proxy();
  sync_warpgroup(1);
  shared.value.ring.wait_full(at);
#pragma unroll 1
  for (int block = 0; block < Config::kKeyDim / 64; ++block) {
    multiply_turned_state(o, shared, stage.x(), block);
    wgmma_wait<0>();
    fence_registers(o);
    scale_by_token(o, decay.from_state);
    wgmma_begin();
    multiply_intra<Config>(o, stage.k + block * panel_bytes(Config::kChunk), shared.value.p, true);
    // Waits for the panel's last store while the product runs.
    if (threadIdx.x % 128 == 0) wait_stores_read();
    sync_warpgroup(1);
    wgmma_wait<0>();
    fence_registers(o);
    note_finiteness<Config>(params, item, chunk, o);
    store_output<Config>(params,
                         {params.value, params.value_map, params.problem.K, item.head,
                          item.first_column + 64 * block, true},
                         item, chunk, 1, o, shared.value.o);
  }
  shared.value.ring.empty[at.stage].arrive();
  shared.input.empty[in.stage].arrive();
}

}  // namespace tandem::cuda::gla
