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

/// Transposes an 8 x 8 block of 16-bit values, a row's pair in every lane as wgmma's accumulators
/// have them. A whole warp.
__device__ inline std::uint32_t transpose_block(std::uint32_t pair) {
  std::uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

/// Whether two neighbouring channels of every token of [B,T,D] lie in one word.
__device__ inline bool has_pairs(const TokenTensor& tensor, int D) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 4 == 0 &&
         (tensor.batch_stride | tensor.time_stride | D) % 2 == 0;
}

/// Writes x of a tile, rounded, before sequences' first tokens are changed. why from registers: the
/// stages wait for nothing then.
template <class Config>
__device__ void keep_x(const ThreadTile<Config>& t, float (&x)[Config::kTokens / 2]) {
  using Element = typename Config::Element;
  const LinearScanForwardProblem& problem = t.params.problem;
  const TokenTensor& to = problem.x;
  if (to.data == nullptr) return;
  if (!has_pairs(to, problem.D)) {
#pragma unroll
    for (int step = 0; step < Config::kTokens / 16; ++step) {
      write_elements(t, step, to, *reinterpret_cast<float(*)[8]>(&x[8 * step]));
    }
    return;
  }
  // Transposed, a lane has two channels of a token of every eight.
  const int lane = threadIdx.x % 32;
  const int channel = t.channel - lane / 4 + lane % 4 * 2;
  std::int64_t time = std::int64_t{t.time()} + lane / 4;
  Element* row = static_cast<Element*>(to.data) + t.tile.batch * to.batch_stride +
                 time * to.time_stride + channel;
#pragma unroll
  for (int block = 0; block < Config::kTokens / 8; ++block) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* pair = &x[4 * block + 2 * r];
      const std::uint32_t word = transpose_block(pack_pair<Element>(pair[0], pair[1]));
      if (time < problem.T && channel + 8 * r < problem.D) {
        *reinterpret_cast<std::uint32_t*>(row + 8 * r) = word;
      }
    }
    row += 8 * to.time_stride;
    time += 8;
  }
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
