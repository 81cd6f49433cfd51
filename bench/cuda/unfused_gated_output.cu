// gated_output, unfused: what stands before the product, and behind it, a kernel of its own.
//
//   a                           the gate and, where there is one, the norm of groups, in 16 bits;
//                               none for o alone
//   sum = a W^T + bias + residual
//                               cuBLASLt: the bias is its epilogue's, the residual its C
//   out                         the norm's (unfused_output_norm.cu)
//
//   d_residual                  the norm's, with the sums of its weight, its bias and d_bias
//   d_weight = d_residual^T a   cuBLASLt; a once more, where no forward left it
//   d_a = d_residual W          cuBLASLt, in 16 bits
//   d_o, d_gate                 one kernel, with sums of d_group_norm_weight
//
// Values in between are fp32. A group is a team of threads that hold it in registers: lanes of a
// warp or, above 512 columns, a CTA.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "batched_matmul.h"
#include "bench/cuda/unfused.h"
#include "bench/cuda/unfused_output_norm.h"
#include "bench/cuda/unfused_rows.cuh"
#include "cuda/runtime/workspace.h"

namespace tandem::bench {
namespace {

using namespace rows;

constexpr const char* kName = "unfused gated_output";  // in errors

/// f(g) and f'(g), to some last places of fp32.
template <OutputGate kGate>
__device__ float2 gate(float g) {
  if constexpr (kGate == OutputGate::kNone) {
    return {g, 1.0f};
  } else {
    const float sigmoid = __fdividef(1.0f, 1.0f + __expf(-g));
    if constexpr (kGate == OutputGate::kSigmoid) return {sigmoid, sigmoid * (1.0f - sigmoid)};
    return {g * sigmoid, sigmoid * (1.0f + g * (1.0f - sigmoid))};
  }
}

/// a = o f(gate).
template <typename Element, OutputGate kGate>
__global__ void __launch_bounds__(kThreads)
    gate_kernel(std::int64_t M, int d_in, GatedRows rows, MatrixTensor a) {
  const std::int64_t row = thread_row();
  const int column = thread_in_row() * kVector;
  if (row >= M || column >= d_in) return;
  Values o, g;
  o.load(address<Element>(rows.o, row, column));
  g.load(address<Element>(rows.gate, row, column));
  for (int i = 0; i < kVector; ++i) o.at[i] *= gate<kGate>(g.at[i]).x;
  o.store(address<Element>(a, row, column));
}

/// What the gate's backward makes, each of which may be null.
struct GateGradients {
  MatrixTensor d_o, d_gate;
  float* sums;  // of d_group_norm_weight
};

template <typename Element, OutputGate kGate>
__global__ void __launch_bounds__(kThreads)
    gate_backward_kernel(std::int64_t M, int d_in, GatedRows rows, MatrixTensor d_a,
                         GateGradients to) {
  const std::int64_t row = thread_row();
  const int column = thread_in_row() * kVector;
  if (row >= M || column >= d_in) return;
  Values o, g, d;
  d.load(address<Element>(d_a, row, column));
  o.load(address<Element>(rows.o, row, column));
  g.load(address<Element>(rows.gate, row, column));
  for (int i = 0; i < kVector; ++i) {
    const float2 point = gate<kGate>(g.at[i]);
    g.at[i] = d.at[i] * o.at[i] * point.y;
    d.at[i] *= point.x;
  }
  if (to.d_o.data != nullptr) d.store(address<Element>(to.d_o, row, column));
  if (to.d_gate.data != nullptr) g.store(address<Element>(to.d_gate, row, column));
}

/// The sum over a team: a row of the block, a power of two lanes of a warp or the whole block.
__device__ float team_sum(float value) {
  if (blockDim.x > kWarp) return block_sum(value);
  for (unsigned apart = blockDim.x / 2; apart > 0; apart /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, apart);
  }
  return value;
}

/// Threads for groups of columns: a team each, `count` teams of consecutive rows in a block.
struct Teams {
  static constexpr int kMostVectors = 2;  // of a thread
  // Blocks of a backward: two or, of lanes, twelve per multiprocessor of an H200, of which two or
  // three are there at once.
  static constexpr int kBlocks = 264, kBlocksOfLanes = 1584;
  int vectors, count, groups;
  dim3 block;

  Teams(int group_width, int d_in) : groups(d_in / group_width) {
    const int whole = group_width / kVector;
    const bool is_block = whole > kMostVectors * kWarp;
    const int held = whole > (is_block ? kMostThreads : kWarp) ? kMostVectors : 1;
    const int lanes = (whole - 1) / held + 1;
    vectors = held;
    count = 1;
    block.x =
        is_block ? ((lanes - 1) / kWarp + 1) * kWarp : std::bit_ceil(static_cast<unsigned>(lanes));
    if (!is_block) block.y = count = kThreads / static_cast<int>(block.x);
  }

  /// Blocks of a forward: groups run first, so that neighbours read the same rows.
  unsigned blocks(std::int64_t M) const {
    return static_cast<unsigned>((M - 1) / count + 1) * groups;
  }
  /// Slices of the rows of a backward, each of whole steps of `count` rows.
  int slices(std::int64_t M) const {
    if (M == 0) return 0;
    const std::int64_t wanted = std::max((count > 1 ? kBlocksOfLanes : kBlocks) / groups, 1);
    return static_cast<int>(std::min<std::int64_t>(wanted, (M - 1) / count + 1));
  }
};

/// Where a thread's vector lies in its group, and in the vector of weights.
struct Place {
  int in_group, column, weight;
  bool is_inside;

  __device__ Place(const GatedRows& rows, int group, int vector)
      : in_group(column_of(vector)),
        column(group * rows.group_width + in_group),
        weight(rows.group_weight_repeats ? in_group : column),
        is_inside(in_group < rows.group_width) {}
};

/// Makes the compiler load these registers anew: it would keep what it once computed with them.
template <typename Element>
__device__ void forget(Part<Element>& part) {
  auto& words = reinterpret_cast<uint4&>(part);
  asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
}

/// o and f(gate) as they lie in memory; f is 1 without a gate.
template <typename Element>
struct GatedPart {
  Part<Element> o, gate;

  __device__ void load(const GatedRows& rows, std::int64_t row, int column) {
    const auto part = [&](const MatrixTensor& matrix) {
      return *reinterpret_cast<const Part<Element>*>(address<Element>(matrix, row, column));
    };
    o = part(rows.o);
    if (rows.gate.data != nullptr) gate = part(rows.gate);
  }

  template <OutputGate kGate>
  __device__ Values f(const GatedRows& rows, Values& slope) const {
    Values values;
    if (rows.gate.data == nullptr) {
      for (int i = 0; i < kVector; ++i) values.at[i] = 1.0f, slope.at[i] = 0.0f;
      return values;
    }
    values.take(gate);
    for (int i = 0; i < kVector; ++i) {
      const float2 point = bench::gate<kGate>(values.at[i]);
      values.at[i] = point.x;
      slope.at[i] = point.y;
    }
    return values;
  }
};

/// The forward's 1 / sqrt(mean of y^2 + eps): made, and kept where it is wanted, or taken.
struct GroupRstd {
  MatrixTensor kept;
  bool is_given;
  float eps;
};

/// a = h(o) f(gate), or h(o f(gate)).
template <typename Element, OutputGate kGate, int kVectors>
__global__ void __launch_bounds__(kMostThreads)
    normed_gate_kernel(std::int64_t M, int groups, GatedRows rows, GroupRstd group_rstd,
                       MatrixTensor a) {
  const int group = static_cast<int>(blockIdx.x % groups);
  const std::int64_t row = std::int64_t{blockIdx.x / groups} * blockDim.y + threadIdx.y;
  const bool is_row = row < M;
  Values y[kVectors] = {}, f[kVectors] = {}, slope;
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const Place at(rows, group, v);
    if (!is_row || !at.is_inside) continue;
    GatedPart<Element> part;
    part.load(rows, row, at.column);
    y[v].take(part.o);
    f[v] = part.template f<kGate>(rows, slope);
    for (int i = 0; i < kVector; ++i) {
      if (rows.norm_behind_gate) y[v].at[i] *= f[v].at[i];
      squares += y[v].at[i] * y[v].at[i];
    }
  }
  float rstd = 0.0f;
  if (!group_rstd.is_given) {
    rstd = 1.0f / sqrtf(team_sum(squares) / rows.group_width + group_rstd.eps);
  } else if (is_row) {
    rstd = *address<float>(group_rstd.kept, row, group);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const Place at(rows, group, v);
    if (!is_row || !at.is_inside) continue;
    const Values weight = weights<Element>(rows.group_norm_weight, at.weight, 1.0f);
    for (int i = 0; i < kVector; ++i) {
      y[v].at[i] *= rstd * weight.at[i];
      if (!rows.norm_behind_gate) y[v].at[i] *= f[v].at[i];
    }
    y[v].store(address<Element>(a, row, at.column));
  }
  if (is_row && threadIdx.x == 0 && !group_rstd.is_given && group_rstd.kept.data != nullptr) {
    *address<float>(group_rstd.kept, row, group) = rstd;
  }
}

/// With y what is normalised, r its rstd, m = y r and e the gradient by h: dy = r (e w - m mean(e w
/// m)), and the weight's is the sum of e m. The bound is no number of threads, but of registers:
/// for 24 warps of a multiprocessor, or 20.
template <typename Element, OutputGate kGate, int kVectors>
__global__ void __launch_bounds__(kVectors == 1 ? 768 : 640)
    normed_gate_backward_kernel(std::int64_t M, int groups, GatedRows rows, MatrixTensor group_rstd,
                                MatrixTensor d_a, GateGradients to) {
  const int group = static_cast<int>(blockIdx.x % groups);
  const std::int64_t steps = (M - 1) / blockDim.y + 1;
  const std::int64_t slices = gridDim.x / groups, slice = blockIdx.x / groups;
  const int end = static_cast<int>(steps * (slice + 1) / slices);
  Values sum[kVectors] = {};
  for (int step = static_cast<int>(steps * slice / slices); step < end; ++step) {
    const std::int64_t row = std::int64_t{step} * blockDim.y + threadIdx.y;
    const bool is_row = row < M;
    const float rstd = is_row ? *address<float>(group_rstd, row, group) : 0.0f;
    // Kept as they are, and computed with twice: registers are few.
    GatedPart<Element> parts[kVectors];
    Part<Element> d_parts[kVectors];
    float along = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Place at(rows, group, v);
      if (!is_row || !at.is_inside) continue;
      parts[v].load(rows, row, at.column);
      d_parts[v] = *reinterpret_cast<const Part<Element>*>(address<Element>(d_a, row, at.column));
      const Values weight = weights<Element>(rows.group_norm_weight, at.weight, 1.0f);
      Values o, d, slope;
      o.take(parts[v].o);
      d.take(d_parts[v]);
      const Values f = parts[v].template f<kGate>(rows, slope);
      for (int i = 0; i < kVector; ++i) {
        // Of both orders: y e.
        const float product = d.at[i] * o.at[i] * f.at[i] * rstd;
        sum[v].at[i] += product;
        along += product * weight.at[i];
      }
    }
    const float mean = team_sum(along) / rows.group_width;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Place at(rows, group, v);
      if (!is_row || !at.is_inside) continue;
      const Values weight = weights<Element>(rows.group_norm_weight, at.weight, 1.0f);
      forget(parts[v].o);
      forget(parts[v].gate);
      forget(d_parts[v]);
      Values o, d, slope;
      o.take(parts[v].o);
      d.take(d_parts[v]);
      Values f = parts[v].template f<kGate>(rows, slope);
      for (int i = 0; i < kVector; ++i) {
        const float ew = d.at[i] * weight.at[i];
        if (rows.norm_behind_gate) {
          const float dy = rstd * (ew - o.at[i] * f.at[i] * rstd * mean);
          d.at[i] = dy * f.at[i];
          f.at[i] = dy * o.at[i] * slope.at[i];
        } else {
          const float m = o.at[i] * rstd;
          d.at[i] = rstd * (ew * f.at[i] - m * mean);
          f.at[i] = ew * m * slope.at[i];
        }
      }
      if (to.d_o.data != nullptr) d.store(address<Element>(to.d_o, row, at.column));
      if (to.d_gate.data != nullptr) f.store(address<Element>(to.d_gate, row, at.column));
    }
  }
  if (to.sums == nullptr) return;
  // Teams are added up in the block; where the block is one team, it has only its own.
  alignas(16) __shared__ float shared[kThreads * kVector];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const Place at(rows, group, v);
    if (blockDim.y > 1) {
      __syncthreads();
      sum[v].store(&shared[(threadIdx.y * blockDim.x + threadIdx.x) * kVector]);
      __syncthreads();
      for (unsigned team = 1; threadIdx.y == 0 && team < blockDim.y; ++team) {
        for (int i = 0; i < kVector; ++i) {
          sum[v].at[i] += shared[(team * blockDim.x + threadIdx.x) * kVector + i];
        }
      }
    }
    if (threadIdx.y > 0 || !at.is_inside) continue;
    sum[v].store(to.sums + std::int64_t{blockIdx.x} * rows.group_width + at.in_group);
  }
}

/// A matrix, of which d_bias is the sum.
template <typename Element>
struct RowsOf {
  MatrixTensor matrix;
  __device__ Values operator()(std::int64_t row, int column) const {
    Values values;
    values.load(address<Element>(matrix, row, column));
    return values;
  }
};

/// A bias in the product's dtype, as its epilogue takes it.
template <typename Element>
__global__ void __launch_bounds__(kThreads)
    round_kernel(const float* from, int count, Element* to) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) to[i] = Element(from[i]);
}

/// Calls body(Element{}, std::integral_constant of the gate).
template <class Body>
void with_gate(DType dtype, OutputGate gate, const Body& body) {
  with_types(dtype, dtype, [&](auto element, auto) {
    const auto with = [&]<OutputGate kGate>() {
      body(element, std::integral_constant<OutputGate, kGate>{});
    };
    switch (gate) {
      case OutputGate::kNone: return with.template operator()<OutputGate::kNone>();
      case OutputGate::kSilu: return with.template operator()<OutputGate::kSilu>();
      case OutputGate::kSigmoid: return with.template operator()<OutputGate::kSigmoid>();
    }
  });
}

/// The same, and with the number of vectors of a thread.
template <class Body>
void with_teams(DType dtype, OutputGate gate, const Teams& teams, const Body& body) {
  with_gate(dtype, gate, [&](auto element, auto constant) {
    teams.vectors == 1 ? body(element, constant, std::integral_constant<int, 1>{})
                       : body(element, constant, std::integral_constant<int, 2>{});
  });
}

template <class Problem>
NormedSum normed_sum(const Problem& problem, const MatrixTensor& sum) {
  NormedSum rows{problem.dtype, problem.M,           problem.d, sum,
                 problem.norm,  problem.norm_weight, {},        0};
  if constexpr (requires { problem.eps; }) {
    rows.bias = problem.norm_bias;
    rows.eps = problem.eps;
  }
  return rows;
}

void check_vector(const void* data, DType dtype, int columns) {
  check_matrix(kName, {const_cast<void*>(data), columns}, dtype, columns);
}

/// Checks what both directions have.
template <class Problem>
void check_inputs(const Problem& problem) {
  check_baseline(problem);
  const GatedRows& rows = problem.rows;
  for (const MatrixTensor& matrix : {rows.o, rows.gate, problem.gated, problem.weight}) {
    check_matrix(kName, matrix, problem.dtype, problem.d_in);
  }
  check_matrix(kName, problem.sum, problem.dtype, problem.d);
  if (problem.norm != OutputNorm::kNone) check_norm(kName, normed_sum(problem, problem.sum));
  if (rows.group_width == 0) return;
  if (rows.group_width % kVector != 0) {
    throw Unsupported("[" + std::string(kName) + "] group_width must be a multiple of 8");
  }
  if (rows.group_width > Teams::kMostVectors * kMostThreads * kVector) {
    throw Unsupported("[" + std::string(kName) + "] group_width must be at most 8192");
  }
  check_vector(rows.group_norm_weight.data, rows.group_norm_weight.dtype,
               rows.group_weight_repeats ? rows.group_width : problem.d_in);
}

void check(const GatedOutputForwardProblem& problem) {
  check_inputs(problem);
  for (const MatrixTensor& matrix : {problem.residual, problem.out}) {
    check_matrix(kName, matrix, problem.dtype, problem.d);
  }
  check_vector(problem.bias.data, problem.bias.dtype, problem.d);
}

void check(const GatedOutputBackwardProblem& problem) {
  check_inputs(problem);
  for (const MatrixTensor& matrix : {problem.d_out, problem.d_sum, problem.d_residual}) {
    check_matrix(kName, matrix, problem.dtype, problem.d);
  }
  for (const MatrixTensor& matrix : {problem.d_o, problem.d_gate}) {
    check_matrix(kName, matrix, problem.dtype, problem.d_in);
  }
  check_matrix(kName, problem.d_weight, problem.d_weight_dtype, problem.d_in);
}

bool wants_gate(const GatedOutputBackwardProblem& problem) {
  return problem.d_o.data != nullptr || problem.d_gate.data != nullptr ||
         problem.d_group_norm_weight.data != nullptr;
}

/// What lies between the kernels.
struct Intermediates {
  std::size_t a = 0, sum = 0, bias = 0, d_residual = 0, d_a = 0, sums = 0, matmul = 0, bytes = 0;

  /// Of a forward, a backward, or both in turn; either may be null.
  Intermediates(const GatedOutputForwardProblem* forward,
                const GatedOutputBackwardProblem* backward) {
    cuda::WorkspaceLayout layout;
    const auto wide = [](const auto& problem) { return problem.M * problem.d_in * 2; };
    const auto narrow = [](const auto& problem) { return problem.M * problem.d * 2; };
    a = layout.add(forward ? wide(*forward) : wide(*backward));
    if (forward != nullptr) {
      sum = layout.add(narrow(*forward));
      bias = layout.add(forward->d * 2);
    }
    if (backward != nullptr) {
      d_residual = layout.add(narrow(*backward));
      d_a = layout.add(wide(*backward));
      sums = layout.add(sums_bytes(*backward));
    }
    matmul = layout.add(kMatmulWorkspaceBytes);
    bytes = layout.bytes();
  }

 private:
  static std::size_t sums_bytes(const GatedOutputBackwardProblem& p) {
    const std::size_t norm = p.norm != OutputNorm::kNone
                                 ? output_norm_sums_bytes(normed_sum(p, p.sum))
                                 : sum_slices(p.M) * sizeof(float) * p.d;
    if (p.rows.group_width == 0) return norm;
    return std::max(norm, sizeof(float) * Teams(p.rows.group_width, p.d_in).slices(p.M) * p.d_in);
  }
};

/// What both directions' kernels take.
template <class Problem>
class Calls {
 public:
  Calls(const Problem& problem, const Intermediates& at, const cuda::ScratchMemory& scratch,
        const Context& context)
      : p_(problem),
        at_(at),
        scratch_(scratch),
        stream_(static_cast<cudaStream_t>(context.stream.handle)) {}

 protected:
  MatrixTensor in_workspace(std::size_t offset, int columns) const {
    return {scratch_.at<void>(offset), columns};
  }
  bool has_groups() const { return p_.rows.group_width > 0; }
  Teams teams() const { return Teams(p_.rows.group_width, p_.d_in); }
  Threads threads() const { return Threads(p_.M, p_.d_in / kVector); }

  void product(const BatchedProduct& product) const {
    multiply(product, scratch_.at<void>(at_.matmul), stream_);
  }

  /// Makes a, in `to` or the workspace.
  MatrixTensor made_a(MatrixTensor to) const {
    if (to.data == nullptr) to = in_workspace(at_.a, p_.d_in);
    if (!has_groups()) {
      with_gate(p_.dtype, p_.rows.gate_activation, [&](auto element, auto gate) {
        gate_kernel<decltype(element), decltype(gate)::value>
            <<<threads().grid, threads().block, 0, stream_>>>(p_.M, p_.d_in, p_.rows, to);
      });
      return to;
    }
    GroupRstd group_rstd{p_.group_rstd, true, 0.0f};
    if constexpr (requires { p_.group_eps; }) {
      group_rstd = {p_.group_rstd, false, static_cast<float>(p_.group_eps)};
    }
    const Teams by = teams();
    with_teams(p_.dtype, p_.rows.gate_activation, by, [&](auto element, auto gate, auto vectors) {
      normed_gate_kernel<decltype(element), decltype(gate)::value, decltype(vectors)::value>
          <<<by.blocks(p_.M), by.block, 0, stream_>>>(p_.M, by.groups, p_.rows, group_rstd, to);
    });
    return to;
  }

  const Problem& p_;
  const Intermediates& at_;
  const cuda::ScratchMemory& scratch_;
  cudaStream_t stream_;
};

class Forward : Calls<GatedOutputForwardProblem> {
 public:
  using Calls::Calls;

  /// Returns a, which it leaves in the workspace where the caller does not want it.
  MatrixTensor run() const {
    if (p_.M == 0) return {};
    const MatrixTensor a = p_.rows.is_o() ? p_.rows.o : made_a(p_.gated);
    const bool normalizes = p_.norm != OutputNorm::kNone;
    const MatrixTensor sum = !normalizes              ? p_.out
                             : p_.sum.data != nullptr ? p_.sum
                                                      : in_workspace(at_.sum, p_.d);
    product({.dtype = cuda_type(p_.dtype),
             .batch = 1,
             .M = p_.M,
             .N = p_.d,
             .K = p_.d_in,
             .alpha = 1.0f,
             .a = {a.data, false, a.row_stride},
             .b = {p_.weight.data, true, p_.weight.row_stride},
             .d = sum.data,
             .d_row_stride = sum.row_stride,
             .c = p_.residual.data,
             .c_row_stride = p_.residual.row_stride,
             .bias = rounded_bias()});
    if (normalizes) normalize(normed_sum(p_, sum), p_.out, p_.mean, p_.rstd, stream_);
    return a;
  }

 private:
  /// The bias in the product's dtype, or null.
  const void* rounded_bias() const {
    if (p_.bias.data == nullptr || p_.bias.dtype == p_.dtype) return p_.bias.data;
    with_types(p_.dtype, p_.dtype, [&](auto element, auto) {
      using Element = decltype(element);
      round_kernel<Element><<<(p_.d - 1) / kThreads + 1, kThreads, 0, stream_>>>(
          static_cast<const float*>(p_.bias.data), p_.d, scratch_.at<Element>(at_.bias));
    });
    return scratch_.at<void>(at_.bias);
  }
};

class Backward : Calls<GatedOutputBackwardProblem> {
 public:
  using Calls::Calls;

  /// `a` is a forward's, or null.
  void run(MatrixTensor a) const {
    const MatrixTensor d_residual = sum_backward();
    if (p_.M == 0) return clear_gradients();
    if (p_.d_weight.data != nullptr) {
      if (a.data == nullptr) a = p_.rows.is_o() ? p_.rows.o : p_.gated;
      if (a.data == nullptr) a = made_a({});
      product({.dtype = cuda_type(p_.dtype),
               .batch = 1,
               .M = p_.d,
               .N = p_.d_in,
               .K = p_.M,
               .alpha = 1.0f,
               .a = {d_residual.data, true, d_residual.row_stride},
               .b = {a.data, false, a.row_stride},
               .d = p_.d_weight.data,
               .d_row_stride = p_.d_weight.row_stride,
               .fp32 = p_.d_weight_dtype == DType::kFloat32,
               .accumulate = p_.accumulate});
    }
    if (!wants_gate(p_)) return;
    const MatrixTensor d_a = p_.rows.is_o() ? p_.d_o : in_workspace(at_.d_a, p_.d_in);
    product({.dtype = cuda_type(p_.dtype),
             .batch = 1,
             .M = p_.M,
             .N = p_.d_in,
             .K = p_.d,
             .alpha = 1.0f,
             .a = {d_residual.data, false, d_residual.row_stride},
             .b = {p_.weight.data, false, p_.weight.row_stride},
             .d = d_a.data,
             .d_row_stride = d_a.row_stride});
    if (!p_.rows.is_o()) gate_backward(d_a);
  }

 private:
  /// Makes d_residual, and sums over its rows and d_out's. Without a norm it is d_out.
  MatrixTensor sum_backward() const {
    if (p_.norm == OutputNorm::kNone) {
      if (p_.d_bias.data != nullptr && p_.M > 0) {
        with_types(p_.dtype, p_.d_bias.dtype, [&]<class Element, class Out>(Element, Out) {
          sum_columns(RowsOf<Element>{p_.d_out}, p_.M, p_.d, sums(),
                      static_cast<Out*>(p_.d_bias.data), p_.accumulate, stream_);
        });
      }
      if (p_.d_residual.data != nullptr && p_.M > 0) {
        cuda::cuda_check(
            cudaMemcpy2DAsync(p_.d_residual.data, p_.d_residual.row_stride * 2, p_.d_out.data,
                              p_.d_out.row_stride * 2, std::size_t{2} * p_.d, p_.M,
                              cudaMemcpyDeviceToDevice, stream_),
            kName);
      }
      return p_.d_out;
    }
    const bool needs =
        p_.d_residual.data != nullptr || p_.d_weight.data != nullptr || wants_gate(p_);
    MatrixTensor d_residual = p_.d_residual;
    if (needs && d_residual.data == nullptr) d_residual = in_workspace(at_.d_residual, p_.d);
    normalize_backward(normed_sum(p_, p_.sum),
                       {p_.mean, p_.rstd, p_.d_out, p_.d_sum, d_residual, p_.d_norm_weight,
                        p_.d_norm_bias, p_.d_bias, p_.accumulate},
                       sums(), stream_);
    return d_residual;
  }

  void gate_backward(const MatrixTensor& d_a) const {
    const WeightVectorGradient& d_weight = p_.d_group_norm_weight;
    const GateGradients to{p_.d_o, p_.d_gate, d_weight.data != nullptr ? sums() : nullptr};
    const OutputGate activation = p_.rows.gate_activation;
    if (!has_groups()) {
      with_gate(p_.dtype, activation, [&](auto element, auto gate) {
        gate_backward_kernel<decltype(element), decltype(gate)::value>
            <<<threads().grid, threads().block, 0, stream_>>>(p_.M, p_.d_in, p_.rows, d_a, to);
      });
      return;
    }
    const Teams by = teams();
    const int slices = by.slices(p_.M);
    with_teams(p_.dtype, activation, by, [&](auto element, auto gate, auto vectors) {
      normed_gate_backward_kernel<decltype(element), decltype(gate)::value,
                                  decltype(vectors)::value>
          <<<slices * by.groups, by.block, 0, stream_>>>(p_.M, by.groups, p_.rows, p_.group_rstd,
                                                         d_a, to);
    });
    if (d_weight.data == nullptr) return;
    constexpr int kSumWays = 32;
    const bool repeats = p_.rows.group_weight_repeats;
    with_types(p_.dtype, d_weight.dtype, [&]<class Element, class Out>(Element, Out) {
      sum_many_slices<kSumWays>(sums(), repeats ? slices * by.groups : slices,
                                repeats ? p_.rows.group_width : p_.d_in,
                                static_cast<Out*>(d_weight.data), p_.accumulate, stream_);
    });
  }

  float* sums() const { return scratch_.at<float>(at_.sums); }

  /// Sums over no rows.
  void clear_gradients() const {
    if (p_.accumulate) return;
    const auto clear = [&](void* data, std::int64_t row_stride, DType dtype, std::int64_t rows,
                           int columns) {
      if (data != nullptr) {
        clear_matrix(kName, {data, row_stride}, dtype, rows, columns, stream_);
      }
    };
    const int repeated = p_.rows.group_weight_repeats ? p_.rows.group_width : p_.d_in;
    clear(p_.d_weight.data, p_.d_weight.row_stride, p_.d_weight_dtype, p_.d, p_.d_in);
    clear(p_.d_bias.data, p_.d, p_.d_bias.dtype, 1, p_.d);
    clear(p_.d_group_norm_weight.data, repeated, p_.d_group_norm_weight.dtype, 1, repeated);
  }
};

/// Runs a forward, a backward, or both in turn.
void run(const GatedOutputForwardProblem* forward, const GatedOutputBackwardProblem* backward,
         const Context& context) {
  const Intermediates at(forward, backward);
  const cuda::DeviceGuard guard(forward ? forward->device.index : backward->device.index);
  const cuda::ScratchMemory scratch(kName, context, at.bytes);
  MatrixTensor a;
  if (forward != nullptr) a = Forward(*forward, at, scratch, context).run();
  if (backward != nullptr) Backward(*backward, at, scratch, context).run(a);
  cuda::cuda_check(cudaGetLastError(), kName);
}

}  // namespace

void unfused_gated_output(const GatedOutputForwardProblem& problem, const Context& context) {
  check(problem);
  run(&problem, nullptr, context);
}

std::size_t unfused_gated_output_workspace_bytes(const GatedOutputForwardProblem& problem) {
  check(problem);
  return Intermediates(&problem, nullptr).bytes;
}

void unfused_gated_output_backward(const GatedOutputBackwardProblem& problem,
                                   const Context& context) {
  check(problem);
  run(nullptr, &problem, context);
}

std::size_t unfused_gated_output_backward_workspace_bytes(
    const GatedOutputBackwardProblem& problem) {
  check(problem);
  return Intermediates(nullptr, &problem).bytes;
}

void unfused_gated_output_both(const GatedOutputForwardProblem& forward,
                               const GatedOutputBackwardProblem& backward, const Context& context) {
  check(forward);
  check(backward);
  run(&forward, &backward, context);
}

std::size_t unfused_gated_output_both_workspace_bytes(const GatedOutputForwardProblem& forward,
                                                      const GatedOutputBackwardProblem& backward) {
  check(forward);
  check(backward);
  return Intermediates(&forward, &backward).bytes;
}

}  // namespace tandem::bench
