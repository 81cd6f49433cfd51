// NaN and inf in one channel of one sequence never reach another channel or sequence: planted in
// every input of causal_conv1d but its taps, forward and backward, on both sides of boundaries that
// lie in partial chunks; everything else must keep its bits.
#include <gtest/gtest.h>

#include "planting.h"

namespace tandem::tools {
namespace {

/// Sequences of 70, 30, 0, 2 and 63 tokens and 5 tokens after them; or three batches of 70.
const std::vector<Layout> kLayouts = {
    {R"([{"name": "varlen", "axes": {"B": 1, "T": 170, "D": 40, "W": 4}, "dtype": ["bf16"],
      "bias": "same", "states": "both", "cu_seqlens": [0, 70, 100, 100, 102, 165],
      "tags": ["check"]}])",
     {0, 70, 100, 100, 102, 165}},
    {R"([{"name": "varlen_misaligned", "axes": {"B": 1, "T": 170, "D": 40, "W": 4},
      "dtype": ["bf16"], "states": "both", "strides": "misaligned", "activation": "none",
      "cu_seqlens": [0, 70, 100, 100, 102, 165], "tags": ["check"]}])",
     {0, 70, 100, 100, 102, 165}},
    {R"([{"name": "batch", "axes": {"B": 3, "T": 70, "D": 40, "W": 3}, "dtype": ["bf16"],
      "states": "both", "tags": ["check"]}])",
     {0, 70, 140, 210}},
};

const Planting kForward = {.operation = find_operation("causal_conv1d"),
                           .by_token = {"x"},
                           .states = {"initial_state"},
                           .forwards_only = true,
                           .layouts = kLayouts,
                           .heads = 40};

const Planting kBackward = {.operation = find_operation("causal_conv1d", "backward"),
                            .by_token = {"x", "d_out"},
                            .states = {"initial_state", "d_final_state"},
                            .forwards_only = false,
                            .layouts = kLayouts,
                            .heads = 40};

TEST(CausalConv1dNan, StaysInItsSequenceAndChannel) {
  for (const Planting* planting : {&kForward, &kBackward}) {
    expect_contained(*planting, {DType::kBFloat16, DType::kFloat16, DType::kFloat32},
                     Device::cpu());
  }
}

TEST(GpuCausalConv1dNan, StaysInItsSequenceAndChannel) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  for (const Planting* planting : {&kForward, &kBackward}) {
    if (available_variants(planting->operation, Device::cuda()).empty()) {
      GTEST_SKIP() << "no variant yet";
    }
    expect_contained(*planting, {DType::kBFloat16, DType::kFloat16, DType::kFloat32},
                     Device::cuda());
  }
}

}  // namespace
}  // namespace tandem::tools
