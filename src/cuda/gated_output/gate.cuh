// f of gated_output's gate.
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

}  // namespace tandem::cuda::gated_output
