// The states that a forward saves for its backward, from the registers in which they are operands.
#pragma once

#include "cuda/gla/walk/products.cuh"

namespace tandem::cuda::gla {

/// Whether the state before a chunk is saved. Of dense batches, whose items begin at whole chunks.
template <class Config>
__device__ bool saves_state(const WalkParams& params, const Item& item, int chunk) {
  if constexpr (Config::kReverse || Config::kRowSums) return false;
  const int time = item.before + item.template chunk_offset<Config>(chunk);
  return params.problem.saved_states != nullptr &&
         static_cast<unsigned>(time) % kSavedStateTokens == 0;
}

/// Saves steps of it from step `first` on, a row of St being one of [V,K].
/// why where is found again at each call: a pointer is two registers that the products lack.
template <class Config, int kSteps>
__device__ void save_state(const WalkParams& params, const Item& item, int chunk, int warpgroup,
                           const StateOperand<kSteps>& operand, int first) {
  const GlaForwardProblem& problem = params.problem;
  const int time = item.before + item.template chunk_offset<Config>(chunk);
  const std::int64_t times = (problem.T + kSavedStateTokens - 1) / kSavedStateTokens;
  const std::int64_t state = (item.batch * times + time / kSavedStateTokens) * problem.H +
                             item.template head_of<Config>(warpgroup);
  const int value = item.template column_of<Config>(warpgroup) + fragment_row();
  // A lane has two neighbours of K in each half of a step's 16. Two lanes exchange, so that each
  // has four of one half: a quad then stores 32 bytes at a time.
  // why not threadIdx.x: ptxas (13.0) then keeps it from the kernel's begin on, in all roles.
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  const bool upper = lane % 2 != 0;
  int key = 16 * first + 8 * upper + lane % 4 / 2 * 4;
  using Element = typename Config::Element;
  Element* const to =
      static_cast<Element*>(problem.saved_states) + (state * problem.V + value) * problem.K + key;
  const bool aligned = problem.K % 4 == 0 &&
                       reinterpret_cast<std::uintptr_t>(problem.saved_states) % sizeof(uint2) == 0;
  const bool exists = item.template has_head<Config>(warpgroup);
#pragma unroll
  for (int step = 0; step < kSteps; ++step, key += 16) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // of rows, 8 apart
      const std::uint32_t low = operand[step][half], high = operand[step][half + 2];
      const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, upper ? low : high, 1);
      const uint2 four = upper ? uint2{other, high} : uint2{low, other};
      const bool inside = exists && value + 8 * half < problem.V;
      Element* const row = to + 16 * step + half * 8 * problem.K;
      if (aligned) {
        if (inside && key < problem.K) *reinterpret_cast<uint2*>(row) = four;
      } else {
        Element elements[4];
        memcpy(elements, &four, sizeof(four));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (inside && key + i < problem.K) row[i] = elements[i];
        }
      }
    }
  }
}

}  // namespace tandem::cuda::gla
