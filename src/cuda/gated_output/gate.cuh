// What gated_output's gate makes of an element, and its gradients.
#pragma once

#include <type_traits>

#include "cuda/parts/sigmoid.cuh"
#include "tandem/ops/gated_output.h"

namespace tandem::cuda::gated_output {

/// A gate's value, and its derivative.
struct Gate {
  float value;
  float slope;
};

template <OutputGate kActivation>
__device__ Gate apply_gate(float g) {
  if constexpr (kActivation == OutputGate::kNone) return {g, 1.0f};
  const Sigmoid s(g);
  if constexpr (kActivation == OutputGate::kSigmoid) return {s.value, s.value * s.complement};
  return {g * s.value, s.value * fmaf(g, s.complement, 1.0f)};
}

/// Calls body(std::integral_constant) with the activation.
template <class Body>
__device__ void with_gate(OutputGate activation, const Body& body) {
  switch (activation) {
    case OutputGate::kNone: return body(std::integral_constant<OutputGate, OutputGate::kNone>());
    case OutputGate::kSilu: return body(std::integral_constant<OutputGate, OutputGate::kSilu>());
    case OutputGate::kSigmoid:
      return body(std::integral_constant<OutputGate, OutputGate::kSigmoid>());
  }
}

/// What d_o and d_gate have of an element: y is what the group norm takes, mean that of its y's
/// with the gradients.
struct Gradients {
  float d_o, d_gate;

  __device__ Gradients(float o, const Gate& f, float d)
      : d_o(d * f.value), d_gate(d * o * f.slope) {}
  __device__ Gradients(float o, const Gate& f, float d, bool behind, float rstd, float weight,
                       float mean) {
    const float m = (behind ? o * f.value : o) * rstd;
    const float dn = behind ? d : d * f.value;
    const float dy = rstd * (dn * weight - m * mean);
    d_o = behind ? dy * f.value : dy;
    d_gate = (behind ? dy * o : d * m * weight) * f.slope;
  }
};

}  // namespace tandem::cuda::gated_output
