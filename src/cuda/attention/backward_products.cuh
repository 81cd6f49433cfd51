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

/// Where a column of a tile of kRows rows begins.
template <int kRows>
__device__ inline const char* at_column(const char* tile, int column) {
  return tile + column / kPanelColumns * panel_bytes(kRows) + column % kPanelColumns * 2;
}

/// A thread's fp32 of 64 rows by a share of the columns.
template <class Share>
struct Accumulator {
  float main[std::max(Share::kMain / 2, 1)];
  float rest[std::max(Share::kRest / 2, 1)];

  /// Calls with each part and its first column.
  template <class Call>
  __device__ void for_parts(int warpgroup, const Call& call) {
    call(main, Share::main_column(warpgroup));
    if constexpr (Share::kRest > 0) call(rest, Share::rest_column(warpgroup));
  }
  /// Calls with the index of each four values, and these.
  template <class Call>
  __device__ void for_fours(const Call& call) {
#pragma unroll
    for (int i = 0; i < Share::kOwn / 8; ++i) {
      call(i, 4 * i < Share::kMain / 2 ? &main[4 * i] : &rest[4 * i - Share::kMain / 2]);
    }
  }
  __device__ void fence() {
    fence_registers(main);
    if constexpr (Share::kRest > 0) fence_registers(rest);
  }
};

/// Zeroes what lies outside of the columns [low, high] of this thread's two rows of a fragment,
/// counted from its own first column.
template <int kCount>
__device__ void keep_columns(float (&values)[kCount], const int (&low)[2], const int (&high)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = i / 4 * 8 + i % 2, half = i / 2 % 2;
    if (column < low[half] || column > high[half]) values[i] = 0.0f;
  }
}

/// acc = A Bt: 64 keys by queries, contracting kSteps * 16 columns.
template <class Config, int kSteps>
__device__ void multiply_keys(float (&acc)[Config::kScores], const char* keys,
                              const char* queries) {
  const std::uint64_t a = k_major_descriptor<Config::kKeys>(keys, 0);
  const std::uint64_t b = k_major_descriptor<Config::kQueries>(queries, 0);
  wgmma_begin();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    wgmma_ss<typename Config::Element, Config::kScoreQueries, Major::K, Major::K>(
        acc, move_descriptor(a, k_major_bytes<Config::kKeys>(step)),
        move_descriptor(b, k_major_bytes<Config::kQueries>(step)), step > 0);
  }
  wgmma_commit();
}

/// acc += A B: 64 keys by this warpgroup's columns of a tile of queries, contracting queries.
template <class Config, class Share>
__device__ void add_queries(Accumulator<Share>& acc,
                            const std::uint32_t (&a)[Config::kQuerySteps][4], const char* queries,
                            int warpgroup) {
  wgmma_begin();
  acc.for_parts(warpgroup, [&]<int kCount>(float(&part)[kCount], int column) {
    const std::uint64_t b =
        mn_major_descriptor<Config::kQueries>(at_column<Config::kQueries>(queries, column), 0);
#pragma unroll
    for (int step = 0; step < Config::kQuerySteps; ++step) {
      wgmma_rs<typename Config::Element, 2 * kCount, Major::MN>(
          part, a[step], move_descriptor(b, mn_major_bytes(step)), true);
    }
  });
  wgmma_commit();
}

/// The same with A transposed in shared memory, a panel.
template <class Config, class Share>
__device__ void add_queries_of_shared(Accumulator<Share>& acc, const char* a, const char* queries,
                                      int warpgroup) {
  const std::uint64_t of_a = mn_major_descriptor<Config::kQueries>(a, 0);
  wgmma_begin();
  acc.for_parts(warpgroup, [&]<int kCount>(float(&part)[kCount], int column) {
    const std::uint64_t b =
        mn_major_descriptor<Config::kQueries>(at_column<Config::kQueries>(queries, column), 0);
#pragma unroll
    for (int step = 0; step < Config::kQuerySteps; ++step) {
      wgmma_ss<typename Config::Element, 2 * kCount, Major::MN, Major::MN>(
          part, move_descriptor(of_a, mn_major_bytes(step)),
          move_descriptor(b, mn_major_bytes(step)), true);
    }
  });
  wgmma_commit();
}

/// acc = dS K: a half of dq, contracting all keys of the block.
template <class Config>
__device__ void multiply_scores(Accumulator<typename Config::SumShare>& acc, const char* d_scores,
                                const char* keys, int half) {
  constexpr int kRows = Config::kQueries;
  d_scores += Config::kSplitQueries ? half * panel_bytes(64) : 0;
  const std::uint64_t a = k_major_descriptor<kRows>(d_scores, 0);
  wgmma_begin();
  acc.for_parts(half, [&]<int kCount>(float(&part)[kCount], int column) {
    const std::uint64_t b =
        mn_major_descriptor<Config::kKeys>(at_column<Config::kKeys>(keys, column), 0);
#pragma unroll
    for (int step = 0; step < Config::kKeys / 16; ++step) {
      wgmma_ss<typename Config::Element, 2 * kCount, Major::K, Major::MN>(
          part, move_descriptor(a, k_major_bytes<kRows>(step)),
          move_descriptor(b, mn_major_bytes(step)), step > 0);
    }
  });
  wgmma_commit();
}

}  // namespace tandem::cuda::attention
