// f of gated_output's gate.
#pragma once

#include "cuda/parts/sigmoid.cuh"
#include "tandem/ops/gated_output.h"

namespace tandem::cuda::gated_output {

struct Gate {
  float value;
  float slope;
};

__device__ inline Gate apply_gate(OutputGate activation, float g) {
  if (activation == OutputGate::kNone) return {g, 1.0f};
  const Sigmoid s(g);
  if (activation == OutputGate::kSigmoid) return {s.value, s.value * s.complement};
  return {g * s.value, s.value * fmaf(g, s.complement, 1.0f)};
}

}  // namespace tandem::cuda::gated_output
