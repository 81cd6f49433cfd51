// linear_scan_backward on CUDA, composed of matrix products and gated_scan_backward. Host only.
//
// The scan's gradients come from gated_scan_backward, over the caller's tensors and x, which the
// forward kept or a product computes again. It rounds dx to 16 bits, of which du = dx W and
// d_weight = dx^T u are made.
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

template <class Element>
void add_variant(std::vector<BackwardVariant>& table, DType dtype) {
  table.push_back({std::string(kBackward) + ".sm90." + to_string(dtype), dtype,
                   &launch_product<Element, Product::kProject, kProductColumns>,
                   &launch_product<Element, Product::kInput, kProductColumns>,
                   &launch_product<Element, Product::kWeight, kProductColumns>,
                   &launch_product<Element, Product::kWeight, kWideColumns>,
                   &gemm::launch_widen<Element>, &gemm::launch_narrow<Element>,
                   &gemm::launch_sum_slices<Element>});
}

/// The scan's own backward.
GatedScanBackwardProblem scan_problem(const LinearScanBackwardProblem& problem,
                                      const BackwardPlan& plan, char* base) {
  const LinearScanForwardProblem& f = problem.forward;
  const auto at = [&](std::size_t offset) {
    return tokens_at(base, offset, f.T, gemm::padded(f.D));
  };
  GatedScanBackwardProblem scan;
  static_cast<ScanRecurrence&>(scan.forward) = f;
  static_cast<ScanGradients&>(scan) = problem;
  scan.forward.x = plan.projects    ? at(plan.x)
                   : problem.x.data ? problem.x
                                    : problem.d_out;  // which is not read: no states are needed
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

  int rows_a(Product product) const { return gemm::box_rows_a(layout_of(product), f.T); }
  ProductParams product(int rows, int columns, int depth, int tile_columns) const {
    ProductParams params{};
    params.B = f.B;
    params.T = f.T;
    params.rows = rows;
    params.set_columns(0, columns, tile_columns);
    params.depth[0] = depth;
    return params;
  }
  CUtensorMap dx_map(const GatedScanBackwardProblem& scan, Product product) const {
    return map(scan.dx, {f.B, f.T, 1, f.D}, rows_a(product));
  }

  void write_du(const GatedScanBackwardProblem& scan) const {
    ProductParams params = product(static_cast<int>(f.T), f.d, f.D, kProductColumns);
    params.a[0] = dx_map(scan, Product::kInput);
    params.b[0] = map(projection().weight(), weight_extents(f), gemm::kBoxRows);
    set_result(params, problem.du, f.dtype, u_extents(f));
    variant.input(kBackward, params, multiprocessors, stream);
  }
  void write_d_weight(const GatedScanBackwardProblem& scan) const {
    float* partial_sums = reinterpret_cast<float*>(base + plan.partial_sums);
    if (plan.weight_slices > 0) {
      const bool wide = plan.weight_columns == kWideColumns;
      ProductParams params = product(f.D, f.d, 0, plan.weight_columns);
      params.a[0] = dx_map(scan, Product::kWeight);
      params.b[0] = map(projection().u(), u_extents(f), gemm::kBoxRows);
      params.cu_seqlens = f.cu_seqlens;
      params.N = f.N;
      params.set_tokens(f.B, f.T, plan.weight_slices);
      params.wide = partial_sums;
      (wide ? variant.weight_wide : variant.weight)(kBackward, params, multiprocessors, stream);
    }
    gemm::SumSlicesParams sum;
    sum.partial_sums = partial_sums;
    sum.slices = plan.weight_slices;
    sum.rows = f.D;
    sum.columns = f.d;
    sum.result = problem.d_weight;
    variant.sum_slices(kBackward, sum, stream);
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
  const bool needs_x = (problem.d_decay.data || problem.d_gate.data) && tokens > 0;
  plan.projects = needs_x && problem.x.data == nullptr;
  plan.needs_dx = problem.du.data || problem.d_weight.data;
  plan.copies_u = (plan.projects || problem.d_weight.data) && tokens > 0 && !tma_reads_u(f);
  plan.copies_weight = (plan.projects || problem.du.data) && tokens > 0 && !tma_reads_weight(f);
  if (problem.d_weight.data && tokens > 0) {
    // Enough tiles for all multiprocessors, each with some steps to add up.
    const auto count_tiles = [&](int columns) {
      return ceil_div(f.D, gemm::kTileRows) * ceil_div(f.d, columns);
    };
    constexpr int kManyTiles = 16;
    if (count_tiles(kWideColumns) >= kManyTiles) plan.weight_columns = kWideColumns;
    const std::int64_t tiles = count_tiles(plan.weight_columns);
    const std::int64_t steps = f.B * ceil_div(f.T, gemm::kTileDepth);
    plan.weight_slices = static_cast<int>(
        std::max<std::int64_t>(1, std::min(device.multiprocessors / tiles, steps / 4)));
  }

  WorkspaceLayout workspace;
  const auto add = [&](bool wanted, std::int64_t elements, int size) {
    return workspace.add(wanted ? elements * size : 0);
  };
  plan.u = add(plan.copies_u, tokens * gemm::padded(f.d), 2);
  plan.weight = add(plan.copies_weight, f.D * gemm::padded(f.d), 2);
  plan.x = add(plan.projects, tokens * gemm::padded(f.D), 2);
  plan.dx = add(plan.needs_dx, tokens * gemm::padded(f.D), 2);
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
    if (plan.projects) projection.write(scan.forward.x);
  }
  Context inner = context;
  inner.workspace = {call.base + plan.scan, plan.scan_bytes};
  if (plan.scan_bytes == 0) inner.workspace = {};
  gated_scan_backward(scan, inner, {.batch_invariant = options.batch_invariant});
  if (tokens && problem.du.data) call.write_du(scan);
  if (problem.d_weight.data) call.write_d_weight(scan);
}

std::size_t linear_scan_backward_workspace_bytes(const LinearScanBackwardProblem& problem,
                                                 const DeviceProperties& device,
                                                 const CallOptions& options) {
  choose(problem, device, options);
  return plan_backward(problem, device, options.batch_invariant).workspace_bytes;
}

}  // namespace tandem::cuda
