// The rotation of heads by their rows' positions, for kernels.
#pragma once

#include <cstdint>

#include "core/strided_tensor.h"
#include "tandem/tensor.h"

namespace tandem {

/// The tables and which row of them each row takes: `row_positions`; else its place in its sequence
/// of `cu_seqlens`, or in those of `length` rows, or the row itself. Without a table nothing
/// rotates. Positions that memory holds are clamped into the tables.
struct Rope {
  DType dtype = DType::kFloat32;  // of the tables
  MatrixTensor cos, sin;          // [positions,width/2], or null
  std::int64_t positions = 0;
  int width = 0;             // columns of a head that are rotated, its first; even
  bool interleaved = false;  // pairs are neighbours, else half a width apart
  const std::int32_t* row_positions = nullptr;  // [M] or null
  const std::int32_t* cu_seqlens = nullptr;     // [N+1] or null
  std::int64_t N = 0;
  std::int64_t length = 0;  // rows of a sequence, or 0
};

}  // namespace tandem
