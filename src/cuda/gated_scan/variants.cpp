// The variants of gated_scan on CUDA, in the order in which they are tried. Host only.
#include "cuda/gated_scan/variants.h"

#include <cstdlib>
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

constexpr const char* kBackward = "gated_scan_backward";

template <class Config, class Kernel>
ScanVariant<Kernel> describe(const char* direction, DType dtype, DType decay_dtype,
                             const Kernel& kernel, std::int64_t fewest_chains) {
  return {std::string("gated_scan_") + direction + ".sm90." + to_string(dtype) +
              (decay_dtype == dtype ? "" : ".decay_" + to_string(decay_dtype)) + ".w" +
              std::to_string(kernel.width) + "_t" + std::to_string(kernel.tile_tokens) +
              "_c" + std::to_string(Config::kChannels) +
              (Config::kAligned ? "" : ".scalar"),
          dtype,
          decay_dtype,
          Config::kAligned,
          fewest_chains,
          kernel};
}

template <class Config>
void add_forward(std::vector<ScanForwardVariant>& table, DType dtype, DType decay_dtype,
                 std::int64_t fewest_chains = 0) {
  table.push_back({describe<Config>("forward", dtype, decay_dtype, forward_kernel<Config>(),
                                    fewest_chains)});
}

/// `StatesConfig`: of the forward kernel that computes the states.
template <class Config, class StatesConfig>
void add_backward(std::vector<ScanBackwardVariant>& table, DType dtype, DType decay_dtype,
                  std::int64_t fewest_chains = 0) {
  table.push_back({describe<Config>("backward", dtype, decay_dtype, backward_kernel<Config>(),
                                    fewest_chains),
                   forward_kernel<StatesConfig>()});
}

constexpr int kHalfOfAllMultiprocessors = 66;

template <class Element>
void add_forward_16(std::vector<ScanForwardVariant>& table, DType dtype) {
  add_forward<ScanWideConfig<Element, Element>>(table, dtype, dtype, 0);
  add_forward<ScanNarrowConfig<Element, Element>>(table, dtype, dtype);
#ifdef GSCAN_EXPERIMENT
  add_forward<ScanExperimentA<Element, Element>>(table, dtype, dtype);
  add_forward<ScanExperimentB<Element, Element>>(table, dtype, dtype);
  add_forward<ScanExperimentC<Element, Element>>(table, dtype, dtype);
  add_forward<ScanExperimentD<Element, Element>>(table, dtype, dtype);
  add_forward<ScanExperimentE<Element, Element>>(table, dtype, dtype);
#endif
  add_forward<ScanNarrowConfig<Element, Element, false>>(table, dtype, dtype);
  add_forward<ScanNarrowConfig<Element, float>>(table, dtype, DType::kFloat32);
  add_forward<ScanNarrowConfig<Element, float, false>>(table, dtype, DType::kFloat32);
}

template <class Element, class Decay, bool kAligned>
void add_narrow_backward(std::vector<ScanBackwardVariant>& table, DType dtype, DType decay_dtype) {
  add_backward<ScanNarrowBackwardConfig<Element, Decay, kAligned>,
               ScanNarrowStatesConfig<Element, Decay, kAligned>>(table, dtype, decay_dtype);
}

template <class Element>
void add_backward_16(std::vector<ScanBackwardVariant>& table, DType dtype) {
  add_backward<ScanWideBackwardConfig<Element, Element>, ScanWideStatesConfig<Element, Element>>(
      table, dtype, dtype, kHalfOfAllMultiprocessors);
  add_narrow_backward<Element, Element, true>(table, dtype, dtype);
  add_narrow_backward<Element, Element, false>(table, dtype, dtype);
  add_narrow_backward<Element, float, true>(table, dtype, DType::kFloat32);
  add_narrow_backward<Element, float, false>(table, dtype, DType::kFloat32);
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

/// What both directions' variants ask of what the recurrence reads, x included.
template <class Kernel>
std::string recurrence_problem(const ScanVariant<Kernel>& variant,
                               const GatedScanForwardProblem& problem) {
  if (problem.dtype != variant.dtype) {
    return "takes " + to_string(variant.dtype) + ", got " + to_string(problem.dtype);
  }
  if (problem.decay_dtype != variant.decay_dtype) {
    return "takes decays in " + to_string(variant.decay_dtype) + ", got " +
           to_string(problem.decay_dtype);
  }
  if (problem.T > kMostTokens) {
    return "takes T up to " + std::to_string(kMostTokens) + ", got " + std::to_string(problem.T);
  }
  const int width = variant.kernel.width;
  const std::int64_t blocks = (problem.D - 1) / width + 1;
  const std::string chains =
      " batches times blocks of " + std::to_string(width) + " channels, got ";
  const std::string got = std::to_string(problem.B) + " x " + std::to_string(blocks);
  constexpr std::int64_t kMostChains = ((std::int64_t{1} << 31) - 1) / kMostScanRanks;
  if (problem.B > kMostChains / blocks) {
    return "takes at most " + std::to_string(kMostChains) + chains + got;
  }
  if (problem.B * blocks < variant.fewest_chains) {
    return "takes at least " + std::to_string(variant.fewest_chains) + chains + got;
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

const ScanForwardVariant& choose(const GatedScanForwardProblem& problem,
                                 const DeviceProperties& device) {
  return choose_variant(
      kForward, scan_forward_variants(), device,
      [&](const ScanForwardVariant& variant) { return variant.supports(problem); });
}
const ScanBackwardVariant& choose(const GatedScanBackwardProblem& problem,
                                  const DeviceProperties& device) {
  return choose_variant(
      kBackward, scan_backward_variants(), device,
      [&](const ScanBackwardVariant& variant) { return variant.supports(problem); });
}

std::int64_t state_rows(const ScanRecurrence& problem) {
  return (problem.T + kStateTokens - 1) / kStateTokens;
}

std::size_t states_bytes(const GatedScanBackwardProblem& problem) {
  const GatedScanForwardProblem& forward = problem.forward;
  if (!problem.needs_states()) return 0;
  return static_cast<std::size_t>(forward.B * state_rows(forward)) * forward.D * sizeof(float);
}

template <class Kernel>
ScanParams scan_params(const ScanRecurrence& problem, const TokenTensor& x, const Kernel& kernel,
                       const DeviceProperties& device) {
  const std::int64_t tiles = (problem.T + kernel.tile_tokens - 1) / kernel.tile_tokens;
#ifdef GSCAN_EXPERIMENT
  if (const char* r = getenv("GSCAN_RANKS")) {
    ScanParams p{.sequences = {problem.cu_seqlens, static_cast<int>(problem.N),
                        static_cast<int>(problem.T)},
          .D = problem.D,
          .channel_blocks = (problem.D - 1) / kernel.width + 1,
          .ranks = atoi(r), .log_decay = problem.log_decay,
          .x = x,
          .decay = problem.decay,
          .gate = problem.gate,
          .initial_state = problem.initial_state,
          .states = nullptr,
          .state_rows = 0};
    return p;
  }
#endif
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
  const std::string reason = recurrence_problem(*this, problem);
  if (!reason.empty() || !aligned) return reason;
  return layout_problem("out", problem.out, dtype, problem);
}

std::string ScanBackwardVariant::supports(const GatedScanBackwardProblem& problem) const {
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

const std::vector<ScanBackwardVariant>& scan_backward_variants() {
  static const std::vector<ScanBackwardVariant> table = [] {
    std::vector<ScanBackwardVariant> rows;
    add_backward_16<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_backward_16<__half>(rows, DType::kFloat16);
    add_narrow_backward<float, float, true>(rows, DType::kFloat32, DType::kFloat32);
    add_narrow_backward<float, float, false>(rows, DType::kFloat32, DType::kFloat32);
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

void gated_scan_backward(const GatedScanBackwardProblem& problem, const Context& context) {
  const GatedScanForwardProblem& forward = problem.forward;
  const DeviceProperties device = device_properties(forward.device);
  const ScanBackwardVariant& variant = choose(problem, device);
  if (forward.B == 0) return;
  const DeviceGuard guard(forward.device.index);
  const std::size_t bytes = states_bytes(problem);
  const ScratchMemory scratch(kBackward, context, bytes);
  float* states = bytes > 0 ? scratch.at<float>(0) : nullptr;
  if (states != nullptr) {
    ScanForwardParams params{};
    static_cast<ScanParams&>(params) =
        scan_params(forward, forward.x, variant.states_kernel, device);
    params.gate = {};
    params.states = states;
    params.state_rows = state_rows(forward);
    variant.states_kernel.launch(
        variant.name.c_str(), params,
        static_cast<unsigned>(chains_of(forward, variant.states_kernel.width)),
        context.stream.handle);
  }
  ScanBackwardParams params{};
  static_cast<ScanParams&>(params) = scan_params(forward, forward.x, variant.kernel, device);
  params.states = states;
  params.state_rows = state_rows(forward);
  params.d_out = problem.d_out;
  params.d_final_state = problem.d_final_state;
  params.dx = problem.dx;
  params.d_decay = problem.d_decay;
  params.d_gate = problem.d_gate;
  params.d_initial_state = problem.d_initial_state;
  variant.kernel.launch(variant.name.c_str(), params,
                        static_cast<unsigned>(chains_of(forward, variant.kernel.width)),
                        context.stream.handle);
}

std::size_t gated_scan_backward_workspace_bytes(const GatedScanBackwardProblem& problem,
                                                const DeviceProperties& device) {
  choose(problem, device);
  return states_bytes(problem);
}

std::vector<VariantInfo> gated_scan_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  for (const ScanForwardVariant& variant : scan_forward_variants()) {
    infos.push_back({"gated_scan", variant.name, sm90_problem(device)});
  }
  for (const ScanBackwardVariant& variant : scan_backward_variants()) {
    infos.push_back({"gated_scan", variant.name, sm90_problem(device)});
  }
  return infos;
}

}  // namespace tandem::cuda
