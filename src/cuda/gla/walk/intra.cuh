// The intra role of gla_walk_kernel: the weights P of the tokens inside a chunk on each other.
#pragma once

#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/walk/key_value.cuh"
#include "cuda/gla/walk/row_sums.cuh"
#include "cuda/gla/walk/weights.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

template <class Config>
__device__ void run_intra(const WalkParams& params, WalkShared<Config>& shared) {
  typename WalkShared<Config>::InputRing::Position in;
  typename WalkShared<Config>::IntraRing::Position out;
  for (ItemReader<Config> reader(shared); const Item* next = reader.current(); reader.advance()) {
    const Item item = *next;
    if constexpr (Config::kSplit) {
      const int skipped = shared.segment.entry.chunks();
      if (skipped > 0) shared.segment.read.wait(0);
      for (int i = 0; i < skipped; ++i) in.advance();
    }
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk, in.advance(), out.advance()) {
      auto& stage = shared.stages[in.stage];
      shared.input.wait_full(in);
      float qk[32];
      multiply_tiles<Config>(qk, stage.q, stage.k);
      shared.intra.wait_empty(out);
      collect_row_sums(params, shared, out);
      place_row_sums(params, shared, item, chunk, out);
      wgmma_wait<0>();
      fence_registers(qk);
      const int valid = item.valid_tokens<Config>(chunk);
      store_intra<Config, Config::kHeads>(qk, shared.decay[in.stage], params.problem.scale, valid,
                                          shared.p[out.stage][0]);
      if (params.problem.cu_seqlens != nullptr && valid < Config::kChunk) {
        clear_rows(stage.k, Config::kKeyBytes, valid);
        clear_rows(stage.v, Config::kValueBytes, valid);
      }
      fence_shared_for_async_proxy();
      shared.intra.full[out.stage].arrive();
      if constexpr (Config::kWithValue) make_value(params, shared, item, chunk, in, out);
    }
    if constexpr (Config::kSplit) break;  // a segment is all that a CTA walks
  }
  if constexpr (Config::kRowSums) {
    for (int slot = 0; slot < Config::kIntraStages; ++slot, out.advance()) {
      shared.intra.wait_empty(out);
      collect_row_sums(params, shared, out);
    }
  }
  if (Config::kWithValue && threadIdx.x % 128 == 0) wait_stores_read();
}

}  // namespace tandem::cuda::gla
