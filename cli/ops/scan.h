// What the scans (gated_scan, linear_scan) share in the tools: scan_make.cpp, scan_judge.h, and
// their baselines, scan_unfused.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"

namespace tandem::tools {

/// Returns the strides of a tensor [B,T,D] of a case.
Dims scan_strides(Strides kind, const Dims& shape, bool output);

/// Returns how many elements a case's tensors lie off their alignment.
std::int64_t scan_shift(const Case& one);

/// Whether a forward call from a file has a final state: where it has an initial one, or by --set
/// output_final_state, its only setting. `call`, "gated_scan forward", is named in the text of the
/// std::runtime_error about another one.
bool wants_final_state(const TensorSet& inputs, const std::string& call, const Settings& settings);

/// Adds contiguous outputs of a forward call from a file; final_state only `with_state`, and where
/// `out` is [B,T,D]: shapes that do not fit together are refused by the call itself.
void add_scan_outputs(TensorSet& set, DType dtype, const Dims& out, bool with_state);

/// Makes a forward call's tensors, inputs filled; x, which is gated_scan's, only `with_x`.
TensorSet make_scan(const Case& one, DType dtype, std::uint64_t seed, bool with_x);

/// Turns a forward's tensors into the backward's: outputs become their gradients, which are given,
/// and existing inputs that `inputs` names get gradients as outputs.
void differentiate_scan(TensorSet& set, const Case& one, std::uint64_t seed,
                        const std::vector<std::string>& inputs);

/// Returns "dx" for "x", "d_gate" for "gate".
std::string gradient_name(const std::string& input);

/// Adds contiguous outputs for the gradients by those of the named inputs that exist.
void add_gradients(TensorSet& set, const std::vector<std::string>& inputs);

/// Baseline of gated_scan by two kernels, the scan and the gate: bench/cuda/scan.h.
void unfused_gated_scan(const TensorSet& set, const std::vector<void*>& bases, Device device,
                        const Context& context);
std::size_t unfused_gated_scan_workspace_bytes(const TensorSet& set,
                                               const std::vector<void*>& bases, Device device);

/// Baseline of linear_scan by three kernels: the product, the scan, the gate.
void unfused_linear_scan(const TensorSet& set, const std::vector<void*>& bases, Device device,
                         const Context& context);
std::size_t unfused_linear_scan_workspace_bytes(const TensorSet& set,
                                                const std::vector<void*>& bases, Device device);

/// Baseline of linear_scan by two kernels: the product, and Tandem's gated_scan.
void unfused_two_linear_scan(const TensorSet& set, const std::vector<void*>& bases, Device device,
                             const Context& context);
std::size_t unfused_two_linear_scan_workspace_bytes(const TensorSet& set,
                                                    const std::vector<void*>& bases, Device device);

}  // namespace tandem::tools
