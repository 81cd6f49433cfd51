// gemm_swiglu on the CPU. Forward: tiles of rows by columns, each the gate's and the up product and
// what follows them, in any order. A product's last rows are padded with zeros
// (matmul_rows): a row's bits do not depend on how many others there are.
//
// Backward: the slopes make it that of a projection with two segments; a norm's is behind it.
#include "ops/gemm_swiglu.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/real.h"
#include "cpu/elementwise.h"
#include "cpu/gate_tile.h"
#include "cpu/isa.h"
#include "cpu/matmul.h"
#include "cpu/parallel.h"
#include "cpu/rms_norm.h"
#include "cpu/row_operands.h"
#include "ops/projection.h"

namespace tandem::cpu {
namespace {

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kColumns = 128;  // of each weight

/// Rows of width d for the length of a call.
struct Temporary {
  Temporary(DType dtype, std::int64_t rows, std::int64_t d)
      : memory(rows * d * size_of(dtype)), matrix{memory.data(), d} {}

  std::vector<std::byte> memory;
  MatrixTensor matrix;
};

template <typename Real>
class Forward {
 public:
  Forward(const GemmSwigluForwardProblem& problem, const MatrixTensor& n, MatmulProvider provider)
      : p_(problem), n_(n), provider_(provider), operands_(problem.dtype, problem.d, provider) {}

  void run() const {
    const std::int64_t blocks = (p_.F + kColumns - 1) / kColumns;
    const std::int64_t tiles = (p_.M + kRows - 1) / kRows;
    const int threads = parallel_threads();
    std::vector<Scratch> scratch(threads);
    // why the rows inside: a thread converts the weights of a block once.
    parallel_for(blocks * tiles, threads, Schedule::kStatic, [&](std::int64_t i, int thread) {
      compute(i / tiles, i % tiles * kRows, scratch[thread]);
    });
  }

 private:
  struct Half {
    MatmulOperand weight;
    std::vector<std::byte> copy;  // of the weight
    std::vector<Real> product = std::vector<Real>(kRows * kColumns);
  };
  struct Scratch {
    std::int64_t block = -1;  // whose weights these are
    Half gate, up;
    std::vector<std::byte> n;
    std::vector<Real> out = std::vector<Real>(kRows * kColumns);
  };

  void compute(std::int64_t block, std::int64_t row, Scratch& scratch) const {
    const std::int64_t first = block * kColumns;
    const std::int64_t rows = std::min(kRows, p_.M - row);
    const std::int64_t columns = std::min(kColumns, p_.F - first);
    if (scratch.block != block) {
      scratch.block = block;
      load(p_.gate_weight, first, columns, scratch.gate);
      load(p_.up_weight, first, columns, scratch.up);
    }
    const std::int64_t padded = matmul_rows(provider_, rows, kRows);
    const MatmulOperand n = operands_.rows(n_, row, rows, padded, scratch.n);
    multiply(n, padded, columns, scratch.gate);
    multiply(n, padded, columns, scratch.up);
    Real* const g = scratch.gate.product.data();
    Real* const u = scratch.up.product.data();
    gate(p_.activation, rows * columns, g, u, scratch.out.data());
    const auto write = [&](const Real* from, const MatrixTensor& to) {
      if (!to.data) return;
      void* at = element_at(p_.dtype, to.data, row * to.row_stride + first);
      rows_from_float(from, columns, rows, columns, Real{1}, {p_.dtype, at, to.row_stride});
    };
    write(scratch.out.data(), p_.out);
    write(g, p_.up_slope);
    write(u, p_.gate_slope);
  }

  void load(const MatrixTensor& weight, std::int64_t first, std::int64_t columns,
            Half& half) const {
    half.weight = operands_.rows(weight, first, columns, columns, half.copy);
    half.weight.transposed = true;
  }

  void multiply(const MatmulOperand& n, std::int64_t rows, std::int64_t columns, Half& half) const {
    matmul(provider_, {.M = rows,
                       .N = columns,
                       .K = p_.d,
                       .dtype = operands_.dtype(),
                       .a = n,
                       .b = half.weight,
                       .c = half.product.data(),
                       .c_stride = columns});
  }

  const GemmSwigluForwardProblem& p_;
  MatrixTensor n_;
  MatmulProvider provider_;
  RowOperands operands_;
};

}  // namespace

void gemm_swiglu_forward(const GemmSwigluForwardProblem& problem, const CallOptions& options) {
  isa();  // throws before anything is written
  const MatmulProvider provider = matmul_provider(options);
  const DType dtype = problem.dtype;
  const std::int64_t M = problem.M;
  const int d = problem.d;
  const bool normalizes = problem.norm.weight != nullptr;
  const Temporary n(dtype, normalizes ? M : 0, d);
  if (normalizes) {
    rms_norm_forward(dtype, M, d, problem.x, problem.norm, n.matrix, problem.kept_rstd);
  }
  run_with_real(dtype, [&]<typename Real>() {
    Forward<Real>(problem, normalizes ? n.matrix : problem.x, provider).run();
  });
}

void gemm_swiglu_backward(const GemmSwigluBackwardProblem& problem, const CallOptions& options) {
  const DType dtype = problem.dtype;
  const std::int64_t M = problem.M;
  const int d = problem.d;
  const bool normalizes = problem.norm.weight != nullptr;
  const bool needs_n = normalizes && (problem.d_gate_weight.data || problem.d_up_weight.data);
  const bool needs_dn = normalizes && (problem.dx.data || problem.d_norm_weight);
  ProjectionBackwardProblem products;
  products.dtype = dtype;
  products.device = problem.device;
  products.M = M;
  products.d = d;
  products.segment_count = 2;
  const auto set = [&](ProjectionBackwardSegment& half, const MatrixTensor& weight,
                       const MatrixTensor& slope, DType d_weight_dtype,
                       const MatrixTensor& d_weight) {
    half.columns = problem.F;
    half.kept = ProjectionKept::kSlope;
    half.weight = weight;
    half.out_dtype = dtype;
    half.d_out = problem.d_out;
    half.slope = slope;
    half.d_weight_dtype = d_weight_dtype;
    half.d_weight = d_weight;
  };
  set(products.segments[0], problem.gate_weight, problem.gate_slope, problem.d_gate_weight_dtype,
      problem.d_gate_weight);
  set(products.segments[1], problem.up_weight, problem.up_slope, problem.d_up_weight_dtype,
      problem.d_up_weight);
  products.accumulate = problem.accumulate;
  const Temporary n(dtype, needs_n ? M : 0, d), dn(dtype, needs_dn ? M : 0, d);
  products.x = needs_n ? n.matrix : problem.x;
  products.dx = needs_dn ? dn.matrix : problem.dx;
  if (needs_n) rms_norm_forward(dtype, M, d, problem.x, problem.norm, n.matrix, nullptr);
  projection_backward(products, options);
  if (needs_dn) {
    rms_norm_backward(dtype, M, d, problem.x, problem.norm, dn.matrix, problem.addend, problem.dx,
                      {problem.d_norm_weight_dtype, problem.d_norm_weight, problem.accumulate});
  }
}

std::vector<VariantInfo> gemm_swiglu_variants() {
  const std::string onednn = matmul_unavailable_reason(MatmulProvider::kOneDnn);
  return {{"gemm_swiglu", "gemm_swiglu_forward.cpu.onednn", onednn},
          {"gemm_swiglu", "gemm_swiglu_forward.cpu.builtin", ""},
          {"gemm_swiglu", "gemm_swiglu_backward.cpu.onednn", onednn},
          {"gemm_swiglu", "gemm_swiglu_backward.cpu.builtin", ""}};
}

}  // namespace tandem::cpu
