// The variants of attention_forward on CUDA, and the launches that make up a call. Host only.
#include "cuda/attention/forward.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/clear.h"
#include "ops/attention.h"

namespace tandem::cuda::attention {
namespace {

constexpr const char* kOp = "attention_forward";

template <class Element>
void add_variants(std::vector<ForwardVariant>& table, DType dtype, bool copies) {
  const auto add = [&]<int kKeyDim, int kValueDim>() {
    table.push_back({variant_name(kOp, dtype, kKeyDim, kValueDim, copies), dtype, kKeyDim,
                     kValueDim, copies, &launch_attention_forward<Element, kKeyDim, kValueDim>});
  };
  add.template operator()<64, 64>();
  add.template operator()<96, 96>();
  add.template operator()<128, 128>();
  add.template operator()<192, 128>();
  add.template operator()<192, 192>();
  add.template operator()<256, 256>();
}

/// The tensors of a problem that the kernel copies by TMA, and o.
Operands operands_of(AttentionForwardProblem& problem) {
  Operands operands(problem.dtype);
  operands.add_input("q", problem.q, {problem.B, problem.TQ, problem.H, problem.K});
  operands.add_input("k", problem.k, {problem.B, problem.TK, problem.HKV, problem.K});
  operands.add_input("v", problem.v, {problem.B, problem.TK, problem.HKV, problem.V});
  operands.add_output("o", problem.o, {problem.B, problem.TQ, problem.H, problem.V});
  return operands;
}

/// How a call runs, and its workspace. The problem is the kernel's: copies stand for what was
/// given. Not to be moved: the operands point into it.
struct Plan {
  Plan(const AttentionForwardProblem& given, const DeviceProperties& device,
       const CallOptions& options)
      : problem(given), operands(operands_of(problem)), variant(choose(device, options)) {
    WorkspaceLayout workspace;
    if (variant.copies) operands.plan_copies(workspace);
    if (is_uneven()) ticket = workspace.add(sizeof(unsigned));
    workspace_bytes = workspace.bytes();
  }
  Plan(const Plan&) = delete;

  /// Whether tiles of queries see different numbers of keys: each multiprocessor then takes the
  /// next one when it is free.
  bool is_uneven() const {
    return is_bounded(problem.mask) || problem.cu_seqlens_q != nullptr ||
           problem.lengths_k != nullptr;
  }

  AttentionForwardProblem problem;
  Operands operands;
  const ForwardVariant& variant;
  std::size_t ticket = 0;
  std::size_t workspace_bytes = 0;

 private:
  const ForwardVariant& choose(const DeviceProperties& device, const CallOptions& options) const {
    const std::string misfit = operands.misfit();
    return choose_variant(kOp, forward_variants(), device, options, [&](const ForwardVariant& one) {
      return reason_against(one, problem, misfit);
    });
  }
};

void run(const AttentionForwardProblem& given, const Context& context, const CallOptions& options) {
  const DeviceProperties& device = device_properties(given.device);
  Plan plan(given, device, options);
  const AttentionForwardProblem& problem = plan.problem;
  const ForwardVariant& variant = plan.variant;
  if (problem.B == 0 || problem.TQ == 0) return;
  const CallScope scope(variant.name, problem.device.index);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* stream = context.stream.handle;
  AttentionForwardParams params;
  if (plan.is_uneven()) {
    params.ticket = scratch.at<unsigned>(plan.ticket);
    launch_clear(kOp, params.ticket, 1, stream);
  }
  plan.operands.copy_inputs(variant.name, scratch, stream);
  const ForwardTile tile = forward_tile(variant.key_dim, variant.value_dim);
  const auto map = [&](const StridedTensor& tensor, std::int64_t T, int heads, int dim, int rows) {
    return encode_rows(tensor, problem.dtype, {problem.B, T, heads, dim}, rows, problem.q.data);
  };
  constexpr int kWarpgroupRows = 64;
  params.problem = problem;
  params.q_map = map(problem.q, problem.TQ, problem.H, problem.K, kWarpgroupRows);
  params.k_map = map(problem.k, problem.TK, problem.HKV, problem.K, tile.keys);
  params.v_map = map(problem.v, problem.TK, problem.HKV, problem.V, tile.keys);
  params.multiprocessors = device.multiprocessors;
  variant.launch(variant.name.c_str(), params, stream);
  plan.operands.copy_outputs(variant.name, stream);
}

}  // namespace

const std::vector<ForwardVariant>& forward_variants() {
  static const std::vector<ForwardVariant> table = [] {
    std::vector<ForwardVariant> rows;
    for (const bool copies : {false, true}) {
      add_variants<__nv_bfloat16>(rows, DType::kBFloat16, copies);
#ifndef TANDEM_CUDA_DEV
      add_variants<__half>(rows, DType::kFloat16, copies);
#endif
    }
    return rows;
  }();
  return table;
}

std::string variant_name(const char* op, DType dtype, int key_dim, int value_dim, bool copies) {
  return std::string(op) + ".sm90." + to_string(dtype) + ".k" + std::to_string(key_dim) + "_v" +
         std::to_string(value_dim) + (copies ? ".copied" : "");
}

std::string common_reason(DType dtype, const AttentionSizes& sizes) {
  if (sizes.dtype != dtype) return "takes " + to_string(dtype) + ", got " + to_string(sizes.dtype);
  constexpr std::int64_t kMostTokens = 1 << 29, kTileRows = 64;
  const auto too_many = [](const char* axis, std::int64_t most, std::int64_t got) {
    return std::string("takes ") + axis + " below " + std::to_string(most) + ", got " +
           std::to_string(got);
  };
  if (sizes.TQ >= kMostTokens) return too_many("TQ", kMostTokens, sizes.TQ);
  if (sizes.TK >= kMostTokens) return too_many("TK", kMostTokens, sizes.TK);
  const std::int64_t tiles =
      ceil_div(std::max(sizes.TQ, sizes.TK), kTileRows) * std::max<std::int64_t>(sizes.B, 1) +
      sizes.N + 2;
  if (tiles > kMaxIndex / sizes.H) {
    return too_many("tiles of 64 tokens times heads", kMaxIndex, tiles * sizes.H);
  }
  return "";
}

std::string dims_reason(const AttentionSizes& sizes, int key_dim, int value_dim) {
  const auto reason = [](const char* axis, int dim, int most) {
    return "takes " + std::string(axis) + " <= " + std::to_string(most) + ", got " +
           std::to_string(dim);
  };
  if (sizes.K > key_dim) return reason("K", sizes.K, key_dim);
  return sizes.V > value_dim ? reason("V", sizes.V, value_dim) : "";
}

std::string reason_against(const ForwardVariant& variant, const AttentionForwardProblem& problem,
                           const std::string& misfit) {
  std::string reason = common_reason(variant.dtype, problem);
  if (reason.empty()) reason = dims_reason(problem, variant.key_dim, variant.value_dim);
  return reason.empty() && !variant.copies ? misfit : reason;
}

}  // namespace tandem::cuda::attention

namespace tandem::cuda {

void attention_forward(const AttentionForwardProblem& problem, const Context& context,
                       const CallOptions& options) {
  attention::run(problem, context, options);
}

std::size_t attention_forward_workspace_bytes(const AttentionForwardProblem& problem,
                                              const DeviceProperties& device,
                                              const CallOptions& options) {
  return attention::Plan(problem, device, options).workspace_bytes;
}

}  // namespace tandem::cuda
