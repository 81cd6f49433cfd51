// What attention's tables of variants share.
#include "cuda/attention/variants.h"

#include <algorithm>

#include "ops/attention.h"

namespace tandem::cuda::attention {

std::string variant_name(const char* op, DType dtype, int key_dim, int value_dim, bool copies,
                         const std::string& more) {
  return std::string(op) + ".sm90." + to_string(dtype) + ".k" + std::to_string(key_dim) +
         (value_dim > 0 ? "_v" + std::to_string(value_dim) : "") + more + (copies ? ".copied" : "");
}

std::string reason_against(DType dtype, int key_dim, int value_dim, const AttentionSizes& sizes) {
  const auto takes = [](const std::string& what, std::int64_t got) {
    return "takes " + what + ", got " + std::to_string(got);
  };
  if (sizes.dtype != dtype) return "takes " + to_string(dtype) + ", got " + to_string(sizes.dtype);
  if (sizes.K > key_dim) return takes("K <= " + std::to_string(key_dim), sizes.K);
  if (sizes.V > value_dim) return takes("V <= " + std::to_string(value_dim), sizes.V);
  constexpr std::int64_t kMostTokens = 1 << 29, kTileRows = 64;
  const std::string below = " below " + std::to_string(kMostTokens);
  if (sizes.TQ >= kMostTokens) return takes("TQ" + below, sizes.TQ);
  if (sizes.TK >= kMostTokens) return takes("TK" + below, sizes.TK);
  const std::int64_t tiles =
      ceil_div(std::max(sizes.TQ, sizes.TK), kTileRows) * std::max<std::int64_t>(sizes.B, 1) +
      sizes.N + 2;
  if (tiles > kMaxIndex / sizes.H) {
    return takes("tiles of 64 tokens times heads below " + std::to_string(kMaxIndex),
                 tiles * sizes.H);
  }
  return "";
}

}  // namespace tandem::cuda::attention

namespace tandem::cuda {

std::vector<VariantInfo> attention_variants(const DeviceProperties& device) {
  std::vector<VariantInfo> all;
  const auto add = [&](const auto& table) {
    for (const auto& variant : table) {
      all.push_back({"attention", variant.name, sm90_problem(device)});
    }
  };
  add(attention::forward_variants());
  add(attention::backward_variants());
  return all;
}

}  // namespace tandem::cuda
