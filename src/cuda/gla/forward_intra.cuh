// The intra role of gla_forward_kernel: the weights P of the tokens inside a chunk on each other.
#pragma once

#include "cuda/gla/forward_shared.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda {

/// Zeroes rows [from, 64) of a tile, so that tokens of the next sequence never enter a product.
__device__ inline void clear_rows(char* tile, int tile_bytes, int from) {
  const int rows = 64 - from;
  for (int piece = threadIdx.x % 128; piece < tile_bytes / panel_bytes(64) * rows * 8;
       piece += 128) {
    char* panel = tile + piece / (rows * 8) * panel_bytes(64);
    *reinterpret_cast<uint4*>(panel + panel_offset(from + piece / 8 % rows, piece % 8)) = uint4{};
  }
}

/// P = scale * decay * mask (.) QKt for this thread's fragment, rounded and stored as a panel
/// [i][j].
template <class Config>
__device__ void store_intra(const float (&qk)[32], const ChunkDecay<Config::kChunk>& decay,
                            float scale, char* p) {
  const int row = fragment_row();
  const float sum[2] = {decay.log2_sum[row], decay.log2_sum[row + 8]};
  const int begin[2] = {decay.window_begin[row], decay.window_begin[row + 8]};
#pragma unroll
  for (int step = 0; step < Config::kChunk / 16; ++step) {
    float weighted[8];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int half = i / 2 % 2;  // rows `row` and `row + 8`
      const int j = fragment_column(2 * step + i / 4);
      const float2 sum_j = *reinterpret_cast<const float2*>(&decay.log2_sum[j]);
      const float log2_sum[2] = {sum_j.x, sum_j.y};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float factor = decay_factor(sum[half], begin[half], log2_sum[k], j + k);
        // why a select of the product: 0 * NaN. A token behind i may hold anything.
        const bool causal = j + k <= row + 8 * half;
        weighted[i + k] = causal ? scale * factor * qk[8 * step + i + k] : 0.0f;
      }
    }
    std::uint32_t packed[4];
    accumulator_to_operand<typename Config::Element>(weighted, 0, packed);
    store_rows(p, step, packed);
  }
}

template <class Config>
__device__ void run_intra(const GlaForwardParams& params, ForwardShared<Config>& shared,
                          const Span& span) {
  using Element = typename Config::Element;
  typename ForwardShared<Config>::InputRing::Position in;
  typename ForwardShared<Config>::IntraRing::Position out;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, in.advance(), out.advance()) {
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
    wgmma_wait<0>();
    fence_registers(qk);
    store_intra<Config>(qk, shared.decay[in.stage], params.problem.scale, shared.p[out.stage]);
    const int valid = span.valid_tokens(chunk, Config::kChunk);
    if (params.problem.cu_seqlens != nullptr && valid < Config::kChunk) {
      clear_rows(stage.k, Config::kKeyBytes, valid);
      clear_rows(stage.v, Config::kValueBytes, valid);
    }
    fence_shared_for_async_proxy();
    shared.intra.full[out.stage].arrive();
  }
}

}  // namespace tandem::cuda
