// What the tables of gla's variants over chunks share: their rows, reasons against a problem, and
// the copies that TMA would make.
#pragma once

#include <string>
#include <vector>

#include "cuda/runtime/tensor_map.h"
#include "ops/gla.h"

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

/// What variants of every gla op ask of a problem: "" or what is wrong.
std::string common_reason(DType dtype, bool tma, const GlaRecurrence& problem,
                          const GlaTilePlans& tiles);

/// "takes K <= 64, got 128", or "".
std::string width_reason(const char* axis, int width, int limit);

}  // namespace tandem::cuda
