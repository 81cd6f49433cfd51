// What decays leave of a state over the tokens of a chunk: where gated_scan_carry and its backward
// walk.
#pragma once

#include "cuda/gated_scan/chunk_place.cuh"

namespace tandem::cuda::gated_scan {

/// Makes 0 of what is below 2^-126; returns whether anything is left.
template <int kChannels>
__device__ inline bool drop_smallest(float (&state)[kChannels]) {
  constexpr float kSmallest = 1.17549435e-38f;
  bool any = false;
#pragma unroll
  for (float& value : state) {
    if (fabsf(value) < kSmallest) value = 0.0f;
    any |= value != 0.0f;
  }
  return any;
}

/// Calls visit(token, values, factors) for every token of the chunk, with `state` as the decays
/// leave it there: the thread's channels of `tensor`, where they lie and what they are, and silu of
/// the gate, 1 without one.
template <class Element, class Decay, int kChannels, class Visit>
__device__ inline void for_each_state(const ScanDecays& p, const ChunkPlace& place,
                                      const TokenTensor& tensor, float (&state)[kChannels],
                                      const Visit& visit) {
  const bool has_gate = p.gate.data != nullptr;
  Element* first = place.template first<Element>(tensor);
  const Decay* decay = place.template first<const Decay>(p.decay);
  const Element* gate = has_gate ? place.template first<const Element>(p.gate) : nullptr;
#pragma unroll 1
  for (int t = 0; t < place.tokens; t += kGroupTokens) {
    TokenChannels<Element, kChannels> tokens[kGroupTokens], gates[kGroupTokens];
    TokenChannels<Decay, kChannels> decays[kGroupTokens];
#pragma unroll
    for (int i = 0; i < kGroupTokens; ++i) {
      if (t + i >= place.tokens) continue;
      tokens[i].load(first + (t + i) * tensor.time_stride);
      decays[i].load(decay + (t + i) * p.decay.time_stride);
      if (has_gate) gates[i].load(gate + (t + i) * p.gate.time_stride);
    }
#pragma unroll
    for (int i = 0; i < kGroupTokens; ++i) {
      if (t + i >= place.tokens) break;
      float a[kChannels], values[kChannels], factors[kChannels];
      unpack_decay(decays[i], p.log_decay, a);
      tokens[i].unpack(values);
      if (has_gate) gates[i].unpack(factors);
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        state[j] = kept(a[j], state[j]);
        factors[j] = has_gate ? factors[j] * logistic<sizeof(Element) == 4>(factors[j]) : 1.0f;
      }
      visit(first + (t + i) * tensor.time_stride, values, factors);
    }
  }
}

}  // namespace tandem::cuda::gated_scan
