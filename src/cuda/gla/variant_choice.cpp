#include "cuda/gla/variant_choice.h"

#include "cuda/gla/backward.h"
#include "cuda/gla/forward.h"
#include "cuda/gla/state.h"
#include "cuda/runtime/plan.h"
#include "ops/gla.h"

namespace tandem::cuda::gla {

std::string variant_name(const char* op, DType dtype, int key_dim, int value_dim, bool tma) {
  return std::string(op) + ".sm90." + to_string(dtype) + ".c" + std::to_string(kChunk) + "_k" +
         std::to_string(key_dim) + "_v" + std::to_string(value_dim) + (tma ? "" : ".gather");
}

void TilePlans::add(const char* name, const StridedTensor& tensor, const GlaRecurrence& of,
                    int heads, int dim) {
  note(plan_tile(name, tensor, of.dtype, {of.B, of.T, heads, dim}, kChunk));
}

void TilePlans::add_stored(const char* name, const StridedTensor& tensor, const GlaRecurrence& of,
                           int heads, int dim) {
  note(plan_stored_tile(name, tensor, of.dtype, {of.B, of.T, heads, dim}, kChunk));
}

void TilePlans::note(TensorMapPlan plan) {
  if (problem.empty()) problem = plan.problem;
  plans.push_back(std::move(plan));
}

CUtensorMap tile_map(const StridedTensor& tensor, const GlaRecurrence& problem, int heads,
                     int dim) {
  TilePlans tiles;
  tiles.add("", tensor, problem, heads, dim);
  return encode(tiles.plans[0]);
}

std::string common_reason(DType dtype, bool tma, const GlaRecurrence& problem,
                          const TilePlans& tiles) {
  if (problem.dtype != dtype) {
    return "takes " + to_string(dtype) + ", got " + to_string(problem.dtype);
  }
  if (problem.T > kMaxIndex - kChunk) {
    return "takes T < 2^31 - 64, got " + std::to_string(problem.T);
  }
  const std::int64_t state = std::int64_t{problem.K} * problem.V;
  if (state > kMaxIndex) return "takes K * V < 2^31, got " + std::to_string(state);
  constexpr std::int64_t kNarrowestTile = 64;
  const std::int64_t walks =
      problem.N * problem.H * (problem.V / kNarrowestTile + 1) * (problem.K / kNarrowestTile + 1);
  if (walks > kMaxIndex) {
    return "takes at most 2^31 - 1 sequences times heads times tiles of 64 columns, got " +
           std::to_string(walks);
  }
  return tma ? tiles.problem : "";
}

std::string width_reason(const char* axis, int width, int limit) {
  if (width <= limit) return "";
  return "takes " + std::string(axis) + " <= " + std::to_string(limit) + ", got " +
         std::to_string(width);
}

}  // namespace tandem::cuda::gla

namespace tandem::cuda {

std::vector<VariantInfo> gla_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> infos;
  const auto add = [&](const auto& table) {
    for (const auto& variant : table) infos.push_back({"gla", variant.name, sm90_problem(device)});
  };
  add(gla::forward_variants());
  add(gla::state_forward_variants());
  add(gla::backward_variants());
  add(gla::state_backward_variants());
  return infos;
}

}  // namespace tandem::cuda
