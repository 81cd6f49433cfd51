// Products of attention_backward_kernel, of 64 rows of a warpgroup. Each issues and commits. why
// they move their first descriptors: one computed anew takes ten instructions.
#pragma once

#include "cuda/attention/backward_shared.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::attention {

/// Bytes from a K-major operand's first contraction step to another.
template <int kRows>
constexpr int k_major_bytes(int step) {
  return step / 4 * panel_bytes(kRows) + step % 4 * 32;
}
/// The same of an MN-major operand.
constexpr int mn_major_bytes(int step) { return step * panel_bytes(16); }

/// acc = A Bt: 64 keys by a tile of queries, contracting kSteps * 16 columns.
template <class Config, int kSteps>
__device__ void multiply_keys(float (&acc)[Config::kScores], const char* keys,
                              const char* queries) {
  const std::uint64_t a = k_major_descriptor<Config::kKeys>(keys, 0);
  const std::uint64_t b = k_major_descriptor<Config::kQueries>(queries, 0);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    wgmma_ss<typename Config::Element, Config::kQueries, Major::K, Major::K>(
        acc, move_descriptor(a, k_major_bytes<Config::kKeys>(step)),
        move_descriptor(b, k_major_bytes<Config::kQueries>(step)), step > 0);
  }
  wgmma_commit();
}

/// acc += A B: 64 keys by the columns of a tile of queries, contracting queries.
template <class Config, int kCount>
__device__ void add_queries(float (&acc)[kCount], const std::uint32_t (&a)[Config::kQuerySteps][4],
                            const char* queries) {
  const std::uint64_t b = mn_major_descriptor<Config::kQueries>(queries, 0);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < Config::kQuerySteps; ++step) {
    wgmma_rs<typename Config::Element, 2 * kCount, Major::MN>(
        acc, a[step], move_descriptor(b, mn_major_bytes(step)), true);
  }
  wgmma_commit();
}

/// The same with A transposed in shared memory, a panel.
template <class Config, int kCount>
__device__ void add_queries_of_shared(float (&acc)[kCount], const char* a, const char* queries) {
  const std::uint64_t of_a = mn_major_descriptor<Config::kQueries>(a, 0);
  const std::uint64_t b = mn_major_descriptor<Config::kQueries>(queries, 0);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < Config::kQuerySteps; ++step) {
    wgmma_ss<typename Config::Element, 2 * kCount, Major::MN, Major::MN>(
        acc, move_descriptor(of_a, mn_major_bytes(step)), move_descriptor(b, mn_major_bytes(step)),
        true);
  }
  wgmma_commit();
}

/// acc = dS K: this warpgroup's share of dq of a tile, contracting all keys of the block.
template <class Config>
__device__ void multiply_scores(float (&acc)[Config::kSums], const char* d_scores,
                                const char* keys, int warpgroup) {
  constexpr int kRows = Config::kQueries;
  const int column = Config::kSplitQueries ? 0 : warpgroup * Config::kSumColumns;
  const std::uint64_t a = k_major_descriptor<kRows>(
      d_scores + (Config::kSplitQueries ? warpgroup * panel_bytes(64) : 0), 0);
  const std::uint64_t b = mn_major_descriptor<Config::kKeys>(
      keys + column / kPanelColumns * panel_bytes(Config::kKeys) + column % kPanelColumns * 2, 0);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < Config::kKeys / 16; ++step) {
    wgmma_ss<typename Config::Element, Config::kSumColumns, Major::K, Major::MN>(
        acc, move_descriptor(a, k_major_bytes<kRows>(step)),
        move_descriptor(b, mn_major_bytes(step)), step > 0);
  }
  wgmma_commit();
}

}  // namespace tandem::cuda::attention
