// gated_output on the CPU. Forward: a into a matrix of its own, tiles of rows by columns of the
// sum, then the norm of whole rows. A product's last rows are padded with zeros
// (matmul_rows): a row's bits do not depend on how many others there are.
//
// Backward: the norm's, then that of a projection, then that of the gate and the group norm.
#include "ops/gated_output.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/gated_rows.h"
#include "cpu/isa.h"
#include "cpu/matmul.h"
#include "cpu/output_norm.h"
#include "cpu/parallel.h"
#include "cpu/projection_tile.h"
#include "cpu/row_operands.h"
#include "ops/projection.h"

namespace tandem::cpu {
namespace {

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kColumns = 256;

/// A matrix for the length of a call, whose memory is not touched yet.
class Temporary {
 public:
  Temporary(DType dtype, std::int64_t rows, std::int64_t columns)
      : data_(std::make_unique_for_overwrite<std::byte[]>(rows * columns * size_of(dtype))),
        matrix_{data_.get(), columns} {}

  const MatrixTensor& matrix() const { return matrix_; }

 private:
  std::unique_ptr<std::byte[]> data_;
  MatrixTensor matrix_;
};

/// sum = residual + a W^T + bias.
template <typename Real>
class Sum {
 public:
  Sum(const GatedOutputForwardProblem& problem, const MatrixTensor& a, const MatrixTensor& sum,
      MatmulProvider provider)
      : p_(problem),
        a_(a),
        sum_(sum),
        provider_(provider),
        operands_(problem.dtype, problem.d_in, provider) {}

  void run() const {
    const std::int64_t blocks = (p_.d + kColumns - 1) / kColumns;
    const std::int64_t tiles = (p_.M + kRows - 1) / kRows;
    const int threads = parallel_threads();
    std::vector<Scratch> scratch(threads);
    // why the rows inside: a thread converts the weights of a block once.
    parallel_for(blocks * tiles, threads, Schedule::kStatic, [&](std::int64_t i, int thread) {
      compute(i / tiles, i % tiles * kRows, scratch[thread]);
    });
  }

 private:
  struct Scratch {
    std::int64_t block = -1;  // whose weights and bias these are
    MatmulOperand weight_operand;
    std::vector<std::byte> weight, a;  // where they are copied
    std::vector<Real> bias = std::vector<Real>(kColumns);
    std::vector<Real> residual = std::vector<Real>(kRows * kColumns);
    std::vector<Real> sum = std::vector<Real>(kRows * kColumns);
  };

  void compute(std::int64_t block, std::int64_t row, Scratch& scratch) const {
    const std::int64_t first = block * kColumns;
    const std::int64_t rows = std::min(kRows, p_.M - row);
    const std::int64_t columns = std::min(kColumns, p_.d - first);
    if (scratch.block != block) load(block, first, columns, scratch);
    Real* const sum = scratch.sum.data();
    const std::int64_t padded = matmul_rows(provider_, rows, kRows);
    matmul(provider_, {.M = padded,
                       .N = columns,
                       .K = p_.d_in,
                       .dtype = operands_.dtype(),
                       .a = operands_.rows(a_, row, rows, padded, scratch.a),
                       .b = scratch.weight_operand,
                       .c = sum,
                       .c_stride = columns});
    if (p_.bias.data) add_bias(rows, columns, scratch.bias.data(), sum);
    if (p_.residual.data) {
      const std::int64_t stride = p_.residual.row_stride;
      const void* at = element_at(p_.dtype, p_.residual.data, row * stride + first);
      rows_to_float({p_.dtype, at, stride}, rows, columns, scratch.residual.data(), columns);
      add_rows(1, rows * columns, scratch.residual.data(), sum);
    }
    void* at = element_at(p_.dtype, sum_.data, row * sum_.row_stride + first);
    rows_from_float(sum, columns, rows, columns, Real{1}, {p_.dtype, at, sum_.row_stride});
  }

  void load(std::int64_t block, std::int64_t first, std::int64_t columns, Scratch& scratch) const {
    scratch.block = block;
    scratch.weight_operand = operands_.rows(p_.weight, first, columns, columns, scratch.weight);
    scratch.weight_operand.transposed = true;
    if (!p_.bias.data) return;
    const void* bias = element_at(p_.bias.dtype, p_.bias.data, first);
    rows_to_float({p_.bias.dtype, bias, 0}, 1, columns, scratch.bias.data(), 0);
  }

  const GatedOutputForwardProblem& p_;
  MatrixTensor a_, sum_;
  MatmulProvider provider_;
  RowOperands operands_;
};

/// The backward of the product alone: of a projection with one segment.
ProjectionBackwardProblem product_of(const GatedOutputBackwardProblem& p, const MatrixTensor& a,
                                     const MatrixTensor& d_sum, const MatrixTensor& d_a) {
  ProjectionBackwardProblem product;
  product.dtype = p.dtype;
  product.device = p.device;
  product.M = p.M;
  product.d = p.d_in;
  product.x = a;
  product.segment_count = 1;
  ProjectionBackwardSegment& segment = product.segments[0];
  segment.columns = p.d;
  segment.weight = p.weight;
  segment.out_dtype = p.dtype;
  segment.d_out = d_sum;
  segment.d_weight_dtype = p.d_weight_dtype;
  segment.d_weight = p.d_weight;
  segment.d_bias_dtype = p.d_bias.dtype;
  segment.d_bias = p.d_bias.data;
  product.dx = d_a;
  product.accumulate = p.accumulate;
  return product;
}

void copy_rows(DType dtype, std::int64_t M, std::int64_t columns, const MatrixTensor& from,
               const MatrixTensor& to) {
  parallel_for(M, parallel_threads(), Schedule::kStatic, [&](std::int64_t row, int) {
    const void* source = element_at(dtype, from.data, row * from.row_stride);
    std::copy_n(static_cast<const std::byte*>(source), columns * size_of(dtype),
                static_cast<std::byte*>(element_at(dtype, to.data, row * to.row_stride)));
  });
}

}  // namespace

void gated_output_forward(const GatedOutputForwardProblem& problem, const CallOptions& options) {
  isa();  // throws before anything is written
  const MatmulProvider provider = matmul_provider(options);
  const GatedOutputForwardProblem& p = problem;
  std::optional<Temporary> made;
  MatrixTensor a = p.rows.o;
  if (!p.rows.is_o()) {
    a = p.gated.data ? p.gated : made.emplace(p.dtype, p.M, p.d_in).matrix();
    gated_rows_forward(p.dtype, p.M, p.d_in, p.rows, {.eps = p.group_eps, .kept = p.group_rstd}, a);
  }
  const MatrixTensor sum = p.sum.data ? p.sum : p.out;
  run_with_real(p.dtype, [&]<typename Real>() { Sum<Real>(p, a, sum, provider).run(); });
  if (p.norm != OutputNorm::kNone) output_norm_forward(p, sum);
}

void gated_output_backward(const GatedOutputBackwardProblem& problem, const CallOptions& options) {
  isa();  // throws before anything is written
  matmul_provider(options);
  const GatedOutputBackwardProblem& p = problem;
  const bool wants_d_a = p.d_o.data || p.d_gate.data || p.d_group_norm_weight.data;
  const bool wants_product = wants_d_a || p.d_weight.data || p.d_bias.data;
  std::optional<Temporary> made_d_sum, made_a, made_d_a;
  MatrixTensor d_sum = p.d_residual;
  if (p.norm != OutputNorm::kNone) {
    if (wants_product && !d_sum.data) d_sum = made_d_sum.emplace(p.dtype, p.M, p.d).matrix();
    output_norm_backward(p, d_sum);
  } else {
    if (d_sum.data) copy_rows(p.dtype, p.M, p.d, p.d_out, d_sum);
    d_sum = p.d_out;
  }
  if (!wants_product) return;
  MatrixTensor a = p.rows.o, d_a = p.d_o;
  if (p.d_weight.data && p.gated.data) {
    a = p.gated;
  } else if (p.d_weight.data && !p.rows.is_o()) {
    a = made_a.emplace(p.dtype, p.M, p.d_in).matrix();
    gated_rows_forward(p.dtype, p.M, p.d_in, p.rows, {.given = p.group_rstd}, a);
  }
  if (wants_d_a && !p.rows.is_o()) d_a = made_d_a.emplace(p.dtype, p.M, p.d_in).matrix();
  projection_backward(product_of(p, a, d_sum, d_a), options);
  if (wants_d_a && !p.rows.is_o()) gated_rows_backward(p, d_a);
}

std::vector<VariantInfo> gated_output_variants() {
  const std::string onednn = matmul_unavailable_reason(MatmulProvider::kOneDnn);
  return {{"gated_output", "gated_output_forward.cpu.onednn", onednn},
          {"gated_output", "gated_output_forward.cpu.builtin", ""},
          {"gated_output", "gated_output_backward.cpu.onednn", onednn},
          {"gated_output", "gated_output_backward.cpu.builtin", ""}};
}

}  // namespace tandem::cpu
