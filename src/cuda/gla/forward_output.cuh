// The state role's way out: o from its two accumulators to device memory.
#pragma once

#include "cuda/gla/forward_shared.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda {

/// Rows [0, rows) of an o panel by ordinary stores: a partial tile, or a tensor that TMA cannot
/// write.
template <class Element>
__device__ void store_panel_rows(const char* panel, const StridedTensor& o, const Span& span,
                                 std::int64_t time, int rows, int first_column, int columns) {
  for (int element = threadIdx.x % 128; element < rows * kPanelColumns; element += 128) {
    const int row = element / kPanelColumns;
    const int column = element % kPanelColumns;
    if (column >= columns) continue;
    const char* at = panel + panel_offset(row, column / 8) + column % 8 * 2;
    token_row<Element>(o, span.batch, time + row, span.head)[first_column + column] =
        *reinterpret_cast<const Element*>(at);
  }
}

/// Tokens outside every sequence: before the first (written by its CTA) and behind the last.
template <class Element>
__device__ void clear_uncovered(const GlaForwardProblem& problem, const Span& span, int group) {
  const std::int64_t n = span.sequence_head / problem.H;
  const auto clear = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t time = begin; time < end; ++time) {
      Element* row = token_row<Element>(problem.o, 0, time, span.head);
      const int column = 64 * group + threadIdx.x % 128;
      if (threadIdx.x % 128 < 64 && column < problem.V) row[column] = Element(0.0f);
    }
  };
  const std::int64_t first = problem.N > 0 ? clamped_boundary(problem, 0) : problem.T;
  const std::int64_t last = problem.N > 0 ? clamped_boundary(problem, problem.N) : problem.T;
  if (n == 0) clear(0, first);
  if (n == problem.N - 1) clear(last, problem.T);
}

/// Ot of one chunk from its two parts -> o in device memory.
template <class Config>
__device__ void store_output(const GlaForwardParams& params, const Span& span, int chunk, int group,
                             float (&inter)[32], const float (&intra)[32],
                             const ChunkDecay<Config::kChunk>& decay, char* panel) {
  using Element = typename Config::Element;
#pragma unroll
  for (int block = 0; block < Config::kChunk / 8; ++block) {
    const float2 factor =
        *reinterpret_cast<const float2*>(&decay.from_state[fragment_column(block)]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& value = inter[4 * block + i];
      value = value * (i % 2 ? factor.y : factor.x) + intra[4 * block + i];
    }
  }
#pragma unroll
  for (int step = 0; step < Config::kChunk / 16; ++step) {
    std::uint32_t packed[4];
    accumulator_to_operand<Element>(inter, step, packed);
    store_columns(panel, step, packed);
  }
  const std::int64_t time = span.begin + std::int64_t{chunk} * Config::kChunk;
  const int valid = span.valid_tokens(chunk, Config::kChunk);
  const int first_column = 64 * group;
  fence_shared_for_async_proxy();
  sync_warpgroup(2 + group);
  if (params.tma && (params.problem.cu_seqlens == nullptr || valid == Config::kChunk)) {
    if (threadIdx.x % 128 == 0) {
      store_panel(params.o_map, panel,
                  {first_column, span.head, static_cast<int>(time), span.batch});
    }
  } else {
    store_panel_rows<Element>(panel, params.problem.o, span, time, valid, first_column,
                              params.problem.V - first_column);
  }
}

}  // namespace tandem::cuda
