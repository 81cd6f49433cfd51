// What the tables of gla's variants over chunks share: their rows, reasons against a problem, the
// copies that TMA would make, and the choice for a call.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/gla/common/segments.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/runtime/tensor_map.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// One way to run an op, `Launch` being its launcher or launchers. Tried in the table's order.
template <class Launch>
struct TileVariant {
  std::string name;
  DType dtype;
  int key_dim;    // columns of K of one CTA
  int value_dim;  // columns of V of one CTA
  bool tma;
  Launch launch;
};

/// Makes a table in the order in which its rows are tried, by `add_rows.operator()<Element>(table,
/// dtype, tma)`.
template <class Variant, class AddRows>
std::vector<Variant> table_of_variants(AddRows add_rows) {
  std::vector<Variant> table;
  for (const bool tma : {true, false}) {
    add_rows.template operator()<__nv_bfloat16>(table, DType::kBFloat16, tma);
#ifndef TANDEM_CUDA_DEV
    add_rows.template operator()<__half>(table, DType::kFloat16, tma);
#endif
  }
  return table;
}

/// "gla_forward.sm90.bf16.c64_k128_v128", with ".gather" where TMA is not used.
std::string variant_name(const char* op, DType dtype, int key_dim, int value_dim, bool tma);

/// Plans of copies of one chunk by 64 columns, in the order in which they were added. `problem`
/// says why TMA cannot do all of them, "" when it can.
struct TilePlans {
  std::vector<TensorMapPlan> plans;
  std::string problem;

  /// Adds a [B,T,heads,dim] tensor of the problem, one that is read.
  void add(const char* name, const StridedTensor& tensor, const GlaRecurrence& problem, int heads,
           int dim);
  /// Adds one that is written.
  void add_stored(const char* name, const StridedTensor& tensor, const GlaRecurrence& problem,
                  int heads, int dim);

 private:
  void note(TensorMapPlan plan);
};

/// Encodes the map of a tensor whose tiles have no problem.
CUtensorMap tile_map(const StridedTensor& tensor, const GlaRecurrence& problem, int heads, int dim);

/// Says why no variant of that dtype and way to copy takes a problem, whatever the op; "" when some
/// may.
std::string common_reason(DType dtype, bool tma, const GlaRecurrence& problem,
                          const TilePlans& tiles);

/// Returns "takes K <= 64, got 128", or "" when the width fits.
std::string width_reason(const char* axis, int width, int limit);

/// The variant chosen for a problem, and how a call runs it.
template <class Variant, class Plan>
struct Choice {
  TilePlans tiles;
  const Variant& variant;
  Plan plan;
};

/// Chooses the variant for a problem and plans the call. `make_plan` is plan_forward (walk/plan.h)
/// or its like for another call.
template <class Variant, class Problem, class Plan>
Choice<Variant, Plan> make_choice(const char* op, const std::vector<Variant>& table,
                                  const Problem& problem, TilePlans tiles,
                                  const DeviceProperties& device, const CallOptions& options,
                                  Plan (*make_plan)(const Problem&, int key_dim, int value_dim,
                                                    const DeviceProperties&,
                                                    bool batch_invariant)) {
  const Variant& variant = choose_variant(op, table, device, options, [&](const Variant& one) {
    return reason_against(one, problem, tiles);
  });
  return {std::move(tiles), variant,
          make_plan(problem, variant.key_dim, variant.value_dim, device, options.batch_invariant)};
}

}  // namespace tandem::cuda::gla
