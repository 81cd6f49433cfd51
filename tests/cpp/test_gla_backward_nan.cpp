// NaN and inf in one sequence or head never reach the gradients of another: planted in every input
// of gla_backward, on both sides of boundaries that lie in partial chunks; everything outside the
// sequence and head must keep its bits.
#include <gtest/gtest.h>

#include "planting.h"

namespace tandem::tools {
namespace {

const Planting kPlanting = {
    .operation = find_operation("gla", "backward"),
    .by_token = {"q", "k", "v", "d_o", "log_decay"},
    .states = {"initial_state", "d_final_state"},
    .forwards_only = false,
    .layouts = {
        {R"([{"name": "varlen", "directions": ["backward"], "axes": {"B": 1, "T": 170, "H": 3, "K": 40, "V": 96},
          "dtype": ["bf16"], "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both",
          "strides": "odd", "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
         {0, 70, 100, 100, 165}},
        {R"([{"name": "varlen_wide", "directions": ["backward"], "axes": {"B": 1, "T": 170, "H": 3, "K": 72, "V": 96},
          "dtype": ["bf16"], "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both",
          "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
         {0, 70, 100, 100, 165}},
        {R"([{"name": "batch", "directions": ["backward"], "axes": {"B": 3, "T": 70, "H": 3, "K": 64},
          "dtype": ["bf16"], "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both",
          "tags": ["check"]}])",
         {0, 70, 140, 210}},
    }};

TEST(GlaBackwardNan, StaysInItsSequenceAndHead) {
  expect_contained(kPlanting, {DType::kBFloat16, DType::kFloat16, DType::kFloat32}, Device::cpu());
}

TEST(GpuGlaBackwardNan, StaysInItsSequenceAndHead) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  if (available_variants(find_operation("gla", "backward"), Device::cuda()).empty())
    GTEST_SKIP() << "no variant yet";
  expect_contained(kPlanting, {DType::kBFloat16, DType::kFloat16}, Device::cuda());
}

}  // namespace
}  // namespace tandem::tools
