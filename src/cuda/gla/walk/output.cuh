// The state role's way out: o of one chunk from registers to device memory.
#pragma once

#include "cuda/gla/walk/shared.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda::gla {

/// Multiplies Ot by the factors from the state before the chunk to its tokens.
template <int kChunk>
__device__ void scale_by_token(float (&o)[kChunk / 2], const float (&from_state)[kChunk]) {
#pragma unroll
  for (int block = 0; block < kChunk / 8; ++block) {
    const float2 factor = *reinterpret_cast<const float2*>(&from_state[fragment_column(block)]);
#pragma unroll
    for (int i = 0; i < 4; ++i) o[4 * block + i] *= i % 2 ? factor.y : factor.x;
  }
}

/// Stores rows [0, rows) of an o panel by ordinary stores: for a partial tile, or a tensor that TMA
/// cannot write. `aligned`: bases and strides are multiples of 16 bytes.
template <class Element>
__device__ void store_panel_rows(const char* panel, const StridedTensor& o, const Item& item,
                                 int head, int time, int rows, int first_column, int columns,
                                 bool aligned) {
  constexpr int kPieces = kPanelColumns / 8;
  int i = threadIdx.x % 128;
  asm volatile("" : "+r"(i));  // why: nothing of this rare path is worth a register of the walk
  for (; i < rows * kPieces; i += 128) {
    const int row = i / kPieces;
    const int column = i % kPieces * 8;
    Element* to = token_row<Element>(o, item.batch, time + row, head) + first_column + column;
    const char* from = panel + panel_offset(row, i % kPieces);
    if (aligned && column + 8 <= columns) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      continue;
    }
    for (int k = 0; k < min(8, columns - column); ++k) {
      to[k] = reinterpret_cast<const Element*>(from)[k];
    }
  }
}

/// Notes where an element of Ot of one chunk is not finite, where that is asked for.
template <class Config>
__device__ void note_finiteness(const WalkParams& params, const Item& item, int chunk,
                                const float (&o)[32]) {
  if (params.guard.non_finite == nullptr) return;
  const int valid = item.valid_tokens<Config>(chunk);
  float sum = 0.0f;  // of products with 0: NaN where one is not finite
#pragma unroll
  for (int i = 0; i < Config::kChunk / 2; ++i) {
    if (fragment_column(i / 4) + i % 2 < valid) sum = fmaf(o[i], 0.0f, sum);
  }
  if (!(sum == 0.0f)) *params.guard.non_finite = 1;
}

/// Calls put(place in wide_output, element) for this thread's elements of Ot of one chunk that
/// exist.
template <class Config, class Put>
__device__ void put_wide(const WalkParams& params, const Item& item, int chunk, int warpgroup,
                         const float (&o)[32], Put put) {
  const GlaForwardProblem& problem = params.problem;
  const int valid = item.valid_tokens<Config>(chunk);
  const int column = item.first_column + 64 * warpgroup + fragment_row();
  const std::int64_t time = std::int64_t{item.batch} * problem.T + item.chunk_begin<Config>(chunk);
  float* const first = params.wide_output + (time * problem.H + item.head) * problem.V + column;
  const std::int64_t row = std::int64_t{problem.H} * problem.V;
  int token = fragment_column(0);
#pragma unroll
  for (int i = 0; i < Config::kChunk / 2; i += 4, token += 8) {
    asm volatile("" : "+r"(token));  // why: see StateTile::for_each
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool inside = token + k % 2 < valid && column + k / 2 * 8 < problem.V;
      if (inside) put(&first[(token + k % 2) * row + k / 2 * 8], o[i + k]);
    }
  }
}

/// Stores Ot of one chunk in fp32, or adds it to what an earlier walk left there.
template <class Config>
__device__ void store_wide(const WalkParams& params, const Item& item, int chunk, int warpgroup,
                           const float (&o)[32]) {
  if (!params.adds) {
    return put_wide<Config>(params, item, chunk, warpgroup, o,
                            [](float* to, float value) { *to = value; });
  }
  // why atomic, where nobody else writes: the memory adds, so that no warp waits for a load.
  put_wide<Config>(params, item, chunk, warpgroup, o,
                   [](float* to, float value) { atomicAdd(to, value); });
}

/// Where an output goes.
struct OutputTensor {
  const StridedTensor& tensor;
  const CUtensorMap& map;  // where TMA is used
  int columns;             // of the tensor
  int head;
  int first_column;  // of 64
  bool exists;       // else nothing is stored
};

/// Stores Ot of one chunk to 64 columns, through one of the warpgroup's panels in turn.
template <class Config>
__device__ void store_output(const WalkParams& params, const OutputTensor& to, const Item& item,
                             int chunk, int barrier, const float (&o)[32], char* panel) {
  using Element = typename Config::Element;
  if constexpr (Config::kOutputPanels == 1) {
    if (threadIdx.x % 128 == 0) wait_stores_read();
    sync_warpgroup(barrier);
  }
#pragma unroll
  for (int step = 0; step < Config::kChunk / 16; ++step) {
    std::uint32_t packed[4];
    accumulator_to_operand<Element>(o, step, packed);
    store_columns(panel, step, packed);
  }
  const int time = item.chunk_begin<Config>(chunk);
  const int valid = to.exists ? item.valid_tokens<Config>(chunk) : 0;
  fence_shared_for_async_proxy();
  // why before the barrier: behind it the other panel, which the previous store reads, is free.
  if (threadIdx.x % 128 == 0) wait_stores_read();
  sync_warpgroup(barrier);
  if (params.tma && (params.problem.cu_seqlens == nullptr || valid == Config::kChunk)) {
    if (threadIdx.x % 128 == 0 && to.exists) {
      store_panel(to.map, panel, {to.first_column, to.head, time, item.batch});
    }
  } else {
    store_panel_rows<Element>(panel, to.tensor, item, to.head, time, valid, to.first_column,
                              to.columns - to.first_column, params.tma);
  }
}

/// Stores the walk's own output: o, or fp32 per head where heads or walks are to be summed.
template <class Config>
__device__ void store_output(const WalkParams& params, const Item& item, int chunk, int warpgroup,
                             const float (&o)[32], char* panel) {
  note_finiteness<Config>(params, item, chunk, o);
  if constexpr (Config::kRowSums) {
    if (params.problem.o.data == nullptr) {
      if (params.wide_output != nullptr) store_wide<Config>(params, item, chunk, warpgroup, o);
      return;
    }
  }
  store_output<Config>(
      params,
      {params.problem.o, params.o_map, params.problem.V, item.head_of<Config>(warpgroup),
       item.column_of<Config>(warpgroup), item.has_head<Config>(warpgroup)},
      item, chunk, 2 + warpgroup, o, panel);
}

}  // namespace tandem::cuda::gla
