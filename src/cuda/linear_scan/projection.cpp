#include "cuda/linear_scan/projection.h"

#include <algorithm>

#include "cuda/gemm/config.h"
#include "cuda/runtime/copy.h"
#include "cuda/runtime/plan.h"

namespace tandem::cuda::linear_scan {

using gemm::as_tokens, gemm::padded, gemm::plan_operand;

TileExtents u_extents(const LinearScanForwardProblem& problem) {
  return {problem.B, problem.T, 1, problem.d};
}
TileExtents weight_extents(const LinearScanForwardProblem& problem) {
  return {1, problem.D, 1, problem.d};
}

bool tma_reads_u(const LinearScanForwardProblem& problem) {
  return gemm::tma_reads(problem.u, problem.dtype, u_extents(problem));
}
bool tma_reads_weight(const LinearScanForwardProblem& problem) {
  return gemm::tma_reads(as_tokens(problem.weight), problem.dtype, weight_extents(problem));
}

void set_result(ProductParams& params, const TokenTensor& result, DType dtype,
                const TileExtents& extents) {
  params.narrow = result;
  const TensorMapPlan map = gemm::plan_result(result, dtype, extents);
  params.stores_by_tma = map.problem.empty();
  if (params.stores_by_tma) params.narrow_map = encode(map);
}

TokenTensor tokens_at(char* base, std::size_t offset, std::int64_t T, std::int64_t columns) {
  return {base + offset, T * columns, columns};
}

std::string reason_against_products(DType dtype, const LinearScanForwardProblem& problem) {
  if (problem.dtype != dtype) {
    return "takes " + to_string(dtype) + ", got " + to_string(problem.dtype);
  }
  if (problem.T > kMaxIndex - 256) {
    return "takes T < 2^31 - 256, got " + std::to_string(problem.T);
  }
  const std::int64_t tiles = problem.B * ceil_div(problem.T, gemm::kTileDepth);
  if (tiles > kMaxIndex) {
    return "takes at most 2^31 - 1 batches times steps of 64 tokens, got " + std::to_string(tiles);
  }
  const std::int64_t column_tiles = ceil_div(std::max({problem.D, problem.d, 1}), kProductColumns);
  if (problem.B * ceil_div(problem.T, gemm::kTileRows) > kMaxIndex / column_tiles) {
    return "takes products of at most 2^31 - 1 tiles, got B " + std::to_string(problem.B) + ", T " +
           std::to_string(problem.T) + ", d " + std::to_string(problem.d) + ", D " +
           std::to_string(problem.D);
  }
  return "";
}

TokenTensor Projection::u() const {
  if (u_copy == nullptr) return problem.u;
  return tokens_at(u_copy, 0, problem.T, padded(problem.d));
}

TokenTensor Projection::weight() const {
  if (weight_copy == nullptr) return as_tokens(problem.weight);
  return tokens_at(weight_copy, 0, problem.D, padded(problem.d));
}

void Projection::copy_operands() const {
  const LinearScanForwardProblem& f = problem;
  if (u_copy != nullptr) launch_copy(op, f.u, u(), f.B, f.T, f.d, stream);
  if (weight_copy != nullptr) {
    launch_copy(op, as_tokens(f.weight), weight(), 1, f.D, f.d, stream);
  }
}

void Projection::write(float* x) const {
  ProductParams params{};
  params.wide = x;
  run(params);
}

void Projection::write(const TokenTensor& x) const {
  ProductParams params{};
  set_result(params, x, problem.dtype, {problem.B, problem.T, 1, problem.D});
  run(params);
}

void Projection::run(ProductParams params) const {
  const LinearScanForwardProblem& f = problem;
  constexpr gemm::Layout kLayout = layout_of(Product::kProject);
  params.B = f.B;
  params.T = f.T;
  params.rows = static_cast<int>(f.T);
  params.set_columns(0, f.D, kProductColumns);
  params.depth[0] = f.d;
  params.a[0] = encode(plan_operand(u(), f.dtype, u_extents(f), gemm::box_rows_a(kLayout, f.T)));
  params.b[0] = encode(plan_operand(weight(), f.dtype, weight_extents(f), gemm::kBoxRows));
  kernels.project(op, params, device_properties(f.device).multiprocessors, stream);
}

}  // namespace tandem::cuda::linear_scan
