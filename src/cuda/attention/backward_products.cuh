// Products of attention_backward_kernel, of 64 rows of a warpgroup. Each issues and commits. why
// they move their first descriptors: one computed anew takes ten instructions.
#pragma once

#include "cuda/attention/backward_shared.cuh"
#include "cuda/attention/product_sizes.cuh"
#include "cuda/parts/fragment.cuh"

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

/// acc = dS K: `columns` of dq for 64 queries, contracting all keys of the block. Does not commit.
template <class Config, int kCount>
__device__ void multiply_scores(float (&acc)[kCount], const char* d_scores, const char* keys,
                                int column) {
  constexpr int kRows = Config::kQueries;
  const std::uint64_t a = k_major_descriptor<kRows>(d_scores, 0);
  const std::uint64_t b = mn_major_descriptor<Config::kKeys>(
      keys + column / kPanelColumns * panel_bytes(Config::kKeys) + column % kPanelColumns * 2, 0);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < Config::kKeys / 16; ++step) {
    wgmma_ss<typename Config::Element, 2 * kCount, Major::K, Major::MN>(
        acc, move_descriptor(a, k_major_bytes<kRows>(step)),
        move_descriptor(b, mn_major_bytes(step)), step > 0);
  }
}

/// A thread's share of dq of a tile.
template <class Config>
struct BackwardSums {
  float main[Config::kSumMain / 2];
  float rest[std::max(Config::kSumRest / 2, 1)];

  /// Issues dS K, this warpgroup's share.
  __device__ void multiply(const char* d_scores, const char* keys, int warpgroup) {
    d_scores += Config::kSplitQueries ? warpgroup * panel_bytes(64) : 0;
    multiply_scores<Config>(main, d_scores, keys, Config::main_column(warpgroup));
    if constexpr (Config::kSumRest > 0) {
      multiply_scores<Config>(rest, d_scores, keys, Config::rest_column(warpgroup));
    }
    wgmma_commit();
  }
  __device__ void fence() {
    fence_registers(main);
    if constexpr (Config::kSumRest > 0) fence_registers(rest);
  }
  /// Calls with the index of each four values, and these.
  template <class Call>
  __device__ void for_fours(const Call& call) {
#pragma unroll
    for (int i = 0; i < Config::kSums / 4; ++i) {
      call(i, 4 * i < Config::kSumMain / 2 ? &main[4 * i] : &rest[4 * i - Config::kSumMain / 2]);
    }
  }
};

}  // namespace tandem::cuda::attention
