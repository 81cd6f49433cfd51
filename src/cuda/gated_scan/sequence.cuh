// A CTA that walks one sequence from its own first tile on, where Config::kPerSequence: what a
// sequence's bits depend on is then its own tokens, wherever it lies among others. A packed
// sequence is shown to the walk as a batch row of its own, by parameters of the CTA's in shared
// memory.
#pragma once

#include <cstring>

#include "cuda/gated_scan/params.h"
#include "cuda/gated_scan/place.cuh"

namespace tandem::cuda::gated_scan {

template <class Stored>
__device__ inline void move_tokens(TokenTensor& tensor, std::int64_t begin) {
  if (tensor.data == nullptr) return;
  tensor.data = static_cast<Stored*>(tensor.data) + begin * tensor.time_stride;
}
template <class Float>
__device__ inline void move_state(Float*& states, std::int64_t n, int D) {
  if (states != nullptr) states += n * D;
}

template <class Config>
__device__ void move_own(ForwardParams& params, std::int64_t begin, std::int64_t n) {
  move_tokens<typename Config::Element>(params.out, begin);
  move_tokens<typename Config::Element>(params.x_rest, begin);
  move_state(params.final_state, n, params.D);
}
template <class Config>
__device__ void move_own(BackwardParams& params, std::int64_t begin, std::int64_t n) {
  using Element = typename Config::Element;
  move_tokens<Element>(params.d_out, begin);
  move_state(params.d_final_state, n, params.D);
  move_tokens<Element>(params.dx, begin);
  move_tokens<typename Config::Decay>(params.d_decay, begin);
  move_tokens<Element>(params.d_gate, begin);
  move_state(params.d_initial_state, n, params.D);
}

/// Makes the parameters of a batch row out of packed sequence n. Its states lie behind those of the
/// sequences before it: at most begin / kStateTokens + n.
template <class Config, class Params>
__device__ void move_to_sequence(Params& params, std::int64_t n) {
  const ScanSequences all = params.sequences;
  const std::int64_t begin = all.N > 0 ? sequence_boundary(all, n) : 0;
  const int end = all.N > 0 ? sequence_boundary(all, n + 1) : 0;
  params.sequences = {nullptr, 1, max(end - static_cast<int>(begin), 0)};
  move_tokens<typename Config::Element>(params.x, begin);
  move_tokens<typename Config::Decay>(params.decay, begin);
  move_tokens<typename Config::Element>(params.gate, begin);
  move_state(params.initial_state, n, params.D);
  move_state(params.states, begin / kStateTokens + n, params.D);
  move_own<Config>(params, begin, n);
}

/// Returns the parameters of the CTA's walk: those given, or its sequence's. All threads, behind
/// follow_stream.
template <class Config, class Params>
__device__ const Params& params_of_walk(const Params& given, Place<Config>& place) {
  if constexpr (!Config::kPerSequence) {
    return given;
  } else {
    __shared__ alignas(Params) unsigned char memory[sizeof(Params)];
    auto& own = *reinterpret_cast<Params*>(memory);
    if (threadIdx.x == 0) {
      memcpy(memory, &given, sizeof(Params));
      if (given.sequences.cu_seqlens != nullptr) move_to_sequence<Config>(own, place.b);
    }
    if (given.sequences.cu_seqlens != nullptr) place.b = 0;
    __syncthreads();
    return own;
  }
}

/// Writes zeros at tokens of no sequence, of the CTA's channels: the first sequence's CTA before
/// it, the last one's behind it. `n`: the CTA's.
template <class Config, class Stored>
__device__ void clear_outside(const ChainParams& given, const Place<Config>& place, int n,
                              const TokenTensor& tensor) {
  const ScanSequences& all = given.sequences;
  if (all.cu_seqlens == nullptr || tensor.data == nullptr) return;
  const auto clear = [&](int begin, int end) {
    for (std::int64_t i = threadIdx.x; i < std::int64_t{end - begin} * Config::kWidth;
         i += Config::kThreads) {
      const int channel = place.block_channel + static_cast<int>(i % Config::kWidth);
      if (channel >= given.D) continue;
      static_cast<Stored*>(
          tensor.data)[(begin + i / Config::kWidth) * tensor.time_stride + channel] =
          static_cast<Stored>(0.0f);
    }
  };
  if (n == 0) clear(0, all.N > 0 ? sequence_boundary(all, 0) : all.T);
  if (n == all.N - 1) clear(sequence_boundary(all, all.N), all.T);
}

}  // namespace tandem::cuda::gated_scan
