// What linear_scan_forward_kernel keeps for the backward: x, rounded, and states.
#pragma once

#include "cuda/linear_scan/carry.cuh"
#include "cuda/linear_scan/forward_boundaries.cuh"
#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::linear_scan {

/// Writes 16 tokens of a thread's channels to [B,T,D], element by element.
template <class Config>
__device__ void write_elements(const ThreadTile<Config>& t, int step, const TokenTensor& tensor,
                               const float (&values)[8]) {
  using Element = typename Config::Element;
  const LinearScanForwardProblem& problem = t.params.problem;
  Element* to = static_cast<Element*>(tensor.data) + t.tile.batch * tensor.batch_stride + t.channel;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::int64_t time = std::int64_t{t.time()} + t.token(2 * step + i / 4) + i % 2;
    if (time < problem.T && t.channel + i / 2 % 2 * 8 < problem.D) {
      to[time * tensor.time_stride + i / 2 % 2 * 8] = static_cast<Element>(values[i]);
    }
  }
}

/// Puts 16 tokens of a thread's channels into panel `kind`, in place of what all lanes of the warp
/// have read there.
template <class Config>
__device__ void put_in_panel(const ThreadTile<Config>& t, int step, int kind,
                             const float (&values)[8]) {
  std::uint32_t packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packed[i] = pack_pair<typename Config::Element>(values[2 * i], values[2 * i + 1]);
  }
  __syncwarp();
  store_columns(t.panel(kind, step / 4), step % 4, packed);
}

/// Writes x of a tile whose first tokens are about to be changed.
template <class Config>
__device__ void write_x(const ThreadTile<Config>& t, float (&x)[Config::kTokens / 2]) {
  if (t.params.problem.x.data == nullptr) return;
#pragma unroll
  for (int step = 0; step < Config::kTokens / 16; ++step) {
    write_elements(t, step, t.params.problem.x, *reinterpret_cast<float(*)[8]>(&x[8 * step]));
  }
}

/// Puts x of 16 tokens where their decays were, which the scan has read: no other shared memory is
/// free. A full panel leaves by TMA while the scan goes on, unless write_x wrote the tile.
template <class Config>
__device__ void keep_x(const ThreadTile<Config>& t, int step, const float (&x)[8]) {
  put_in_panel(t, step, 0, x);
  if (step % 4 < 3) return;
  fence_shared_for_async_proxy();
  t.shared.x_ready[t.slot][t.warpgroup][step / 4].arrive();
}

/// Writes the state before a token of the tile, where one is kept. Every lane of `writer`'s place
/// among the four of a channel has it.
template <class Config>
__device__ void keep_state(const ThreadTile<Config>& t, int token, int writer,
                           const ChannelPair& state) {
  const LinearScanForwardProblem& problem = t.params.problem;
  const std::int64_t time = std::int64_t{t.time()} + token;
  if (problem.states == nullptr || time % kKeptStateTokens != 0 || time >= problem.T) return;
  const std::int64_t rows = (problem.T + kKeptStateTokens - 1) / kKeptStateTokens;
  float* to =
      problem.states + (t.tile.batch * rows + time / kKeptStateTokens) * problem.D + t.channel;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool writes = threadIdx.x % 4 == writer && t.channel + 8 * r < problem.D;
    if (writes) to[8 * r] = state.value[r];
  }
}

/// The same for tokens inside a tile that has been scanned: the states of the tokens before them.
template <class Config>
__device__ void keep_inner_states(const ThreadTile<Config>& t,
                                  const float (&states)[Config::kTokens / 2]) {
#pragma unroll
  for (int token = kKeptStateTokens; token < Config::kTokens; token += kKeptStateTokens) {
    const int last = token / 2 - 4;  // of the block of 8 tokens before
    keep_state(t, token, 3, {{states[last + 1], states[last + 3]}});
  }
}

}  // namespace tandem::cuda::linear_scan
