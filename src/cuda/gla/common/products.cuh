// Products of the roles of gla_reverse_kernel and gla_group_gradients_kernel, and what they do to
// accumulators.
#pragma once

#include "cuda/parts/fragment.cuh"
#include "cuda/parts/wgmma.cuh"

namespace tandem::cuda::gla {

// Operands: tiles [64, dim] are panels of 64 rows, states St [V,K] panels of V rows. why each
// product moves its first descriptor: one computed anew takes ten instructions.

/// Bytes from a K-major operand's contraction step to the next ones'.
template <int kPanelRows>
constexpr int k_major_bytes(int step) {
  return step / 4 * panel_bytes(kPanelRows) + step % 4 * 32;
}
/// The same of an MN-major operand.
constexpr int mn_major_bytes(int step) { return step * panel_bytes(16); }

/// Issues acc = A Bt of 64 rows of tiles, contracting their columns.
template <class Element, int kSteps>
__device__ void multiply_rows(float (&acc)[32], const char* a, const char* b) {
  const std::uint64_t of_a = k_major_descriptor(a, 0), of_b = k_major_descriptor(b, 0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int bytes = k_major_bytes<64>(step);
    wgmma_ss<Element, 64, Major::K, Major::K>(acc, move_descriptor(of_a, bytes),
                                              move_descriptor(of_b, bytes), step > 0);
  }
  wgmma_commit();
}

/// Issues acc = A St: [64,V] by [V,K].
template <class Config, int kCount>
__device__ void multiply_by_state(float (&acc)[kCount], const char* a, const char* state) {
  const std::uint64_t of_a = k_major_descriptor(a, 0);
  const std::uint64_t of_state = mn_major_descriptor<Config::kValueDim>(state, 0);
#pragma unroll
  for (int step = 0; step < Config::kValueSteps; ++step) {
    wgmma_ss<typename Config::Element, 2 * kCount, Major::K, Major::MN>(
        acc, move_descriptor(of_a, k_major_bytes<64>(step)),
        move_descriptor(of_state, mn_major_bytes(step)), step > 0);
  }
  wgmma_commit();
}

/// Issues acc = A S: [64,K] by 64 columns of V of [K,V], which begin at the row `rows` of St.
template <class Config>
__device__ void multiply_by_turned_state(float (&acc)[32], const char* a, const char* rows) {
  const std::uint64_t of_a = k_major_descriptor(a, 0), of_rows = k_major_descriptor(rows, 0);
#pragma unroll
  for (int step = 0; step < Config::kKeySteps; ++step) {
    wgmma_ss<typename Config::Element, 64, Major::K, Major::K>(
        acc, move_descriptor(of_a, k_major_bytes<64>(step)),
        move_descriptor(of_rows, k_major_bytes<Config::kValueDim>(step)), step > 0);
  }
  wgmma_commit();
}

/// Issues acc += A X, contracting tokens: A a panel [64,64], as it is or turned round.
template <class Element, Major kA, int kCount>
__device__ void add_tokens(float (&acc)[kCount], const char* a, const char* x) {
  const std::uint64_t of_a = kA == Major::K ? k_major_descriptor(a, 0) : mn_major_descriptor(a, 0);
  const std::uint64_t of_x = mn_major_descriptor(x, 0);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int bytes = kA == Major::K ? k_major_bytes<64>(step) : mn_major_bytes(step);
    wgmma_ss<Element, 2 * kCount, kA, Major::MN>(acc, move_descriptor(of_a, bytes),
                                                 move_descriptor(of_x, mn_major_bytes(step)), true);
  }
  wgmma_commit();
}

/// Issues acc (+)= A X, A in registers.
template <class Element, bool kAdds = true, int kCount>
__device__ void add_tokens(float (&acc)[kCount], const std::uint32_t (&a)[4][4], const char* x) {
  const std::uint64_t of_x = mn_major_descriptor(x, 0);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    wgmma_rs<Element, 2 * kCount, Major::MN>(
        acc, a[step], move_descriptor(of_x, mn_major_bytes(step)), kAdds || step > 0);
  }
  wgmma_commit();
}

/// Multiplies rows of an accumulator by the factors of their tokens, and by one of all.
template <int kCount>
__device__ void scale_rows(float (&acc)[kCount], const float (&factors)[64], float all = 1.0f) {
  const float factor[2] = {all * factors[fragment_row()], all * factors[fragment_row() + 8]};
#pragma unroll
  for (int i = 0; i < kCount; ++i) acc[i] *= factor[i / 2 % 2];
}

/// Where this lane's piece of 16 columns lies in a tile of panels of `kRows` rows, but for the
/// panel. why hidden from the compiler: panels are then offsets that instructions hold, not a
/// register each.
__device__ inline std::uint32_t piece_offset(int step) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
  std::uint32_t offset = panel_offset(row, 2 * (step % 4) + lane / 16);
  asm("" : "+r"(offset));
  return offset;
}

/// Loads columns [16*step, 16*step+16) of a tile, `bytes` behind `panels`, as accumulators have
/// them.
template <int kRows>
__device__ void get_columns(const char* panels, int step, int bytes, std::uint32_t (&packed)[4]) {
  const char* const piece = panels + piece_offset(step) + (bytes + step / 4 * panel_bytes(kRows));
  cute::SM75_U32x4_LDSM_N::copy(*reinterpret_cast<const cute::uint128_t*>(piece), packed[0],
                                packed[1], packed[2], packed[3]);
}

/// Adds columns of a tile x, times an accumulator, to four sums for each of a lane's two rows. why
/// four: a chain of additions waits for each.
template <class Element, int kCount>
__device__ void add_columns(const char* x, const float (&acc)[kCount], float (&own)[2][4]) {
#pragma unroll
  for (int step = 0; step < kCount / 8; ++step) {
    std::uint32_t packed[4];
    get_columns<64>(x, step, 0, packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack_pair<Element>(packed[i]);
      float(&of_row)[4] = own[i % 2];
      of_row[i / 2] += pair.x * acc[8 * step + 2 * i];
      of_row[2 + i / 2] += pair.y * acc[8 * step + 2 * i + 1];
    }
  }
}

/// sums[token] = the token's row of what lanes have added up.
__device__ inline void put_row_sums(const float (&own)[2][4], float (&sums)[64]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = own[half][0] + own[half][1] + (own[half][2] + own[half][3]);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (threadIdx.x % 4 == 0) sums[fragment_row() + 8 * half] = sum;
  }
}

/// sums[token] = the sum over columns of a tile x, times an accumulator.
template <class Element, int kCount>
__device__ void sum_rows(const char* x, const float (&acc)[kCount], float (&sums)[64]) {
  float own[2][4] = {};
  add_columns<Element>(x, acc, own);
  put_row_sums(own, sums);
}

/// Columns of four that a lane adds to are summed over the eight lanes that have them; each lane
/// gets one column's sum, that of index 2 * (bit 4 of the lane) + bit 3.
__device__ inline float sum_columns(const float (&own)[4]) {
  const int lane = threadIdx.x % 32;
  const bool upper = lane & 16, right = lane & 8;
  const auto halve = [](bool keeps_second, float first, float second, int distance) {
    const float kept = keeps_second ? second : first;
    const float given = keeps_second ? first : second;
    return kept + __shfl_xor_sync(0xFFFFFFFFu, given, distance);
  };
  const float even = halve(upper, own[0], own[2], 16);
  const float odd = halve(upper, own[1], own[3], 16);
  const float sum = halve(right, even, odd, 8);
  return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 4);
}

/// sums[column] = what a warp's lanes have added up, four columns of each of two steps, from
/// `first` on. why two: the shuffles of one step wait for each other, not for the other step's.
__device__ inline void put_column_sums(const float (&own)[2][4], int first, float (&sums)[64]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const float sum = sum_columns(own[step]);
    const int column = fragment_column(2 * (first + step) + lane / 16) + lane / 8 % 2;
    if ((lane & 4) == 0) sums[column] = sum;
  }
}

/// Rounds an accumulator into panels of `kRows` rows, `kBytes` behind `panels`.
template <class Element, int kRows = 64, int kBytes = 0, int kCount>
__device__ void put_rows(const float (&acc)[kCount], char* panels) {
#pragma unroll
  for (int step = 0; step < kCount / 8; ++step) {
    std::uint32_t packed[4];
    accumulator_to_operand<Element>(acc, step, packed);
    char* const piece = panels + piece_offset(step) + (kBytes + step / 4 * panel_bytes(kRows));
    cute::SM90_U32x4_STSM_N::copy(packed[0], packed[1], packed[2], packed[3],
                                  *reinterpret_cast<cute::uint128_t*>(piece));
  }
}

/// Sets to 0 what of a fragment's 16 x 16 elements on the diagonal lies before it.
template <class... Elements>
__device__ inline void clear_before_diagonal(Elements (&... elements)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = 8 * (i / 4) + threadIdx.x % 4 * 2 + i % 2;
    const int row = threadIdx.x % 32 / 4 + 8 * (i / 2 % 2);
    ((elements[i] = column >= row ? elements[i] : 0.0f), ...);
  }
}

}  // namespace tandem::cuda::gla
