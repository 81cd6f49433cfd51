// Checks that gla's ops share; each throws InvalidArgument "[op] argument expected, got".
#pragma once

#include <optional>

#include "core/strided_tensor.h"
#include "ops/gla.h"
#include "ops/operand_check.h"

namespace tandem {

/// Checks that HQ divides H. `keys` is q, or k where an op has no q.
void check_head_groups(const Argument& keys, int H, int HQ);

/// Returns the scale, K^-0.5 when absent; it must be finite.
float check_scale(const char* op, std::optional<double> scale, int K);

/// Returns an activation [B,T,heads,dim] that has passed its checks as a StridedTensor.
StridedTensor strided(const TensorView& view);

/// Checks log_decay: [H] or of `shape`, which `axes` names: [B,T,H], or [B,H] of one token each.
DecayTensor check_decay(const Argument& log_decay, const char* axes, const Dims& shape,
                        Device device);

/// Checks k, v (called `v_name`), log_decay and cu_seqlens against each other and against `keys`,
/// which has k's shape and dtype: q, or k itself where an op has no q.
GlaRecurrence check_recurrence(const Argument& keys, const TensorView& k, const TensorView& v,
                               const std::optional<TensorView>& log_decay,
                               const std::optional<TensorView>& cu_seqlens,
                               const char* v_name = "v");

}  // namespace tandem
