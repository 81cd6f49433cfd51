// rms_norm_gemm on the CPU: the norm into a matrix of its own, then projection of that; backwards
// in the other order, from n computed once more.
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/matmul.h"
#include "cpu/rms_norm.h"
#include "cpu/sequences.h"
#include "ops/projection.h"
#include "ops/rms_norm_gemm.h"

namespace tandem::cpu {
namespace {

/// A matrix [M,d] as x is, whose memory is not touched yet.
class RowsLikeX {
 public:
  template <class Projection>
  explicit RowsLikeX(const Projection& p)
      : data_(std::make_unique_for_overwrite<std::byte[]>(p.M * p.d * size_of(p.dtype))),
        matrix_{data_.get(), p.d} {}

  const MatrixTensor& matrix() const { return matrix_; }

 private:
  std::unique_ptr<std::byte[]> data_;
  MatrixTensor matrix_;
};

template <class Projection>
void check_sequences(const char* op, const Projection& p) {
  check_cu_seqlens(op, p.rope.cu_seqlens, p.rope.N, p.M);
}

bool wants_weights(const ProjectionBackwardProblem& p) {
  for (int i = 0; i < p.segment_count; ++i) {
    if (p.segments[i].d_weight.data) return true;
  }
  return false;
}

}  // namespace

void rms_norm_gemm_forward(const RmsNormGemmForwardProblem& problem, const CallOptions& options) {
  check_sequences("rms_norm_gemm_forward", problem.projection);
  isa();  // throws before anything is written
  matmul_provider(options);
  ProjectionForwardProblem product = problem.projection;
  const RowsLikeX n(product);
  rms_norm_forward(product.dtype, product.M, product.d, product.x, problem.norm, n.matrix(),
                   problem.kept_rstd);
  product.x = n.matrix();
  projection_forward(product, options);
}

void rms_norm_gemm_backward(const RmsNormGemmBackwardProblem& problem, const CallOptions& options) {
  check_sequences("rms_norm_gemm_backward", problem.projection);
  isa();  // throws before anything is written
  matmul_provider(options);
  const ProjectionBackwardProblem& p = problem.projection;
  ProjectionBackwardProblem product = p;
  std::optional<RowsLikeX> n, dn;
  if (wants_weights(p)) {
    n.emplace(p);
    rms_norm_forward(p.dtype, p.M, p.d, p.x, problem.norm, n->matrix(), nullptr);
    product.x = n->matrix();
  }
  const bool wants_norm = p.dx.data || problem.d_norm_weight;
  if (wants_norm) product.dx = dn.emplace(p).matrix();
  projection_backward(product, options);
  if (!wants_norm) return;
  rms_norm_backward(p.dtype, p.M, p.d, p.x, problem.norm, dn->matrix(), problem.addend, p.dx,
                    {problem.d_norm_weight_dtype, problem.d_norm_weight, p.accumulate});
}

std::vector<VariantInfo> rms_norm_gemm_variants() {
  const std::string onednn = matmul_unavailable_reason(MatmulProvider::kOneDnn);
  return {{"rms_norm_gemm", "rms_norm_gemm_forward.cpu.onednn", onednn},
          {"rms_norm_gemm", "rms_norm_gemm_forward.cpu.builtin", ""},
          {"rms_norm_gemm", "rms_norm_gemm_backward.cpu.onednn", onednn},
          {"rms_norm_gemm", "rms_norm_gemm_backward.cpu.builtin", ""}};
}

}  // namespace tandem::cpu
