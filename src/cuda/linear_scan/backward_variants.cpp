// linear_scan_backward on CUDA, composed of matrix products and gated_scan_backward. Host only.
//
// x = u W^T, where states are needed, and the scan's gradients are computed in fp32: every tensor
// that gated_scan_backward reads or writes is fp32 in the workspace. dx enters du = dx W and
// d_weight = dx^T u as two 16-bit tensors whose sum has twice the digits. So nothing is rounded to
// 16 bits but the results.
#include "cuda/linear_scan/backward_variants.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/gemm/config.h"
#include "cuda/linear_scan/projection.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/plan.h"
#include "cuda/runtime/tensor_map.h"
#include "cuda/runtime/workspace.h"
#include "ops/gated_scan.h"
#include "ops/linear_scan.h"

namespace tandem::cuda::linear_scan {
namespace {

constexpr const char* kBackward = "linear_scan_backward";
constexpr float kLowScale = 2048.0f;  // a rounding to fp16 leaves a rest at least so much smaller

template <class Element>
void add_variant(std::vector<BackwardVariant>& table, DType dtype) {
  table.push_back({std::string(kBackward) + ".sm90." + to_string(dtype), dtype,
                   &launch_product<Element, Product::kProject>,
                   &launch_product<Element, Product::kInput>,
                   &launch_product<Element, Product::kWeight>, &gemm::launch_widen<Element>,
                   &gemm::launch_narrow<Element>, &gemm::launch_split<Element>,
                   &gemm::launch_copy<Element>, &gemm::launch_sum<Element>});
}

/// The scan's own backward, every tensor in fp32: in the workspace, or the caller's where it is
/// fp32.
GatedScanBackwardProblem scan_problem(const LinearScanBackwardProblem& problem,
                                      const BackwardPlan& plan, char* base) {
  const LinearScanForwardProblem& f = problem.forward;
  const auto at = [&](std::size_t offset) { return tokens_at(base, offset, f.T, f.D); };
  GatedScanBackwardProblem scan;
  static_cast<ScanRecurrence&>(scan.forward) = f;
  scan.forward.dtype = scan.forward.decay_dtype = DType::kFloat32;
  if (f.decay_dtype != DType::kFloat32) scan.forward.decay = at(plan.decay);
  if (f.gate.data) scan.forward.gate = at(plan.gate);
  scan.forward.x = at(plan.needs_x ? plan.x : plan.d_out);  // without needs_x it is not read
  static_cast<ScanGradients&>(scan) = problem;
  scan.d_out = at(plan.d_out);
  if (problem.d_decay.data && f.decay_dtype != DType::kFloat32) scan.d_decay = at(plan.d_decay);
  if (problem.d_gate.data) scan.d_gate = at(plan.d_gate);
  if (plan.needs_dx) scan.dx = at(plan.dx);
  return scan;
}

struct Call {
  const LinearScanBackwardProblem& problem;
  const LinearScanForwardProblem& f;
  const BackwardVariant& variant;
  const BackwardPlan& plan;
  char* base;
  int multiprocessors;
  void* stream;

  Projection projection() const {
    return {kBackward,
            variant,
            f,
            plan.copies_u ? base + plan.u : nullptr,
            plan.copies_weight ? base + plan.weight : nullptr,
            stream};
  }
  CUtensorMap map(const TokenTensor& tensor, const TileExtents& extents, int rows) const {
    return encode(gemm::plan_operand(tensor, f.dtype, extents, rows));
  }

  static constexpr int rows_a(Product product) { return gemm::box_rows_a(layout_of(product)); }
  static constexpr int rows_b(Product product) {
    return gemm::box_rows_b(layout_of(product), kProductColumns);
  }
  template <Product kProduct>
  ProductParams<kProduct> product(int rows, int columns, int depth) const {
    ProductParams<kProduct> params{};
    params.B = f.B;
    params.T = f.T;
    params.rows = rows;
    params.set_columns(0, columns, kProductColumns);
    std::fill_n(params.depth, params.kTerms, depth);
    return params;
  }
  /// Sets A to dx, as two terms: low first. B is the same for both.
  template <Product kProduct>
  void set_split(ProductParams<kProduct>& operands, const CUtensorMap& b) const {
    const int rows = rows_a(kProduct);
    const TileExtents extents{f.B, f.T, 1, f.D};
    const auto term = [&](std::size_t offset) {
      return map(tokens_at(base, offset, f.T, gemm::padded(f.D)), extents, rows);
    };
    operands.a[0] = term(plan.low);
    operands.a[1] = term(plan.high);
    operands.b[0] = operands.b[1] = b;
    operands.term_scale = 1.0f / kLowScale;
  }

  void write_du() const {
    auto params = product<Product::kInput>(static_cast<int>(f.T), f.d, f.D);
    set_split(params, map(projection().weight(), weight_extents(f), rows_b(Product::kInput)));
    params.narrow = problem.du;
    const TensorMapPlan du = plan_stored_tile(
        "du", {problem.du.data, problem.du.batch_stride, problem.du.time_stride, 0}, f.dtype,
        u_extents(f), gemm::kTileDepth);
    params.stores_by_tma = du.problem.empty();
    if (params.stores_by_tma) params.narrow_map = encode(du);
    variant.input(params, multiprocessors, stream);
  }
  void write_d_weight() const {
    if (plan.weight_slices > 0) {
      auto params = product<Product::kWeight>(f.D, f.d, 0);
      set_split(params, map(projection().u(), u_extents(f), rows_b(Product::kWeight)));
      params.cu_seqlens = f.cu_seqlens;
      params.N = f.N;
      params.slices = plan.weight_slices;
      params.wide = reinterpret_cast<float*>(base + plan.partial_sums);
      variant.weight(params, multiprocessors, stream);
    }
    variant.sum(kBackward,
                {reinterpret_cast<const float*>(base + plan.partial_sums), plan.weight_slices, f.D,
                 f.d, problem.d_weight},
                stream);
  }

  void convert(BackwardVariant::Convert launch, const TokenTensor& from,
               const TokenTensor& to) const {
    launch(kBackward, {f.B, f.T, f.D, from, to, {}}, stream);
  }
  void widen_inputs(const GatedScanBackwardProblem& scan) const {
    if (f.decay_dtype != DType::kFloat32) convert(variant.widen, f.decay, scan.forward.decay);
    if (f.gate.data) convert(variant.widen, f.gate, scan.forward.gate);
    convert(variant.widen, problem.d_out, scan.d_out);
  }
  void narrow_outputs(const GatedScanBackwardProblem& scan) const {
    if (problem.d_decay.data && f.decay_dtype != DType::kFloat32) {
      convert(variant.narrow, scan.d_decay, problem.d_decay);
    }
    if (problem.d_gate.data) convert(variant.narrow, scan.d_gate, problem.d_gate);
    if (!plan.needs_dx) return;
    gemm::ConvertParams params{f.B,
                               f.T,
                               f.D,
                               scan.dx,
                               tokens_at(base, plan.high, f.T, gemm::padded(f.D)),
                               tokens_at(base, plan.low, f.T, gemm::padded(f.D)),
                               kLowScale};
    variant.split(kBackward, params, stream);
  }
};

const BackwardVariant& choose(const LinearScanBackwardProblem& problem,
                              const DeviceProperties& device, const CallOptions& options) {
  return choose_variant(kBackward, backward_variants(), device, options,
                        [&](const BackwardVariant& one) { return reason_against(one, problem); });
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const auto table = [] {
    std::vector<BackwardVariant> rows;
    add_variant<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_variant<__half>(rows, DType::kFloat16);
#endif
    return rows;
  }();
  return table;
}

std::string reason_against(const BackwardVariant& variant,
                           const LinearScanBackwardProblem& problem) {
  return reason_against_products(variant.dtype, problem.forward);
}

BackwardPlan plan_backward(const LinearScanBackwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant) {
  const LinearScanForwardProblem& f = problem.forward;
  BackwardPlan plan;
  const std::int64_t tokens = f.B * f.T;
  plan.needs_x = (problem.d_decay.data || problem.d_gate.data) && tokens > 0;
  plan.needs_dx = problem.du.data || problem.d_weight.data;
  plan.copies_u = (plan.needs_x || problem.d_weight.data) && tokens > 0 && !tma_reads_u(f);
  plan.copies_weight = (plan.needs_x || problem.du.data) && tokens > 0 && !tma_reads_weight(f);
  if (problem.d_weight.data && tokens > 0) {
    // Enough tiles for all multiprocessors, each with some steps to add up.
    const std::int64_t tiles = ceil_div(f.D, gemm::kTileRows) * ceil_div(f.d, kProductColumns);
    const std::int64_t steps = f.B * ceil_div(f.T, gemm::kTileDepth);
    plan.weight_slices = static_cast<int>(
        std::max<std::int64_t>(1, std::min(device.multiprocessors / tiles, steps / 4)));
  }

  WorkspaceLayout workspace;
  const auto add = [&](bool wanted, std::int64_t elements, int size) {
    return workspace.add(wanted ? elements * size : 0);
  };
  const std::int64_t wide = tokens * f.D;
  plan.u = add(plan.copies_u, tokens * gemm::padded(f.d), 2);
  plan.weight = add(plan.copies_weight, f.D * gemm::padded(f.d), 2);
  plan.x = add(plan.needs_x, wide, 4);
  plan.decay = add(f.decay_dtype != DType::kFloat32, wide, 4);
  plan.gate = add(f.gate.data, wide, 4);
  plan.d_out = add(true, wide, 4);
  plan.dx = add(plan.needs_dx, wide, 4);
  plan.d_decay = add(problem.d_decay.data && f.decay_dtype != DType::kFloat32, wide, 4);
  plan.d_gate = add(problem.d_gate.data, wide, 4);
  plan.high = add(plan.needs_dx, tokens * gemm::padded(f.D), 2);
  plan.low = add(plan.needs_dx, tokens * gemm::padded(f.D), 2);
  plan.partial_sums = add(true, std::int64_t{plan.weight_slices} * f.D * f.d, 4);
  plan.scan = workspace.bytes();
  plan.scan_bytes = gated_scan_backward_workspace_bytes(
      scan_problem(problem, plan, reinterpret_cast<char*>(kWorkspaceAlignment)), device,
      {.batch_invariant = batch_invariant});
  plan.workspace_bytes = plan.scan + plan.scan_bytes;
  return plan;
}

}  // namespace tandem::cuda::linear_scan

namespace tandem::cuda {

using namespace linear_scan;

void linear_scan_backward(const LinearScanBackwardProblem& problem, const Context& context,
                          const CallOptions& options) {
  const LinearScanForwardProblem& f = problem.forward;
  const DeviceProperties& device = device_properties(f.device);
  const BackwardVariant& variant = choose(problem, device, options);
  const BackwardPlan plan = plan_backward(problem, device, options.batch_invariant);
  const CallScope scope(variant.name, f.device.index);
  const ScratchMemory scratch(kBackward, context, plan.workspace_bytes);
  const Call call{problem,
                  f,
                  variant,
                  plan,
                  scratch.at<char>(0),
                  device.multiprocessors,
                  context.stream.handle};
  const bool tokens = f.B > 0 && f.T > 0;
  const GatedScanBackwardProblem scan = scan_problem(problem, plan, call.base);
  if (tokens) {
    const Projection projection = call.projection();
    projection.copy_operands();
    if (plan.needs_x) projection.write(reinterpret_cast<float*>(call.base + plan.x));
    call.widen_inputs(scan);
  }
  Context inner = context;
  inner.workspace = {call.base + plan.scan, plan.scan_bytes};
  if (plan.scan_bytes == 0) inner.workspace = {};
  gated_scan_backward(scan, inner, {.batch_invariant = options.batch_invariant});
  if (tokens) call.narrow_outputs(scan);
  if (tokens && problem.du.data) call.write_du();
  if (problem.d_weight.data) call.write_d_weight();
}

std::size_t linear_scan_backward_workspace_bytes(const LinearScanBackwardProblem& problem,
                                                 const DeviceProperties& device,
                                                 const CallOptions& options) {
  choose(problem, device, options);
  return plan_backward(problem, device, options.batch_invariant).workspace_bytes;
}

}  // namespace tandem::cuda
