// The intra role of gla_forward_kernel: the weights P of the tokens inside a chunk on each other.
#pragma once

#include "cuda/gla/forward_row_sums.cuh"
#include "cuda/gla/load.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda {

/// P = scale * decay * mask (.) QKt for this thread's fragment, rounded and stored as a panel
/// [i][j]. Tokens from `valid` on belong to another sequence.
template <class Config>
__device__ void store_intra(const float (&qk)[32], const ChunkDecay<Config::kChunk>& decay,
                            float scale, int valid, char* p) {
  const int row = fragment_row();
  const int own_step =
      threadIdx.x % 128 / 32;  // the 16 columns on the diagonal of this warp's rows
  const float sum[2] = {decay.log2_sum[row], decay.log2_sum[row + 8]};
#pragma unroll
  for (int step = 0; step < Config::kChunk / 16; ++step) {
    std::uint32_t packed[4] = {};
    if (Config::kReverse ? step >= own_step : step <= own_step) {
      float weighted[8];
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const int half = i / 2 % 2;  // rows `row` and `row + 8`
        const int j = fragment_column(2 * step + i / 4);
        const float2 sum_j = *reinterpret_cast<const float2*>(&decay.log2_sum[j]);
        const float factor[2] = {fast_exp2(sum[half] - sum_j.x), fast_exp2(sum[half] - sum_j.y)};
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          // why a select of the product: 0 * NaN. A token that the walk meets after i may hold
          // anything.
          const int ahead = Config::kReverse ? j + k - (row + 8 * half) : row + 8 * half - (j + k);
          bool reaches = step != own_step || ahead >= 0;
          if constexpr (Config::kReverse) reaches = reaches && j + k < valid;
          weighted[i + k] = reaches ? scale * factor[k] * qk[8 * step + i + k] : 0.0f;
        }
      }
      accumulator_to_operand<typename Config::Element>(weighted, 0, packed);
    }
    store_rows(p, step, packed);
  }
}

template <class Config>
__device__ void run_intra(const GlaForwardParams& params, ForwardShared<Config>& shared) {
  using Element = typename Config::Element;
  typename ForwardShared<Config>::InputRing::Position in;
  typename ForwardShared<Config>::IntraRing::Position out;
  ItemReader<Config> reader(shared);
  while (const Item* next = reader.next()) {
    const Item item = *next;
    if constexpr (Config::kSplit) {
      const int skipped = span_chunks<Config>(params, item);
      if (skipped > 0) shared.span_done.wait(0);
      for (int i = 0; i < skipped; ++i) in.advance();
    }
    for (int chunk = 0; chunk < item.chunks<Config>(); ++chunk, in.advance(), out.advance()) {
      auto& stage = shared.stages[in.stage];
      shared.input.wait_full(in);
      float qk[32];
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < Config::kKeyDim / 16; ++step) {
        wgmma_ss<Element, 64, Major::K, Major::K>(qk, k_major_descriptor(stage.q, step),
                                                  k_major_descriptor(stage.k, step), step > 0);
      }
      wgmma_commit();
      shared.intra.wait_empty(out);
      collect_row_sums(params, shared, out);
      place_row_sums(params, shared, item, chunk, out);
      wgmma_wait<0>();
      fence_registers(qk);
      const int valid = item.valid_tokens<Config>(chunk);
      store_intra<Config>(qk, shared.decay[in.stage], params.problem.scale, valid,
                          shared.p[out.stage]);
      if (params.problem.cu_seqlens != nullptr && valid < Config::kChunk) {
        clear_rows(stage.k, Config::kKeyBytes, valid);
        clear_rows(stage.v, Config::kValueBytes, valid);
      }
      fence_shared_for_async_proxy();
      shared.intra.full[out.stage].arrive();
    }
  }
  if constexpr (Config::kDots) {
    for (int slot = 0; slot < Config::kIntraStages; ++slot, out.advance()) {
      shared.intra.wait_empty(out);
      collect_row_sums(params, shared, out);
    }
  }
}

}  // namespace tandem::cuda
