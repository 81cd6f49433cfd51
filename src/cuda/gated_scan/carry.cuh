// gated_scan_carry_kernel: adds to a scan's outputs, in place, what a state before its first token
// gives, out_t += silu(gate_t) (a_1 ... a_t) carry.
//
// A thread has 16 bytes of channels (or one channel, where tensors are not aligned) of a chunk of
// 64 tokens. What is left of the carry before its chunk is one product, `before` times the carry
// (gated_scan_decay): chunks are independent of each other. Where that is 0 in all of the thread's
// channels, nothing is left to do, and decays that die out leave that to nearly all threads.
//
//   a thread   before, carry~ | 0: return
//              8 tokens of out, decay, gate~ | states, silu, out~ | 8 tokens~ ... (8 groups)
//
// Why chunks this short: those that are corrected are few, and their time is that of one thread.
//
// Floor: `before` and the carry read; of chunks that are corrected out, decay and gate read, out
// written once each.
// Numerics: fp32. A state below 2^-126 before a chunk becomes 0, a decay of 0 makes 0 of
// everything, and where the state is 0 out keeps its bits: silu(gate) of inf or NaN does not count.
// out is rounded to its dtype a second time. Limits: T below 2^31 - 2^20, a grid of 2^31 - 1 CTAs.
#pragma once

#include "cuda/gated_scan/chunk_states.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gated_scan {

/// Makes what is left of the carry before the thread's chunk; returns whether that is anything.
template <int kChannels>
__device__ bool carry_to_chunk(const GatedScanCarryProblem& p, const ChunkPlace& place,
                               float (&state)[kChannels]) {
  TokenChannels<float, kChannels> loaded_before, loaded_carry;
  loaded_before.load(p.before + place.line * p.D + place.channel);
  loaded_carry.load(p.carry + place.b * p.D + place.channel);
  float before[kChannels];
  loaded_before.unpack(before);
  loaded_carry.unpack(state);
#pragma unroll
  for (int j = 0; j < kChannels; ++j) state[j] = kept(before[j], state[j]);
  return drop_smallest(state);
}

template <class Element, class Decay, int kChannels>
__global__ __launch_bounds__(kChunkThreads) void gated_scan_carry_kernel(
    const __grid_constant__ GatedScanCarryProblem p) {
  follow_stream();
  const auto place = ChunkPlace::of_thread<kChannels>(p);
  if (!place.exists(p)) return;
  float state[kChannels];
  if (!carry_to_chunk(p, place, state)) return;
  for_each_state<Element, Decay>(
      p, place, p.out, state,
      [&](Element* out, float(&sum)[kChannels], const float(&factors)[kChannels]) {
#pragma unroll
        for (int j = 0; j < kChannels; ++j) {
          if (state[j] != 0.0f) sum[j] = fmaf(factors[j], state[j], sum[j]);
        }
        store_token(out, sum);
      });
}

template <class Element, class Decay, int kChannels>
void launch_carry(const char* name, const GatedScanCarryProblem& problem, void* stream) {
  if (problem.T == 0) return;
  launch_kernel(name, gated_scan_carry_kernel<Element, Decay, kChannels>,
                {.blocks = chunk_blocks<kChannels>(problem), .threads = kChunkThreads},
                static_cast<cudaStream_t>(stream), problem);
}

}  // namespace tandem::cuda::gated_scan
