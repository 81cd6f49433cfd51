// NaN and inf in one channel of one sequence never reach another channel or sequence: planted in
// every input of gated_scan, forward and backward, on both sides of boundaries that lie in partial
// chunks; everything else must keep its bits.
#include <gtest/gtest.h>

#include "planting.h"

namespace tandem::tools {
namespace {

/// Sequences of 70, 30, 0 and 65 tokens and 5 tokens after them; or three batches of 70.
const std::vector<Layout> kLayouts = {
    {R"([{"name": "varlen", "axes": {"B": 1, "T": 170, "D": 40}, "dtype": ["bf16"],
      "decay": {"kind": "log_decay", "distribution": "normal"}, "states": "both", "kept": "no",
      "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
     {0, 70, 100, 100, 165}},
    {R"([{"name": "varlen_odd", "axes": {"B": 1, "T": 170, "D": 40}, "dtype": ["bf16"],
      "decay": {"kind": "log_decay", "distribution": "normal"}, "states": "both", "kept": "no", "strides": "odd",
      "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
     {0, 70, 100, 100, 165}},
    {R"([{"name": "batch", "axes": {"B": 3, "T": 70, "D": 40}, "dtype": ["bf16"],
      "decay": {"kind": "log_decay", "distribution": "normal"}, "states": "both", "kept": "no", "tags": ["check"]}])",
     {0, 70, 140, 210}},
};

const Planting kForward = {.operation = find_operation("gated_scan"),
                           .by_token = {"x", "log_decay", "gate"},
                           .states = {"initial_state"},
                           .forwards_only = true,
                           .layouts = kLayouts,
                           .heads = 40};

const Planting kBackward = {.operation = find_operation("gated_scan", "backward"),
                            .by_token = {"x", "log_decay", "gate", "d_out"},
                            .states = {"initial_state", "d_final_state"},
                            .forwards_only = false,
                            .layouts = kLayouts,
                            .heads = 40};

TEST(GatedScanNan, StaysInItsSequenceAndChannel) {
  for (const Planting* planting : {&kForward, &kBackward}) {
    expect_contained(*planting, {DType::kBFloat16, DType::kFloat16, DType::kFloat32},
                     Device::cpu());
  }
}

TEST(GpuGatedScanNan, StaysInItsSequenceAndChannel) {
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
