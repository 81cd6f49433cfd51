// gated_scan_decay: the products of a sequence's decays, before each chunk of 64 tokens and of all.
// Two kernels.
//
// gated_scan_chunk_decay_kernel, a thread per 16 bytes of channels (or one channel, where tensors
// are not aligned) of a chunk: reads its decays once, 8 tokens on the way at a time, and leaves the
// chunk's own product in `before`.
//
//   warp       32 threads side by side: rows of 512 bytes
//   a thread   8 tokens~ | multiply | 8 tokens~ | multiply | ... (8 groups) | product~
//
// gated_scan_before_kernel, in place: from the product of each chunk to that of all before it. A
// CTA has 32 channels of a sequence, each of its 32 warps every share of neighbouring chunks:
//
//   all warps   product of own share | write it to shared memory | sync
//               product of the shares before | over own share again: read, write what is before
//
// Floor: the decays read once. `before` is 4 bytes per 64 tokens and channel, written, read twice
// from L2 and written again.
// Numerics: fp32, products in the order of time within a share, shares in the order of time: the
// shape alone decides it. exp of a log decay as in the forward. A decay of 0 makes a product 0,
// whatever the decays before it are.
// Limits: T below 2^31 - 2^20, grids of 2^31 - 1 CTAs.
#pragma once

#include "cuda/gated_scan/chunk_place.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gated_scan {

template <class Decay, int kChannels>
__global__ __launch_bounds__(kChunkThreads) void gated_scan_chunk_decay_kernel(
    const __grid_constant__ GatedScanDecayProblem p) {
  follow_stream();
  const auto place = ChunkPlace::of_thread<kChannels>(p);
  if (!place.exists(p)) return;
  const Decay* from = place.template first<const Decay>(p.decay);
  float product[kChannels];
#pragma unroll
  for (float& value : product) value = 1.0f;
  for (int t = 0; t < place.tokens; t += kGroupTokens) {
    TokenChannels<Decay, kChannels> tokens[kGroupTokens];
#pragma unroll
    for (int i = 0; i < kGroupTokens; ++i) {
      if (t + i < place.tokens) tokens[i].load(from + (t + i) * p.decay.time_stride);
    }
#pragma unroll
    for (int i = 0; i < kGroupTokens; ++i) {
      if (t + i >= place.tokens) break;
      float decay[kChannels];
      unpack_decay(tokens[i], p.log_decay, decay);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) product[j] = kept(decay[j], product[j]);
    }
  }
  store_token(p.before + place.line * p.D + place.channel, product);
}

/// Walks over lines [c,end), D apart: multiplies `product` by each, and hands visit(line, product)
/// the product before it. Reads 8 lines ahead of what visit may write.
template <class Visit>
__device__ inline float multiply_lines(float* lines, std::int64_t c, std::int64_t end, int D,
                                       float product, const Visit& visit) {
  for (; c < end; c += kGroupTokens) {
    float values[kGroupTokens];
#pragma unroll
    for (int i = 0; i < kGroupTokens; ++i) values[i] = c + i < end ? lines[(c + i) * D] : 1.0f;
#pragma unroll
    for (int i = 0; i < kGroupTokens; ++i) {
      if (c + i < end) visit(lines + (c + i) * D, product);
      product = kept(values[i], product);
    }
  }
  return product;
}

template <int kWarps>
__global__ __launch_bounds__(32 * kWarps) void gated_scan_before_kernel(
    const __grid_constant__ GatedScanDecayProblem p) {
  __shared__ float shares[kWarps][32];
  follow_stream();
  const auto share = ChunkShare::of_thread<kWarps>(p);
  float* lines = p.before + share.first;
  shares[share.warp][share.lane] =
      multiply_lines(lines, share.begin, share.end, p.D, 1.0f, [](float*, float) {});
  __syncthreads();
  float product = 1.0f;
  for (int w = 0; w < share.warp; ++w) product = kept(shares[w][share.lane], product);
  product = multiply_lines(lines, share.begin, share.end, p.D, product,
                           [](float* line, float before) { *line = before; });
  if (share.exists && share.warp == kWarps - 1) p.total[share.b * p.D + share.channel] = product;
}

template <class Decay, int kChannels>
void launch_decay(const char* name, const GatedScanDecayProblem& problem, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (problem.T > 0) {
    launch_kernel(name, gated_scan_chunk_decay_kernel<Decay, kChannels>,
                  {.blocks = chunk_blocks<kChannels>(problem), .threads = kChunkThreads}, on,
                  problem);
  }
  launch_kernel(name, gated_scan_before_kernel<kShareWarps>,
                {.blocks = share_blocks(problem), .threads = 32 * kShareWarps}, on, problem);
}

}  // namespace tandem::cuda::gated_scan
