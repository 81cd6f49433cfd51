// The weights of attention, in memory: for whoever looks at them or changes them before they meet
// values. attention (tandem/ops/attention.h) does not need them.
//
//   w_ij = softmax over j of scale * q_i . k_j        of the keys j that query i sees, else 0
#pragma once

#include <cstddef>
#include <optional>

#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/tensor.h"

namespace tandem {

/// Axes, dtypes and strides as in AttentionForwardArgs; w has q's dtype, its innermost stride is 1.
/// causal: query i sees key j where j <= i + TK - TQ, else every key. A query that sees no key, or
/// only keys whose scores are -inf, has weights of 0.
struct AttentionWeightsForwardArgs {
  TensorView q;                                ///< [B,TQ,H,K]
  TensorView k;                                ///< [B,TK,HKV,K]
  std::optional<double> scale = std::nullopt;  ///< default K^-0.5
  bool causal = false;
  TensorView w;  ///< out [B,H,TQ,TK]
};

/// Runs as attention_forward does. A weight is computed in fp32 and rounded once, so that a row's
/// sum is 1 but for those roundings. Throws as attention_forward does.
void attention_weights_forward(const AttentionWeightsForwardArgs& args,
                               const Context& context = {});

/// As attention_forward_workspace_bytes.
std::size_t attention_weights_forward_workspace_bytes(const AttentionWeightsForwardArgs& args,
                                                      const DeviceProperties& device,
                                                      bool batch_invariant = false);

/// The gradient of a scalar loss through attention_weights_forward, whose inputs and output are
/// given again; d_w is the loss's gradient by the output. Weights and d_w at keys that a query does
/// not see are not read.
///
///   ds_ij = w_ij (d_w_ij - sum_j w_ij d_w_ij)
///   dq_i = scale * sum_j ds_ij k_j    dk_j = scale * sum_i ds_ij q_i
///
/// Heads that share a key head add up in dk, always in the same order. No output may overlap an
/// input or another output.
struct AttentionWeightsBackwardArgs {
  TensorView q;                                 ///< [B,TQ,H,K]
  TensorView k;                                 ///< [B,TK,HKV,K]
  std::optional<double> scale = std::nullopt;   ///< as in the forward
  bool causal = false;                          ///< as in the forward
  TensorView w;                                 ///< [B,H,TQ,TK], the forward's
  TensorView d_w;                               ///< [B,H,TQ,TK], q's dtype
  std::optional<TensorView> dq = std::nullopt;  ///< out, as q
  std::optional<TensorView> dk = std::nullopt;  ///< out, as k
};

/// Runs and throws as attention_forward does; bitwise repeatable, too.
void attention_weights_backward(const AttentionWeightsBackwardArgs& args,
                                const Context& context = {});

/// As attention_forward_workspace_bytes.
std::size_t attention_weights_backward_workspace_bytes(const AttentionWeightsBackwardArgs& args,
                                                       const DeviceProperties& device,
                                                       bool batch_invariant = false);

}  // namespace tandem
