// gated_scan_carry_backward: what outputs add to the gradient by the state before their first
// token, d_carry = sum over t of (a_1 ... a_t) silu(gate_t) d_out_t. Two kernels.
//
// gated_scan_chunk_sum_kernel, a thread per 16 bytes of channels (or one channel, where tensors are
// not aligned) of a chunk, as in carry.cuh: its tokens' sum, which is 0 without a look at them
// where the product of the decays before the chunk is 0 in all of the thread's channels.
//
//   a thread   before~ | 0: write 0
//              8 tokens of d_out, decay, gate~ | products, silu, sum | 8 tokens~ ... | sum~
//
// gated_scan_sum_kernel, chunks' sums to one. A CTA has 32 channels of a sequence, each of its 32
// warps every share of neighbouring chunks:
//
//   all warps   sum of own share | write it to shared memory | sync
//   one warp    sum of the shares~
//
// Floor: `before` read, the sums written and read from L2; of chunks that are read d_out, decay and
// gate once each.
// Numerics: fp32, sums in the order of time within a chunk and a share, shares in the order of
// time: the shape alone decides it. A product below 2^-126 before a chunk becomes 0, a decay of 0
// makes it 0, and where it is 0 a token adds 0: d_out and gate of inf or NaN do not count.
// Limits: T below 2^31 - 2^20, grids of 2^31 - 1 CTAs.
#pragma once

#include "cuda/gated_scan/chunk_states.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gated_scan {

// why 2 CTAs: for more, ptxas spills in fp32.
template <class Element, class Decay, int kChannels>
__global__ __launch_bounds__(kChunkThreads, 2) void gated_scan_chunk_sum_kernel(
    const __grid_constant__ GatedScanCarryBackwardProblem p) {
  follow_stream();
  const auto place = ChunkPlace::of_thread<kChannels>(p);
  if (!place.exists(p)) return;
  const std::int64_t at = place.line * p.D + place.channel;
  TokenChannels<float, kChannels> before;
  before.load(p.before + at);
  float product[kChannels], sum[kChannels] = {};
  before.unpack(product);
  if (drop_smallest(product)) {
    for_each_state<Element, Decay>(
        p, place, p.d_out, product,
        [&](Element*, const float(&d_out)[kChannels], const float(&factors)[kChannels]) {
#pragma unroll
          for (int j = 0; j < kChannels; ++j) {
            if (product[j] != 0.0f) sum[j] = fmaf(product[j], factors[j] * d_out[j], sum[j]);
          }
        });
  }
  store_token(p.sums + at, sum);
}

template <int kWarps>
__global__ __launch_bounds__(32 * kWarps) void gated_scan_sum_kernel(
    const __grid_constant__ GatedScanCarryBackwardProblem p) {
  __shared__ float shares[kWarps][32];
  follow_stream();
  const auto share = ChunkShare::of_thread<kWarps>(p);
  const float* lines = p.sums + share.first;
  float sum = 0.0f;
#pragma unroll 8
  for (std::int64_t c = share.begin; c < share.end; ++c) sum += lines[c * p.D];
  shares[share.warp][share.lane] = sum;
  __syncthreads();
  if (!share.exists || share.warp > 0) return;
  for (int w = 1; w < kWarps; ++w) sum += shares[w][share.lane];
  p.d_carry[share.b * p.D + share.channel] = sum;
}

template <class Element, class Decay, int kChannels>
void launch_carry_backward(const char* name, const GatedScanCarryBackwardProblem& problem,
                           void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (problem.T > 0) {
    launch_kernel(name, gated_scan_chunk_sum_kernel<Element, Decay, kChannels>,
                  {.blocks = chunk_blocks<kChannels>(problem), .threads = kChunkThreads}, on,
                  problem);
  }
  launch_kernel(name, gated_scan_sum_kernel<kShareWarps>,
                {.blocks = share_blocks(problem), .threads = 32 * kShareWarps}, on, problem);
}

}  // namespace tandem::cuda::gated_scan
