// The variants of gated_scan on CUDA, and what each can run. Where predicted times are equal, the
// first in the table is chosen. Host only.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/gated_scan/config.h"
#include "cuda/gated_scan/layout.h"
#include "cuda/gated_scan/row_maps.h"
#include "cuda/gated_scan/variants.h"
#include "cuda/runtime/dtype_table.h"
#include "cuda/runtime/plan.h"
#include "cuda/scan/plan.h"

namespace tandem::cuda::gated_scan {
namespace {

template <class Config, class Kernel>
VariantOf<Kernel> describe(const char* direction, DType dtype, DType decay_dtype,
                           const Kernel& kernel) {
  return {std::string("gated_scan_") + direction + ".sm90." + to_string(dtype) +
              (decay_dtype == dtype ? "" : ".decay_" + to_string(decay_dtype)) +
              (Config::kOfProduct ? ".of_product" : "") + ".w" + std::to_string(kernel.width) +
              "_t" + std::to_string(kernel.tile_tokens) +
              (Config::kRows      ? ".tma"
               : Config::kAligned ? ""
                                  : ".scalar") +
              (Config::kPerSequence ? ".sequences" : ""),
          dtype,
          decay_dtype,
          Config::kAligned,
          Config::kPerSequence,
          kernel};
}

template <class Config>
void add_forward(std::vector<ForwardVariant>& table, DType dtype, DType decay_dtype) {
  table.push_back({describe<Config>("forward", dtype, decay_dtype, forward_kernel<Config>())});
}

template <class Config>
void add_backward(std::vector<BackwardVariant>& table, DType dtype, DType decay_dtype,
                  const ForwardKernel& states_kernel) {
  table.push_back(
      {describe<Config>("backward", dtype, decay_dtype, backward_kernel<Config>()), states_kernel});
}

template <class Element, class Decay>
void add_sequences_forward(std::vector<ForwardVariant>& table, DType dtype, DType decay_dtype) {
  add_forward<PerSequence<NarrowConfig<Element, Decay>>>(table, dtype, decay_dtype);
  add_forward<PerSequence<NarrowConfig<Element, Decay, false>>>(table, dtype, decay_dtype);
}

template <class Element>
void add_forward_16(std::vector<ForwardVariant>& table, DType dtype) {
  add_forward<WideConfig<Element, Element>>(table, dtype, dtype);
  add_forward<NarrowConfig<Element, Element>>(table, dtype, dtype);
  add_forward<SquareConfig<Element, Element>>(table, dtype, dtype);
  add_forward<TallConfig<Element, Element>>(table, dtype, dtype);
  add_forward<SlimConfig<Element, Element>>(table, dtype, dtype);
  add_forward<NarrowConfig<Element, Element, false>>(table, dtype, dtype);
  add_forward<NarrowConfig<Element, float>>(table, dtype, DType::kFloat32);
  add_forward<NarrowConfig<Element, float, false>>(table, dtype, DType::kFloat32);
  add_sequences_forward<Element, Element>(table, dtype, dtype);
  add_sequences_forward<Element, float>(table, dtype, DType::kFloat32);
}

template <class Element, class Decay>
void add_of_product(std::vector<ForwardVariant>& table, DType dtype, DType decay_dtype) {
  add_forward<OfProductConfig<Element, Decay>>(table, dtype, decay_dtype);
  add_forward<OfProductSquareConfig<Element, Decay>>(table, dtype, decay_dtype);
  if constexpr (std::is_same_v<Element, Decay>) {
    add_forward<OfProductWideConfig<Element, Decay>>(table, dtype, decay_dtype);
  }
  add_forward<OfProductConfig<Element, Decay, false>>(table, dtype, decay_dtype);
  add_forward<PerSequence<OfProductConfig<Element, Decay>>>(table, dtype, decay_dtype);
  add_forward<PerSequence<OfProductConfig<Element, Decay, false>>>(table, dtype, decay_dtype);
}

template <class Element, class Decay, bool kAligned>
void add_narrow_backward(std::vector<BackwardVariant>& table, DType dtype, DType decay_dtype) {
  add_backward<NarrowBackwardConfig<Element, Decay, kAligned>>(
      table, dtype, decay_dtype, forward_kernel<NarrowStatesConfig<Element, Decay, kAligned>>());
}

template <class Element, class Decay, bool kAligned>
void add_sequences_backward(std::vector<BackwardVariant>& table, DType dtype, DType decay_dtype) {
  add_backward<PerSequence<NarrowBackwardConfig<Element, Decay, kAligned>>>(
      table, dtype, decay_dtype,
      forward_kernel<PerSequence<NarrowStatesConfig<Element, Decay, kAligned>>>());
}

template <class Element>
void add_backward_16(std::vector<BackwardVariant>& table, DType dtype) {
  add_backward<RowsBackwardConfig<Element, Element>>(table, dtype, dtype, {});
  add_narrow_backward<Element, Element, true>(table, dtype, dtype);
  add_narrow_backward<Element, Element, false>(table, dtype, dtype);
  add_narrow_backward<Element, float, true>(table, dtype, DType::kFloat32);
  add_narrow_backward<Element, float, false>(table, dtype, DType::kFloat32);
  add_sequences_backward<Element, Element, true>(table, dtype, dtype);
  add_sequences_backward<Element, Element, false>(table, dtype, dtype);
  add_sequences_backward<Element, float, true>(table, dtype, DType::kFloat32);
  add_sequences_backward<Element, float, false>(table, dtype, DType::kFloat32);
}

/// Says why a variant of either direction cannot read what the recurrence reads, x included; ""
/// when it can.
template <class Kernel>
std::string recurrence_problem(const VariantOf<Kernel>& variant,
                               const GatedScanForwardProblem& problem) {
  if (problem.dtype != variant.dtype) {
    return "takes " + to_string(variant.dtype) + ", got " + to_string(problem.dtype);
  }
  if (problem.decay_dtype != variant.decay_dtype) {
    return "takes decays in " + to_string(variant.decay_dtype) + ", got " +
           to_string(problem.decay_dtype);
  }
  if (std::string reason = length_problem(problem.T); !reason.empty()) return reason;
  const int width = variant.kernel.width;
  const std::int64_t blocks = ceil_div(problem.D, width);
  const std::int64_t rows = variant.per_sequence ? problem.N : problem.B;
  const std::string chains = std::string(variant.per_sequence ? " sequences" : " batches") +
                             " times blocks of " + std::to_string(width) + " channels, got ";
  const std::string got = std::to_string(rows) + " x " + std::to_string(blocks);
  constexpr std::int64_t kMostChains = kMaxIndex / kMostScanRanks;
  if (rows > kMostChains / blocks) {
    return "takes at most " + std::to_string(kMostChains) + chains + got;
  }
  if (!variant.aligned) return "";
  if (problem.D % 8 != 0) return "takes D a multiple of 8, got " + std::to_string(problem.D);
  std::string reason = layout_problem("x", problem.x, problem.dtype, problem);
  if (reason.empty()) {
    reason = layout_problem(problem.log_decay ? "log_decay" : "decay", problem.decay,
                            problem.decay_dtype, problem);
  }
  if (reason.empty()) reason = layout_problem("gate", problem.gate, problem.dtype, problem);
  return reason;
}

/// Says why TMA cannot copy a tensor, "" when it can or the variant does without TMA.
template <class Kernel>
std::string rows_problem(const VariantOf<Kernel>& variant, const ScanRecurrence& problem,
                         const char* name, const TokenTensor& tensor, DType dtype) {
  if (variant.kernel.rows == 0 || tensor.data == nullptr) return "";
  const TileExtents extents{.batch = problem.B, .time = problem.T, .heads = 1, .dim = problem.D};
  return plan_rows(name, tensor, dtype, extents, variant.kernel.rows, kRowChannels).problem;
}
template <class Kernel>
std::string recurrence_rows_problem(const VariantOf<Kernel>& variant,
                                    const GatedScanForwardProblem& problem) {
  std::string reason = rows_problem(variant, problem, "x", problem.x, variant.dtype);
  if (reason.empty()) {
    reason = rows_problem(variant, problem, problem.log_decay ? "log_decay" : "decay",
                          problem.decay, variant.decay_dtype);
  }
  if (reason.empty()) reason = rows_problem(variant, problem, "gate", problem.gate, variant.dtype);
  return reason;
}

}  // namespace

std::string ForwardVariant::supports(const GatedScanForwardProblem& problem) const {
  std::string reason = recurrence_problem(*this, problem);
  if (!reason.empty() || !aligned) return reason;
  reason = layout_problem("out", problem.out, dtype, problem);
  return reason.empty() ? recurrence_rows_problem(*this, problem) : reason;
}

std::string ForwardVariant::supports(const OfProductProblem& problem) const {
  const auto& scan = static_cast<const GatedScanForwardProblem&>(problem);
  std::string reason = supports(scan);
  if (!reason.empty() || !aligned) return reason;
  reason = layout_problem("x", problem.x_rest, dtype, problem);
  return reason.empty() ? rows_problem(*this, problem, "x", problem.x_rest, dtype) : reason;
}

std::string BackwardVariant::supports(const GatedScanBackwardProblem& problem) const {
  const GatedScanForwardProblem& forward = problem.forward;
  std::string reason = recurrence_problem(*this, forward);
  if (!reason.empty() || !aligned) return reason;
  reason = layout_problem("d_out", problem.d_out, dtype, forward);
  if (reason.empty()) reason = layout_problem("dx", problem.dx, dtype, forward);
  if (reason.empty()) {
    reason = layout_problem(forward.log_decay ? "d_log_decay" : "d_decay", problem.d_decay,
                            decay_dtype, forward);
  }
  if (reason.empty()) reason = layout_problem("d_gate", problem.d_gate, dtype, forward);
  if (!reason.empty()) return reason;
  reason = recurrence_rows_problem(*this, forward);
  if (reason.empty()) reason = rows_problem(*this, forward, "d_out", problem.d_out, dtype);
  if (reason.empty()) reason = rows_problem(*this, forward, "dx", problem.dx, dtype);
  if (reason.empty()) {
    reason = rows_problem(*this, forward, forward.log_decay ? "d_log_decay" : "d_decay",
                          problem.d_decay, decay_dtype);
  }
  if (reason.empty()) reason = rows_problem(*this, forward, "d_gate", problem.d_gate, dtype);
  return reason;
}

const std::vector<ForwardVariant>& forward_variants() {
  static const std::vector<ForwardVariant> table = [] {
    std::vector<ForwardVariant> rows;
    add_forward_16<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_forward_16<__half>(rows, DType::kFloat16);
    add_forward<NarrowConfig<float, float>>(rows, DType::kFloat32, DType::kFloat32);
    add_forward<NarrowConfig<float, float, false>>(rows, DType::kFloat32, DType::kFloat32);
    add_sequences_forward<float, float>(rows, DType::kFloat32, DType::kFloat32);
#endif
    return rows;
  }();
  return table;
}

const std::vector<ForwardVariant>& of_product_variants() {
  static const std::vector<ForwardVariant> table = [] {
    std::vector<ForwardVariant> rows;
    add_of_product<__nv_bfloat16, __nv_bfloat16>(rows, DType::kBFloat16, DType::kBFloat16);
    add_of_product<__nv_bfloat16, float>(rows, DType::kBFloat16, DType::kFloat32);
#ifndef TANDEM_CUDA_DEV
    add_of_product<__half, __half>(rows, DType::kFloat16, DType::kFloat16);
    add_of_product<__half, float>(rows, DType::kFloat16, DType::kFloat32);
#endif
    return rows;
  }();
  return table;
}

const std::vector<BackwardVariant>& backward_variants() {
  static const std::vector<BackwardVariant> table = [] {
    std::vector<BackwardVariant> rows;
    add_backward_16<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_backward_16<__half>(rows, DType::kFloat16);
    add_narrow_backward<float, float, true>(rows, DType::kFloat32, DType::kFloat32);
    add_narrow_backward<float, float, false>(rows, DType::kFloat32, DType::kFloat32);
    add_sequences_backward<float, float, true>(rows, DType::kFloat32, DType::kFloat32);
    add_sequences_backward<float, float, false>(rows, DType::kFloat32, DType::kFloat32);
#endif
    return rows;
  }();
  return table;
}

}  // namespace tandem::cuda::gated_scan
