// The operands of linear_scan's matrix products, and x = u W^T as a product of its own: of the
// backward, and of the composed forward. Host only.
#pragma once

#include "cuda/gemm/matrix.h"
#include "cuda/linear_scan/backward_variants.h"
#include "ops/linear_scan_problem.h"

namespace tandem::cuda::linear_scan {

TileExtents u_extents(const LinearScanForwardProblem& problem);
TileExtents weight_extents(const LinearScanForwardProblem& problem);

/// Whether TMA can read u, and the weight; copies with padded rows are made where it cannot.
bool tma_reads_u(const LinearScanForwardProblem& problem);
bool tma_reads_weight(const LinearScanForwardProblem& problem);

/// Makes a product write its result [extents] rounded to 16 bits.
void set_result(ProductParams& params, const TokenTensor& result, DType dtype,
                const TileExtents& extents);

/// A tensor of the workspace, rows `columns` long.
TokenTensor tokens_at(char* base, std::size_t offset, std::int64_t T, std::int64_t columns);

/// Says why no product can be made of a problem's tokens, whatever they are multiplied by; "" when
/// it can.
std::string reason_against_products(DType dtype, const LinearScanForwardProblem& problem);

/// The products' operands, by pointers into the workspace; null: no copy.
struct Projection {
  const char* op;
  const BackwardVariant& kernels;
  const LinearScanForwardProblem& problem;
  char* u_copy;
  char* weight_copy;
  void* stream;

  TokenTensor u() const;
  TokenTensor weight() const;
  void copy_operands() const;
  /// Writes x [B,T,D], contiguous in fp32 or rounded.
  void write(float* x) const;
  void write(const TokenTensor& x) const;

 private:
  void run(ProductParams params) const;
};

}  // namespace tandem::cuda::linear_scan
