// How a gla op picks one of its variants: the rows of its table, their reasons against a problem,
// and the copies that TMA would make.
#pragma once

#include <string>
#include <vector>

#include "cuda/runtime/tensor_map.h"
#include "ops/gla.h"
#include "tandem/error.h"

namespace tandem::cuda {

constexpr int kGlaChunk = 64;  // tokens per tile, of every variant

/// One way to run an op, `Launch` being its launcher or launchers. Tried in the table's order.
template <class Launch>
struct GlaVariant {
  std::string name;
  DType dtype;
  int key_dim;    // columns of K of one CTA
  int value_dim;  // columns of V of one CTA
  bool tma;
  Launch launch;
};

/// "gla_forward.sm90.bf16.c64_k128_v128", with ".gather" where TMA is not used.
std::string variant_name(const char* op, DType dtype, int key_dim, int value_dim, bool tma);

/// Copies of one chunk by 64 columns, in the order in which they were added. `problem` says why TMA
/// cannot do all of them, "" when it can.
struct GlaTilePlans {
  std::vector<TensorMapPlan> plans;
  std::string problem;

  /// A [B,T,heads,dim] tensor of the problem.
  void add(const char* name, const StridedTensor& tensor, const GlaRecurrence& problem, int heads,
           int dim);
};

/// Why no call can use a variant on such a device, "" when some can.
std::string device_problem(const DeviceProperties& device);

/// What variants of every gla op ask of a problem: "" or what is wrong.
std::string common_reason(DType dtype, bool tma, const GlaRecurrence& problem,
                          const GlaTilePlans& tiles);

/// "takes K <= 64, got 128", or "".
std::string width_reason(const char* axis, int width, int limit);

/// The first variant that accepts the problem and is `wanted` (any when empty). Throws Unsupported
/// with every variant's reason; `op` is named in it.
template <class Variant, class Problem>
const Variant& choose_variant(const char* op, const std::vector<Variant>& table,
                              const Problem& problem, const GlaTilePlans& tiles,
                              const DeviceProperties& device, const std::string& wanted) {
  std::string reasons;
  for (const Variant& variant : table) {
    std::string reason = device_problem(device);
    if (reason.empty() && !wanted.empty() && wanted != variant.name) {
      reason = "TANDEM_VARIANT asks for " + wanted;
    }
    if (reason.empty()) reason = reason_against(variant, problem, tiles);
    if (reason.empty()) return variant;
    reasons += "\n  " + variant.name + ": " + reason;
  }
  throw Unsupported("[" + std::string(op) + "] no variant on " + device.name +
                    " takes these arguments:" + reasons);
}

}  // namespace tandem::cuda
