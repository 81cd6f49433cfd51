// What gated_output's products receive.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "cuda/gated_output/gate_rows.h"
#include "cuda/gemm/operands.h"
#include "cuda/gemm/target.h"
#include "cuda/row_norm/row_norm.h"
#include "ops/gated_output_problem.h"

namespace tandem::cuda::gated_output {

/// sum = residual + a W^T + bias. The residual is the addend, of few rows a matrix.
struct ForwardParams : gemm::Operands<> {
  gemm::Addend addend{};
  MatrixTensor residual;
  WeightVector bias;
  gemm::Target sum;
};

constexpr int kChunkRows = 8;  // that a warp of gated_output_rows_kernel claims

/// Counters in device memory, 0 at first.
struct RowCounters {
  std::uint32_t* next_to_gate = nullptr;  // chunk of rows
  // Of each tile of rows, one behind the other:
  std::uint32_t* gated = nullptr;       // chunks that are gated
  std::uint32_t* summed = nullptr;      // warpgroups that have written their sums
  std::uint32_t* normalized = nullptr;  // chunks that are claimed
  int tiles = 0;

  RowCounters() = default;
  RowCounters(std::uint32_t* data, int tiles)
      : next_to_gate(data),
        gated(data + 1),
        summed(gated + tiles),
        normalized(summed + tiles),
        tiles(tiles) {}
  static constexpr int count(int tiles) { return 1 + 3 * tiles; }
  __host__ __device__ int count() const { return count(tiles); }
};

/// The product with the passes over its rows beside it: the rows [gate.first,gate.end) are still to
/// be gated. There is no group norm.
struct RowsParams : ForwardParams {
  GateParams gate;
  bool normalizes = false;
  row_norm::NormalizeParams norm;
  RowCounters counters;

  __device__ void wait_for_rows(int row) const;
};

/// Launch gated_output_forward_kernel with tiles of kColumns, and gated_output_few_rows_kernel for
/// up to kRows rows. Instantiated in forward_instances.cuh.
template <class Element, int kColumns>
void launch_forward(const ForwardParams& params, int multiprocessors, void* stream);
template <class Element, int kColumns>
void launch_rows(const RowsParams& params, int multiprocessors, void* stream);
template <class Element, int kRows>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream);

}  // namespace tandem::cuda::gated_output
