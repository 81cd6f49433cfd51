// gemm_swiglu, unfused: every product, and what stands before and behind it, a kernel of its own.
//
//   n                          RMS norm of x, where there is one
//   g, u = n Wg^T, n Wu^T      cuBLASLt: one product where the weights are rows of one matrix
//   out = f(g) u               element-wise
//
//   dg, du                     element-wise, from g and u where the forward's are here, else from
//                              the slopes, which are as many bytes
//   dn = dg Wg + du Wu         cuBLASLt, as above
//   d_gate_weight, d_up_weight cuBLASLt, as above, where they are rows of one matrix, too
//   dx, d_norm_weight          the norm's, a kernel each
//
// n, g, u, dg, du and dn are rounded to 16 bits, as torch's products and kernels round them. Values
// in between are fp32.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "batched_matmul.h"
#include "bench/cuda/unfused.h"
#include "bench/cuda/unfused_rms_norm.h"
#include "bench/cuda/unfused_rows.cuh"
#include "cuda/runtime/workspace.h"

namespace tandem::bench {
namespace {

using namespace rows;

constexpr const char* kName = "unfused gemm_swiglu";  // in errors

/// f(z) and f'(z).
template <GateActivation kActivation>
__device__ float2 gate(float z) {
  if constexpr (kActivation == GateActivation::kSilu) {
    const float sigmoid = 1.0f / (1.0f + expf(-z));
    return {z * sigmoid, sigmoid * (1.0f + z * (1.0f - sigmoid))};
  }
  if constexpr (kActivation == GateActivation::kGelu) {
    const float below = 0.5f * (1.0f + erff(z * 0.70710678f));
    return {z * below, below + z * 0.39894228f * expf(-0.5f * z * z)};
  }
  if constexpr (kActivation == GateActivation::kGeluTanh) {
    constexpr float kRoot = 0.79788456f, kCubic = 0.044715f;
    const float t = tanhf(kRoot * (z + kCubic * z * z * z));
    const float slope = (1.0f - t * t) * kRoot * (1.0f + 3.0f * kCubic * z * z);
    return {0.5f * z * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * z * slope};
  }
  return {z <= 0.0f ? 0.0f : z, z <= 0.0f ? 0.0f : 1.0f};
}

/// out = f(g) u, of products that lie side by side, [M,2F].
template <typename Element, GateActivation kActivation>
__global__ void __launch_bounds__(kThreads)
    gate_kernel(std::int64_t M, int F, MatrixTensor products, MatrixTensor out) {
  const std::int64_t row = thread_row();
  const int column = thread_in_row() * kVector;
  if (row >= M || column >= F) return;
  Values g, u;
  g.load(address<Element>(products, row, column));
  u.load(address<Element>(products, row, column + F));
  for (int i = 0; i < kVector; ++i) u.at[i] *= gate<kActivation>(g.at[i]).x;
  u.store(address<Element>(out, row, column));
}

/// dg and du over g and u.
template <typename Element, GateActivation kActivation>
__global__ void __launch_bounds__(kThreads)
    gate_backward_kernel(std::int64_t M, int F, MatrixTensor d_out, MatrixTensor products) {
  const std::int64_t row = thread_row();
  const int column = thread_in_row() * kVector;
  if (row >= M || column >= F) return;
  Values d, g, u;
  d.load(address<Element>(d_out, row, column));
  g.load(address<Element>(products, row, column));
  u.load(address<Element>(products, row, column + F));
  for (int i = 0; i < kVector; ++i) {
    const float2 point = gate<kActivation>(g.at[i]);
    g.at[i] = d.at[i] * point.y * u.at[i];
    u.at[i] = d.at[i] * point.x;
  }
  g.store(address<Element>(products, row, column));
  u.store(address<Element>(products, row, column + F));
}

/// dg and du from the slopes.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    slopes_kernel(std::int64_t M, int F, MatrixTensor d_out, MatrixTensor gate_slope,
                  MatrixTensor up_slope, MatrixTensor products) {
  const std::int64_t row = thread_row();
  const int column = thread_in_row() * kVector;
  if (row >= M || column >= F) return;
  Values d, g, u;
  d.load(address<Element>(d_out, row, column));
  g.load(address<Element>(gate_slope, row, column));
  u.load(address<Element>(up_slope, row, column));
  for (int i = 0; i < kVector; ++i) {
    g.at[i] *= d.at[i];
    u.at[i] *= d.at[i];
  }
  g.store(address<Element>(products, row, column));
  u.store(address<Element>(products, row, column + F));
}

/// Calls body(Element{}, std::integral_constant of the activation).
template <class Body>
void with_gate(DType dtype, GateActivation activation, const Body& body) {
  with_types(dtype, dtype, [&](auto element, auto) {
    const auto with = [&]<GateActivation kActivation>() {
      body(element, std::integral_constant<GateActivation, kActivation>{});
    };
    switch (activation) {
      case GateActivation::kSilu: return with.template operator()<GateActivation::kSilu>();
      case GateActivation::kGelu: return with.template operator()<GateActivation::kGelu>();
      case GateActivation::kGeluTanh: return with.template operator()<GateActivation::kGeluTanh>();
      case GateActivation::kRelu: return with.template operator()<GateActivation::kRelu>();
    }
  });
}

/// Checks what both directions have.
template <class Problem>
void check_inputs(const Problem& problem) {
  check_baseline(problem);
  const auto check = [&](const MatrixTensor& matrix, DType dtype, int columns) {
    check_matrix(kName, matrix, dtype, columns);
  };
  check(problem.x, problem.dtype, problem.d);
  check(problem.gate_weight, problem.dtype, problem.d);
  check(problem.up_weight, problem.dtype, problem.d);
  if (problem.norm.weight != nullptr) {
    check_norm(kName, {problem.dtype, problem.M, problem.d, problem.x, problem.norm});
  }
}

void check(const GemmSwigluForwardProblem& problem) {
  check_inputs(problem);
  check_matrix(kName, problem.out, problem.dtype, problem.F);
}

void check(const GemmSwigluBackwardProblem& problem) {
  check_inputs(problem);
  check_matrix(kName, problem.gate_slope, problem.dtype, problem.F);
  check_matrix(kName, problem.up_slope, problem.dtype, problem.F);
  check_matrix(kName, problem.d_out, problem.dtype, problem.F);
  check_matrix(kName, problem.dx, problem.dtype, problem.d);
  check_matrix(kName, problem.d_gate_weight, problem.d_gate_weight_dtype, problem.d);
  check_matrix(kName, problem.d_up_weight, problem.d_up_weight_dtype, problem.d);
}

/// What lies between the kernels.
struct Intermediates {
  std::size_t n, products, dn, sums, matmul, bytes;

  template <class Problem>
  explicit Intermediates(const Problem& problem, bool backward) {
    const std::int64_t rows = problem.norm.weight != nullptr ? problem.M : 0;
    cuda::WorkspaceLayout layout;
    n = layout.add(rows * problem.d * 2);
    products = layout.add(problem.M * problem.F * 2 * 2);
    dn = layout.add(backward ? rows * problem.d * 2 : 0);
    const NormedRows normed{problem.dtype, rows, problem.d, problem.x, problem.norm};
    sums = layout.add(backward && rows > 0 ? norm_sums_bytes(normed) : 0);
    matmul = layout.add(kMatmulWorkspaceBytes);
    bytes = layout.bytes();
  }
};

/// A call's kernels in one direction.
template <class Problem>
class Runner {
 public:
  Runner(const Problem& problem, const Intermediates& at, const cuda::ScratchMemory& scratch,
         const Context& context)
      : p_(problem),
        products_{scratch.at<void>(at.products), 2 * std::int64_t{problem.F}},
        n_{scratch.at<void>(at.n), problem.d},
        dn_{scratch.at<void>(at.dn), problem.d},
        sums_(scratch.at<float>(at.sums)),
        matmul_(scratch.at<void>(at.matmul)),
        stream_(static_cast<cudaStream_t>(context.stream.handle)) {}

  /// Leaves g and u in the workspace, and with a norm n.
  void forward() const {
    if (p_.M == 0) return;
    normalize();  // without columns, too: its rstd is kept
    if (p_.F == 0) return;
    if (stacked(p_.gate_weight, p_.up_weight)) {
      forward_product(p_.gate_weight, 2 * p_.F, 0);
    } else {
      forward_product(p_.gate_weight, p_.F, 0);
      forward_product(p_.up_weight, p_.F, p_.F);
    }
    with_gate(p_.dtype, p_.activation, [&](auto element, auto activation) {
      gate_kernel<decltype(element), decltype(activation)::value>
          <<<threads().grid, threads().block, 0, stream_>>>(p_.M, p_.F, products_, p_.out);
    });
  }

  /// Of what a forward left in the same workspace.
  void backward(GateActivation activation) const {
    if (nothing()) return clear_gradients();
    with_gate(p_.dtype, activation, [&](auto element, auto constant) {
      gate_backward_kernel<decltype(element), decltype(constant)::value>
          <<<threads().grid, threads().block, 0, stream_>>>(p_.M, p_.F, p_.d_out, products_);
    });
    finish_backward();
  }

  /// Of the slopes.
  void backward() const {
    if (nothing()) return clear_gradients();
    if (p_.d_gate_weight.data != nullptr || p_.d_up_weight.data != nullptr) normalize();
    with_types(p_.dtype, p_.dtype, [&](auto element, auto) {
      slopes_kernel<decltype(element)><<<threads().grid, threads().block, 0, stream_>>>(
          p_.M, p_.F, p_.d_out, p_.gate_slope, p_.up_slope, products_);
    });
    finish_backward();
  }

 private:
  bool normalizes() const { return p_.norm.weight != nullptr; }
  NormedRows rows() const { return {p_.dtype, p_.M, p_.d, p_.x, p_.norm}; }
  bool nothing() const { return p_.M == 0 || p_.F == 0; }
  Threads threads() const { return Threads(p_.M, p_.F / kVector); }
  /// The input of the products.
  MatrixTensor input() const { return normalizes() ? n_ : p_.x; }

  /// Whether the second matrix [F,d] lies behind the first one.
  bool stacked(const MatrixTensor& first, const MatrixTensor& second, DType dtype) const {
    return first.row_stride == second.row_stride &&
           static_cast<char*>(first.data) + p_.F * first.row_stride * size_of(dtype) ==
               static_cast<char*>(second.data);
  }
  bool stacked(const MatrixTensor& first, const MatrixTensor& second) const {
    return stacked(first, second, p_.dtype);
  }

  void* product(int column) const {
    return static_cast<char*>(products_.data) + std::int64_t{column} * size_of(p_.dtype);
  }

  void normalize() const {
    if (!normalizes()) return;
    float* kept_rstd = nullptr;
    if constexpr (requires { p_.kept_rstd; }) kept_rstd = p_.kept_rstd;
    bench::normalize(rows(), n_, kept_rstd, stream_);
  }

  void multiply_rows(const BatchedProduct& product) const { multiply(product, matmul_, stream_); }

  /// n W^T into columns of the products.
  void forward_product(const MatrixTensor& weight, int columns, int at) const {
    multiply_rows({.dtype = cuda_type(p_.dtype),
                   .batch = 1,
                   .M = p_.M,
                   .N = columns,
                   .K = p_.d,
                   .alpha = 1.0f,
                   .a = {input().data, false, input().row_stride},
                   .b = {weight.data, true, weight.row_stride},
                   .d = product(at),
                   .d_row_stride = products_.row_stride});
  }

  /// dn = dg W, or dg Wg + du Wu as one.
  void input_product(const MatrixTensor& weight, int columns, int at, const MatrixTensor& to,
                     bool accumulate) const {
    multiply_rows({.dtype = cuda_type(p_.dtype),
                   .batch = 1,
                   .M = p_.M,
                   .N = p_.d,
                   .K = columns,
                   .alpha = 1.0f,
                   .a = {product(at), false, products_.row_stride},
                   .b = {weight.data, false, weight.row_stride},
                   .d = to.data,
                   .d_row_stride = to.row_stride,
                   .accumulate = accumulate});
  }

  void weight_product(const MatrixTensor& d_weight, DType dtype, int columns, int at) const {
    if (d_weight.data == nullptr) return;
    multiply_rows({.dtype = cuda_type(p_.dtype),
                   .batch = 1,
                   .M = columns,
                   .N = p_.d,
                   .K = p_.M,
                   .alpha = 1.0f,
                   .a = {product(at), true, products_.row_stride},
                   .b = {input().data, false, input().row_stride},
                   .d = d_weight.data,
                   .d_row_stride = d_weight.row_stride,
                   .fp32 = dtype == DType::kFloat32,
                   .accumulate = p_.accumulate});
  }

  /// What follows dg and du.
  void finish_backward() const {
    const MatrixTensor to = normalizes() ? dn_ : p_.dx;
    if (p_.dx.data != nullptr || p_.d_norm_weight != nullptr) {
      if (stacked(p_.gate_weight, p_.up_weight)) {
        input_product(p_.gate_weight, 2 * p_.F, 0, to, false);
      } else {
        input_product(p_.gate_weight, p_.F, 0, to, false);
        input_product(p_.up_weight, p_.F, p_.F, to, true);
      }
    }
    const bool one = p_.d_gate_weight.data != nullptr && p_.d_up_weight.data != nullptr &&
                     p_.d_gate_weight_dtype == p_.d_up_weight_dtype &&
                     stacked(p_.d_gate_weight, p_.d_up_weight, p_.d_gate_weight_dtype);
    if (one) {
      weight_product(p_.d_gate_weight, p_.d_gate_weight_dtype, 2 * p_.F, 0);
    } else {
      weight_product(p_.d_gate_weight, p_.d_gate_weight_dtype, p_.F, 0);
      weight_product(p_.d_up_weight, p_.d_up_weight_dtype, p_.F, p_.F);
    }
    if (normalizes()) {
      normalize_backward(rows(), dn_, p_.dx,
                         {p_.d_norm_weight_dtype, p_.d_norm_weight, p_.accumulate}, sums_, stream_);
    }
  }

  void clear_gradients() const {
    const auto clear = [&](const MatrixTensor& matrix, DType dtype, std::int64_t rows) {
      if (matrix.data != nullptr && rows > 0) {
        clear_matrix(kName, matrix, dtype, rows, p_.d, stream_);
      }
    };
    clear(p_.dx, p_.dtype, p_.M);
    if (p_.accumulate) return;
    clear(p_.d_gate_weight, p_.d_gate_weight_dtype, p_.F);
    clear(p_.d_up_weight, p_.d_up_weight_dtype, p_.F);
    clear({p_.d_norm_weight, p_.d}, p_.d_norm_weight_dtype, 1);
  }

  const Problem& p_;
  MatrixTensor products_, n_, dn_;  // products: [M,2F], g and u, then dg and du
  float* sums_;
  void* matmul_;
  cudaStream_t stream_;
};

/// Calls body(intermediates, scratch) on the problem's device.
template <class Problem, class Body>
void run(const Problem& problem, bool backward, const Context& context, const Body& body) {
  const Intermediates at(problem, backward);
  const cuda::DeviceGuard guard(problem.device.index);
  const cuda::ScratchMemory scratch(kName, context, at.bytes);
  body(at, scratch);
  cuda::cuda_check(cudaGetLastError(), kName);
}

}  // namespace

void unfused_gemm_swiglu(const GemmSwigluForwardProblem& problem, const Context& context) {
  check(problem);
  run(problem, false, context, [&](const Intermediates& at, const cuda::ScratchMemory& scratch) {
    Runner<GemmSwigluForwardProblem>(problem, at, scratch, context).forward();
  });
}

std::size_t unfused_gemm_swiglu_workspace_bytes(const GemmSwigluForwardProblem& problem) {
  check(problem);
  return Intermediates(problem, false).bytes;
}

void unfused_gemm_swiglu_backward(const GemmSwigluBackwardProblem& problem,
                                  const Context& context) {
  check(problem);
  run(problem, true, context, [&](const Intermediates& at, const cuda::ScratchMemory& scratch) {
    Runner<GemmSwigluBackwardProblem>(problem, at, scratch, context).backward();
  });
}

std::size_t unfused_gemm_swiglu_backward_workspace_bytes(const GemmSwigluBackwardProblem& problem) {
  check(problem);
  return Intermediates(problem, true).bytes;
}

void unfused_gemm_swiglu_both(const GemmSwigluForwardProblem& forward,
                              const GemmSwigluBackwardProblem& backward, const Context& context) {
  check(forward);
  check(backward);
  run(backward, true, context, [&](const Intermediates& at, const cuda::ScratchMemory& scratch) {
    Runner<GemmSwigluForwardProblem>(forward, at, scratch, context).forward();
    Runner<GemmSwigluBackwardProblem>(backward, at, scratch, context).backward(forward.activation);
  });
}

std::size_t unfused_gemm_swiglu_both_workspace_bytes(const GemmSwigluForwardProblem& forward,
                                                     const GemmSwigluBackwardProblem& backward) {
  check(forward);
  return unfused_gemm_swiglu_backward_workspace_bytes(backward);
}

}  // namespace tandem::bench
