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

#include "cuda/gated_scan/chunk_place.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gated_scan {

/// Makes what is left of the carry before the thread's chunk; returns whether that is anything.
template <int kChannels>
__device__ bool carry_to_chunk(const GatedScanCarryProblem& p, const ChunkPlace& place,
                               float (&state)[kChannels]) {
  constexpr float kSmallest = 1.17549435e-38f;
  TokenChannels<float, kChannels> loaded_before, loaded_carry;
  loaded_before.load(p.before + place.line * p.D + place.channel);
  loaded_carry.load(p.carry + place.b * p.D + place.channel);
  float before[kChannels];
  loaded_before.unpack(before);
  loaded_carry.unpack(state);
  bool any = false;
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    state[j] = kept(before[j], state[j]);
    if (fabsf(state[j]) < kSmallest) state[j] = 0.0f;
    any |= state[j] != 0.0f;
  }
  return any;
}

template <class Element, class Decay, int kChannels>
__global__ __launch_bounds__(kChunkThreads) void gated_scan_carry_kernel(
    const __grid_constant__ GatedScanCarryProblem p) {
  follow_stream();
  const auto place = ChunkPlace::of_thread<kChannels>(p);
  if (!place.exists(p)) return;
  float state[kChannels];
  if (!carry_to_chunk(p, place, state)) return;
  const bool has_gate = p.gate.data != nullptr;
  Element* out = place.template first<Element>(p.out);
  const Decay* decay = place.template first<const Decay>(p.decay);
  const Element* gate = has_gate ? place.template first<const Element>(p.gate) : nullptr;
#pragma unroll 1
  for (int t = 0; t < place.tokens; t += kGroupTokens) {
    TokenChannels<Element, kChannels> outs[kGroupTokens], gates[kGroupTokens];
    TokenChannels<Decay, kChannels> decays[kGroupTokens];
#pragma unroll
    for (int i = 0; i < kGroupTokens; ++i) {
      if (t + i >= place.tokens) continue;
      outs[i].load(out + (t + i) * p.out.time_stride);
      decays[i].load(decay + (t + i) * p.decay.time_stride);
      if (has_gate) gates[i].load(gate + (t + i) * p.gate.time_stride);
    }
#pragma unroll
    for (int i = 0; i < kGroupTokens; ++i) {
      if (t + i >= place.tokens) break;
      float a[kChannels], sum[kChannels], z[kChannels];
      unpack_decay(decays[i], p.log_decay, a);
      outs[i].unpack(sum);
      if (has_gate) gates[i].unpack(z);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        state[j] = kept(a[j], state[j]);
        const float factor = has_gate ? z[j] * logistic<sizeof(Element) == 4>(z[j]) : 1.0f;
        if (state[j] != 0.0f) sum[j] = fmaf(factor, state[j], sum[j]);
      }
      store_token(out + (t + i) * p.out.time_stride, sum);
    }
  }
}

template <class Element, class Decay, int kChannels>
void launch_carry(const char* name, const GatedScanCarryProblem& problem, void* stream) {
  if (problem.T == 0) return;
  launch_kernel(name, gated_scan_carry_kernel<Element, Decay, kChannels>,
                {.blocks = chunk_blocks<kChannels>(problem), .threads = kChunkThreads},
                static_cast<cudaStream_t>(stream), problem);
}

}  // namespace tandem::cuda::gated_scan
