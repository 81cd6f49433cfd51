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
  if constexpr (kActivation == OutputGate::kSigmoid) {
    const Sigmoid s(g);
    return {s.value, s.value * s.complement};
  }
  // why not Sigmoid: it takes three instructions more, and of its complement only what lies beside
  // 1 counts here.
  const float s = reciprocal(1.0f + fast_exp2(-g * kLog2E));
  return {g * s, s * fmaf(g, 1.0f - s, 1.0f)};
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

/// What d_o and d_gate have of an element.
struct Gradients {
  float d_o, d_gate;

  static __device__ Gradients without_norm(float o, const Gate& f, float d) {
    return {d * f.value, d * o * f.slope};
  }
  /// With h, of y = o or, behind the gate, o f: dy = s (e w - c y) with c = s mean(e w n)
  /// (docs/ops/gated_output.md); u is d_a w.
  template <bool kBehindGate>
  static __device__ Gradients of_norm(float o, const Gate& f, float u, float s, float c) {
    if constexpr (kBehindGate) {
      const float dy = s * fmaf(-c, o * f.value, u);
      return {dy * f.value, dy * o * f.slope};
    }
    return {s * fmaf(u, f.value, -c * o), u * (o * s) * f.slope};
  }
};

}  // namespace tandem::cuda::gated_output
