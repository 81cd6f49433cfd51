// What the tables behind cuda::attention_forward and attention_backward share: a row, how a table
// is filled, and which row takes a call.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>
#include <vector>

#include "cuda/attention/backward_params.h"
#include "cuda/attention/forward_params.h"
#include "cuda/runtime/choose_variant.h"

namespace tandem::cuda::attention {

/// One way to run a call. Tried in the table's order.
template <class Launch>
struct Variant {
  std::string name;
  DType dtype;
  int key_dim;    // columns of K of a tile
  int value_dim;  // columns of V of a tile, 0 of a call without values
  bool copies;    // what the kernels cannot read or write where it lies
  Launch launch;
};
using ForwardVariant = Variant<AttentionForwardLaunch>;
using BackwardVariant = Variant<AttentionBackwardLaunch>;

const std::vector<ForwardVariant>& forward_variants();
const std::vector<BackwardVariant>& backward_variants();

/// "attention_forward.sm90.bf16.k128_v128", with ".copied"; ".k128" of a call without values.
/// `more` stands before ".copied".
std::string variant_name(const char* op, DType dtype, int key_dim, int value_dim, bool copies,
                         const std::string& more);

/// Fills a table: `add_dims.operator()<Element>(add)` calls add(key_dim, value_dim, launch) for
/// each pair of head dims, or with what else tells its name from others.
template <class Launch, class AddDims>
std::vector<Variant<Launch>> make_table(const char* op, AddDims add_dims) {
  std::vector<Variant<Launch>> table;
  for (const bool copies : {false, true}) {
    const auto add_as = [&](DType dtype) {
      return [&table, op, copies, dtype](int key_dim, int value_dim, Launch launch,
                                         const std::string& more = "") {
        table.push_back({variant_name(op, dtype, key_dim, value_dim, copies, more), dtype, key_dim,
                         value_dim, copies, launch});
      };
    };
    add_dims.template operator()<__nv_bfloat16>(add_as(DType::kBFloat16));
#ifndef TANDEM_CUDA_DEV
    add_dims.template operator()<__half>(add_as(DType::kFloat16));
#endif
  }
  return table;
}

/// Says why kernels of a dtype and head dims cannot run a call, "" when they can.
std::string reason_against(DType dtype, int key_dim, int value_dim, const AttentionSizes& sizes);

/// Chooses the variant of a call. `misfit` says why its tensors need copies, "" when they do not;
/// `also_against` what else speaks against a variant.
template <class Launch, class AlsoAgainst>
const Variant<Launch>& choose(const char* op, const std::vector<Variant<Launch>>& table,
                              const AttentionSizes& sizes, const std::string& misfit,
                              const DeviceProperties& device, const CallOptions& options,
                              const AlsoAgainst& also_against) {
  return choose_variant(op, table, device, options, [&](const Variant<Launch>& one) {
    std::string reason = reason_against(one.dtype, one.key_dim, one.value_dim, sizes);
    if (reason.empty()) reason = also_against(one);
    return reason.empty() && !one.copies ? misfit : reason;
  });
}
template <class Launch>
const Variant<Launch>& choose(const char* op, const std::vector<Variant<Launch>>& table,
                              const AttentionSizes& sizes, const std::string& misfit,
                              const DeviceProperties& device, const CallOptions& options) {
  return choose(op, table, sizes, misfit, device, options,
                [](const Variant<Launch>&) { return std::string(); });
}

}  // namespace tandem::cuda::attention
