// The variants of gated_scan on CUDA, in the order in which they are tried. Host only.
#include "cuda/gated_scan/variants.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/gated_scan/config.h"
#include "cuda/scan/plan.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/cuda_check.h"
#include "cuda/runtime/workspace.h"
#include "tandem/error.h"

namespace tandem::cuda {
namespace {

constexpr const char* kForward = "gated_scan_forward";
constexpr std::int64_t kMostTokens = (std::int64_t{1} << 31) - (1 << 20);

template <class Config>
void add_forward(std::vector<ScanForwardVariant>& table, DType dtype, DType decay_dtype,
                 std::int64_t fewest_chains = 0) {
  const ScanForwardKernel kernel = forward_kernel<Config>();
  table.push_back({"gated_scan_forward.sm90." + to_string(dtype) +
                       (decay_dtype == dtype ? "" : ".decay_" + to_string(decay_dtype)) + ".w" +
                       std::to_string(kernel.width) + (Config::kAligned ? "" : ".scalar"),
                   dtype, decay_dtype, Config::kAligned, fewest_chains, kernel});
}

template <class Element>
void add_forward_16(std::vector<ScanForwardVariant>& table, DType dtype) {
  constexpr int kHalfOfAllMultiprocessors = 66;
  add_forward<ScanWideConfig<Element, Element>>(table, dtype, dtype, kHalfOfAllMultiprocessors);
  add_forward<ScanNarrowConfig<Element, Element>>(table, dtype, dtype);
  add_forward<ScanNarrowConfig<Element, Element, false>>(table, dtype, dtype);
  add_forward<ScanNarrowConfig<Element, float>>(table, dtype, DType::kFloat32);
  add_forward<ScanNarrowConfig<Element, float, false>>(table, dtype, DType::kFloat32);
}

/// Why a tensor cannot be read or written 16 bytes at a time, "" when it can.
std::string layout_problem(const char* name, const TokenTensor& tensor, DType dtype,
                           const ScanRecurrence& problem) {
  const std::string argument = name;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) {
    return argument + " does not start at a multiple of 16 bytes";
  }
  const auto check = [&](const char* axis, std::int64_t extent, std::int64_t stride) {
    const std::int64_t bytes = stride * size_of(dtype);
    return extent <= 1 || bytes % 16 == 0
               ? ""
               : argument + " has a " + axis + " stride of " + std::to_string(bytes) +
                     " bytes, not a multiple of 16";
  };
  const std::string reason = check("batch", problem.B, tensor.batch_stride);
  return reason.empty() ? check("time", problem.T, tensor.time_stride) : reason;
}

std::int64_t chains_of(const ScanRecurrence& problem, int width) {
  return problem.B * ((problem.D - 1) / width + 1);
}

/// What both directions' variants ask of what the recurrence reads.
std::string recurrence_problem(const ScanRecurrence& problem, DType dtype, DType decay_dtype,
                               bool aligned, int width) {
  if (problem.dtype != dtype) {
    return "takes " + to_string(dtype) + ", got " + to_string(problem.dtype);
  }
  if (problem.decay_dtype != decay_dtype) {
    return "takes decays in " + to_string(decay_dtype) + ", got " + to_string(problem.decay_dtype);
  }
  if (problem.T > kMostTokens) {
    return "takes T up to " + std::to_string(kMostTokens) + ", got " + std::to_string(problem.T);
  }
  constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;
  if (problem.B > kMostBlocks / ((problem.D - 1) / width + 1) / kMostScanRanks) {
    return "takes at most 2^27 - 1 batches times blocks of " + std::to_string(width) +
           " channels, got " + std::to_string(problem.B) + " x " +
           std::to_string((problem.D - 1) / width + 1);
  }
  if (!aligned) return "";
  if (problem.D % 8 != 0) return "takes D a multiple of 8, got " + std::to_string(problem.D);
  std::string reason = layout_problem(problem.log_decay ? "log_decay" : "decay", problem.decay,
                                      problem.decay_dtype, problem);
  if (reason.empty()) reason = layout_problem("gate", problem.gate, dtype, problem);
  return reason;
}

const ScanForwardVariant& choose(const GatedScanForwardProblem& problem,
                                 const DeviceProperties& device) {
  return choose_variant(
      kForward, scan_forward_variants(), device,
      [&](const ScanForwardVariant& variant) { return variant.supports(problem); });
}

template <class Kernel>
ScanParams scan_params(const ScanRecurrence& problem, const TokenTensor& x, const Kernel& kernel,
                       const DeviceProperties& device) {
  const std::int64_t tiles = (problem.T + kernel.tile_tokens - 1) / kernel.tile_tokens;
  return {.sequences = {problem.cu_seqlens, static_cast<int>(problem.N),
                        static_cast<int>(problem.T)},
          .D = problem.D,
          .channel_blocks = (problem.D - 1) / kernel.width + 1,
          .ranks = scan_ranks({chains_of(problem, kernel.width), tiles}, kernel.blocks_per_sm,
                              device.multiprocessors),
          .log_decay = problem.log_decay,
          .x = x,
          .decay = problem.decay,
          .gate = problem.gate,
          .initial_state = problem.initial_state,
          .states = nullptr,
          .state_rows = 0};
}

}  // namespace

std::string ScanForwardVariant::supports(const GatedScanForwardProblem& problem) const {
  std::string reason = recurrence_problem(problem, dtype, decay_dtype, aligned, kernel.width);
  if (reason.empty() && aligned) reason = layout_problem("x", problem.x, dtype, problem);
  if (reason.empty() && aligned) reason = layout_problem("out", problem.out, dtype, problem);
  if (reason.empty() && chains_of(problem, kernel.width) < fewest_chains) {
    reason = "takes at least " + std::to_string(fewest_chains) + " batches times blocks of " +
             std::to_string(kernel.width) + " channels, got " +
             std::to_string(chains_of(problem, kernel.width));
  }
  return reason;
}

const std::vector<ScanForwardVariant>& scan_forward_variants() {
  static const std::vector<ScanForwardVariant> table = [] {
    std::vector<ScanForwardVariant> rows;
    add_forward_16<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_forward_16<__half>(rows, DType::kFloat16);
    add_forward<ScanNarrowConfig<float, float>>(rows, DType::kFloat32, DType::kFloat32);
    add_forward<ScanNarrowConfig<float, float, false>>(rows, DType::kFloat32, DType::kFloat32);
#endif
    return rows;
  }();
  return table;
}

void gated_scan_forward(const GatedScanForwardProblem& problem, const Context& context) {
  const DeviceProperties device = device_properties(problem.device);
  const ScanForwardVariant& variant = choose(problem, device);
  if (problem.B == 0) return;
  const DeviceGuard guard(problem.device.index);
  ScanForwardParams params{};
  static_cast<ScanParams&>(params) = scan_params(problem, problem.x, variant.kernel, device);
  params.out = problem.out;
  params.final_state = problem.final_state;
  variant.kernel.launch(variant.name.c_str(), params,
                        static_cast<unsigned>(chains_of(problem, variant.kernel.width)),
                        context.stream.handle);
}

std::size_t gated_scan_forward_workspace_bytes(const GatedScanForwardProblem& problem,
                                               const DeviceProperties& device) {
  choose(problem, device);
  return 0;
}

void gated_scan_backward(const GatedScanBackwardProblem&, const Context&) {
  throw Unsupported("[gated_scan_backward] no variant for CUDA devices is written yet");
}

std::size_t gated_scan_backward_workspace_bytes(const GatedScanBackwardProblem&,
                                                const DeviceProperties&) {
  throw Unsupported("[gated_scan_backward] no variant for CUDA devices is written yet");
}

std::vector<VariantInfo> gated_scan_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const ScanForwardVariant& variant : scan_forward_variants()) {
    infos.push_back({"gated_scan", variant.name, sm90_problem(device)});
  }
  return infos;
}

}  // namespace tandem::cuda
