// rms_norm_gemm, unfused: the norm as a kernel of its own (unfused_rms_norm.cu), the products as
// projection's baseline has them, and heads' norm and rotation as one kernel (unfused_heads.cu).
//
//   forward    n = x rstd norm_weight    a kernel, n in 16 bits
//              out = n W^T + bias        one product where the weights lie stacked in one matrix
//              heads of out, in place    a kernel per segment that has them
//   backward   n                         once more, where no forward in the same call left it
//              dz of heads               a kernel per segment that has them, dz in 16 bits
//              dn, d_weight, d_bias      products and column sums
//              dx, d_norm_weight         two kernels
#include <algorithm>
#include <array>
#include <cstdint>

#include "bench/cuda/unfused.h"
#include "bench/cuda/unfused_heads.h"
#include "bench/cuda/unfused_rms_norm.h"
#include "bench/cuda/unfused_rows.cuh"
#include "cuda/runtime/workspace.h"

namespace tandem::bench {
namespace {

constexpr const char* kName = "unfused rms_norm_gemm";  // in errors

/// Whether b begins `elements` behind a, in rows of the same stride.
bool follows(const MatrixTensor& a, std::int64_t elements, const MatrixTensor& b, DType dtype) {
  const auto* end = static_cast<const char*>(a.data) + elements * size_of(dtype);
  return a.data != nullptr && b.data == end && a.row_stride == b.row_stride;
}
bool lies_below(const MatrixTensor& a, std::int64_t rows, const MatrixTensor& b, DType dtype) {
  return follows(a, rows * a.row_stride, b, dtype);
}

/// Whether the products of both segments are one: the weights rows of one matrix, the outputs
/// columns of one.
bool is_one(const ProjectionForwardProblem& p, const ProjectionForwardSegment& a,
            const ProjectionForwardSegment& b) {
  return lies_below(a.weight, a.columns, b.weight, p.dtype) && a.out_dtype == b.out_dtype &&
         follows(a.out, a.columns, b.out, a.out_dtype) && a.bias == nullptr && b.bias == nullptr;
}
bool is_one(const ProjectionBackwardProblem& p, const ProjectionBackwardSegment& a,
            const ProjectionBackwardSegment& b) {
  const bool no_weights = a.d_weight.data == nullptr && b.d_weight.data == nullptr;
  return lies_below(a.weight, a.columns, b.weight, p.dtype) && a.out_dtype == b.out_dtype &&
         follows(a.d_out, a.columns, b.d_out, a.out_dtype) && a.d_bias == nullptr &&
         b.d_bias == nullptr &&
         (no_weights || (a.d_weight_dtype == b.d_weight_dtype &&
                         lies_below(a.d_weight, a.columns, b.d_weight, a.d_weight_dtype)));
}

/// The problem of n in place of x, with segments joined where their products are one.
template <class Problem>
Problem joined(const Problem& from, void* n) {
  Problem to = from;
  to.x = {n, from.d};
  to.segment_count = 0;
  for (int i = 0; i < from.segment_count; ++i) {
    const auto& segment = from.segments[i];
    if (segment.columns == 0) continue;
    auto* const last = to.segment_count > 0 ? &to.segments[to.segment_count - 1] : nullptr;
    if (last != nullptr && is_one(from, *last, segment)) {
      last->columns += segment.columns;
    } else {
      to.segments[to.segment_count++] = segment;
    }
  }
  return to;
}

bool wants_weights(const ProjectionBackwardProblem& p) {
  return std::any_of(p.segments.begin(), p.segments.begin() + p.segment_count,
                     [](const auto& segment) { return segment.d_weight.data != nullptr; });
}

/// What a segment's heads end in.
template <class Projection, class Segment>
HeadRows heads_of(const Projection& p, const Segment& segment) {
  return {p.dtype, p.M, segment.columns, segment.head_width, segment.heads, p.rope};
}

/// Refuses heads that the kernels do not take.
template <class Projection>
void check_all_heads(const Projection& p) {
  for (int i = 0; i < p.segment_count; ++i) {
    if (p.segments[i].heads.is_there()) check_heads(kName, heads_of(p, p.segments[i]));
  }
}

template <class Problem>
NormedRows rows_of(const Problem& problem) {
  const auto& p = problem.projection;
  return {p.dtype, p.M, p.d, p.x, problem.norm};
}

/// A forward, a backward, or a forward with its backward, which takes n from it.
class Unfused {
 public:
  Unfused(const RmsNormGemmForwardProblem* forward, const RmsNormGemmBackwardProblem* backward)
      : forward_(forward),
        backward_(backward),
        rows_(forward ? rows_of(*forward) : rows_of(*backward)) {
    if (forward) check_baseline(forward->projection);
    if (backward) check_baseline(backward->projection);
    if (forward) check_all_heads(forward->projection);
    if (backward) check_all_heads(backward->projection);
    check_norm(kName, rows_);
    if (backward) rows::check_matrix(kName, backward->projection.dx, rows_.dtype, rows_.d);
    const std::size_t matrix = rows_.M * rows_.d * size_of(rows_.dtype);
    wants_norm_ = backward && (backward->projection.dx.data || backward->d_norm_weight);
    makes_n_ = forward || wants_weights(backward->projection);
    cuda::WorkspaceLayout layout;
    n_ = layout.add(makes_n_ ? matrix : 0);
    dn_ = layout.add(wants_norm_ ? matrix : 0);
    sums_ = layout.add(backward && backward->d_norm_weight ? norm_sums_bytes(rows_) : 0);
    std::size_t head_sums = 0;
    for (int i = 0; backward && i < backward->projection.segment_count; ++i) {
      const ProjectionBackwardSegment& segment = backward->projection.segments[i];
      if (!segment.heads.is_there()) continue;
      rows::check_matrix(kName, segment.d_out, segment.out_dtype, segment.columns);
      head_columns_ += segment.d_out.data ? segment.columns : 0;
      head_sums = std::max(head_sums, head_sums_bytes(heads_of(backward->projection, segment)));
    }
    dz_ = layout.add(rows_.M * head_columns_ * size_of(rows_.dtype));
    head_sums_ = layout.add(head_sums);
    products_ = layout.bytes();
    products_bytes_ = plan_products(reinterpret_cast<char*>(cuda::kWorkspaceAlignment));
  }

  std::size_t workspace_bytes() const { return products_ + products_bytes_; }

  void run(const Context& context) const {
    const Device device = forward_ ? forward_->projection.device : backward_->projection.device;
    const cuda::DeviceGuard guard(device.index);
    const cuda::ScratchMemory scratch(kName, context, workspace_bytes());
    const auto stream = static_cast<cudaStream_t>(context.stream.handle);
    char* const base = scratch.at<char>(0);
    const Context of_products = {.stream = context.stream,
                                 .workspace = {base + products_, products_bytes_}};
    if (makes_n_) {
      normalize(rows_, {base + n_, rows_.d}, forward_ ? forward_->kept_rstd : nullptr, stream);
    }
    if (forward_) {
      unfused_projection(forward_products(base), of_products);
      finish_all_heads(stream);
    }
    if (!backward_) return;
    differentiate_all_heads(base, stream);
    unfused_projection_backward(backward_products(base), of_products);
    if (wants_norm_) {
      normalize_backward(rows_of(*backward_), {base + dn_, rows_.d}, backward_->projection.dx,
                         {backward_->d_norm_weight_dtype, backward_->d_norm_weight,
                          backward_->projection.accumulate},
                         scratch.at<float>(sums_), stream);
    }
    cuda::cuda_check(cudaGetLastError(), kName);
  }

 private:
  ProjectionForwardProblem forward_products(char* base) const {
    ProjectionForwardProblem products = forward_->projection;
    for (ProjectionForwardSegment& segment : products.segments) {
      segment.heads = {};
      segment.head_width = 0;
    }
    return joined(products, base + n_);
  }

  void finish_all_heads(cudaStream_t stream) const {
    const ProjectionForwardProblem& p = forward_->projection;
    for (int i = 0; i < p.segment_count; ++i) {
      const ProjectionForwardSegment& segment = p.segments[i];
      if (!segment.heads.is_there()) continue;
      finish_heads(heads_of(p, segment), segment.out, segment.out_dtype, stream);
    }
  }

  /// Where a segment's dz lies, those with heads side by side in one matrix; null where d_out is
  /// dz.
  std::array<MatrixTensor, kMostProjectionSegments> dz_of_heads(char* base) const {
    std::array<MatrixTensor, kMostProjectionSegments> all{};
    std::int64_t column = 0;
    for (int i = 0; i < backward_->projection.segment_count; ++i) {
      const ProjectionBackwardSegment& segment = backward_->projection.segments[i];
      if (!segment.heads.is_there() || segment.d_out.data == nullptr) continue;
      all[i] = {base + dz_ + column * size_of(rows_.dtype), head_columns_};
      column += segment.columns;
    }
    return all;
  }

  void differentiate_all_heads(char* base, cudaStream_t stream) const {
    const ProjectionBackwardProblem& p = backward_->projection;
    const auto dz = dz_of_heads(base);
    for (int i = 0; i < p.segment_count; ++i) {
      const ProjectionBackwardSegment& segment = p.segments[i];
      if (!segment.heads.is_there()) continue;
      differentiate_heads(
          heads_of(p, segment), segment.d_out, segment.out_dtype, dz[i],
          {segment.d_head_norm_weight_dtype, segment.d_head_norm_weight, p.accumulate},
          reinterpret_cast<float*>(base + head_sums_), stream);
    }
  }

  ProjectionBackwardProblem backward_products(char* base) const {
    ProjectionBackwardProblem given = backward_->projection;
    const auto dz = dz_of_heads(base);
    for (int i = 0; i < given.segment_count; ++i) {
      ProjectionBackwardSegment& segment = given.segments[i];
      if (!segment.heads.is_there()) continue;
      if (dz[i].data) {
        segment.d_out = dz[i];
        segment.out_dtype = given.dtype;
      }
      segment.heads = {};
      segment.head_width = 0;
      segment.kept = ProjectionKept::kNothing;
    }
    ProjectionBackwardProblem products = joined(given, base + n_);
    products.dx = {wants_norm_ ? base + dn_ : nullptr, rows_.d};
    return products;
  }

  /// Returns the larger workspace of the products.
  std::size_t plan_products(char* base) const {
    std::size_t bytes = 0;
    if (forward_) bytes = unfused_projection_workspace_bytes(forward_products(base));
    if (!backward_) return bytes;
    return std::max(bytes, unfused_projection_backward_workspace_bytes(backward_products(base)));
  }

  const RmsNormGemmForwardProblem* forward_;    // or null
  const RmsNormGemmBackwardProblem* backward_;  // or null
  NormedRows rows_;                             // as the first of them has them
  bool wants_norm_ = false, makes_n_ = false;
  std::size_t n_ = 0, dn_ = 0, sums_ = 0, products_ = 0, products_bytes_ = 0;
  std::size_t dz_ = 0, head_sums_ = 0;
  std::int64_t head_columns_ = 0;  // of all dz
};

}  // namespace

void unfused_rms_norm_gemm(const RmsNormGemmForwardProblem& problem, const Context& context) {
  Unfused(&problem, nullptr).run(context);
}

std::size_t unfused_rms_norm_gemm_workspace_bytes(const RmsNormGemmForwardProblem& problem) {
  return Unfused(&problem, nullptr).workspace_bytes();
}

void unfused_rms_norm_gemm_backward(const RmsNormGemmBackwardProblem& problem,
                                    const Context& context) {
  Unfused(nullptr, &problem).run(context);
}

std::size_t unfused_rms_norm_gemm_backward_workspace_bytes(
    const RmsNormGemmBackwardProblem& problem) {
  return Unfused(nullptr, &problem).workspace_bytes();
}

void unfused_rms_norm_gemm_both(const RmsNormGemmForwardProblem& forward,
                                const RmsNormGemmBackwardProblem& backward,
                                const Context& context) {
  Unfused(&forward, &backward).run(context);
}

std::size_t unfused_rms_norm_gemm_both_workspace_bytes(const RmsNormGemmForwardProblem& forward,
                                                       const RmsNormGemmBackwardProblem& backward) {
  return Unfused(&forward, &backward).workspace_bytes();
}

}  // namespace tandem::bench
