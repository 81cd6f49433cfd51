// What gated_output's products receive.
#pragma once

#include <vector_types.h>

#include "core/strided_tensor.h"
#include "cuda/gemm/operands.h"
#include "cuda/gemm/target.h"
#include "ops/gated_output_problem.h"

namespace tandem::cuda::gated_output {

/// sum = residual + a W^T + bias. The residual is the addend, of few rows a matrix.
struct ForwardParams : gemm::Operands<> {
  gemm::Addend addend{};
  MatrixTensor residual;
  WeightVector bias;
  gemm::Target sum;
};

/// Columns of the tiles of whole rows, and how many of a row may be merged.
constexpr int kWholeRowsColumns = 256;
constexpr int kMostTilesOfRow = 16;

/// The same and the norm of its rows, by tiles that exchange what they know of a row.
struct WholeRowsParams : ForwardParams {
  static constexpr bool kWholeRows = true;

  CUtensorMap gate;      // multiplies a where the kernel gates
  bool centers = false;  // layer norm
  WeightVector norm_weight;
  WeightVector norm_bias;
  float eps = 0;
  gemm::Target out;
  float* mean = nullptr;  // [rows] or null, as rstd
  float* rstd = nullptr;
  // Exchanged: [rows,tiles of a row] mean and squared deviations of a tile's columns, and of each
  // 64 rows how many tiles have published theirs, cleared before.
  float2* parts = nullptr;
  std::uint32_t* arrived = nullptr;
};

/// Launch gated_output_forward_kernel with tiles of kColumns, gated_output_few_rows_kernel with
/// tiles of up to kRows rows, and gated_output_whole_rows_kernel. Instantiated in
/// forward_instances.cuh.
template <class Element, int kColumns, int kParts>
void launch_forward(const ForwardParams& params, int multiprocessors, void* stream);
template <class Element, int kRows>
void launch_few_rows(const ForwardParams& params, int multiprocessors, void* stream);
template <class Element, bool kGated>
void launch_whole_rows(const WholeRowsParams& params, int multiprocessors, void* stream);

}  // namespace tandem::cuda::gated_output
