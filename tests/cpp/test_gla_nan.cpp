// NaN and inf in one sequence or head never reach another: planted on both sides of a boundary that
// lies in a partial chunk, in every input; everything outside the sequence and head must keep its
// bits.
#include <gtest/gtest.h>

#include "planting.h"

namespace tandem::tools {
namespace {

/// Sequences of 70, 30, 0 and 65 tokens and 5 tokens after them; or three batches of 70.
const Planting kPlanting = {
    .operation = find_operation("gla"),
    .by_token = {"q", "k", "v", "log_decay"},
    .states = {"initial_state"},
    .forwards_only = true,
    .layouts = {
        {R"([{"name": "varlen", "axes": {"B": 1, "T": 170, "H": 3, "K": 64}, "dtype": ["bf16"],
          "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both",
          "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
         {0, 70, 100, 100, 165}},
        {R"([{"name": "varlen_odd", "axes": {"B": 1, "T": 170, "H": 3, "K": 40, "V": 96}, "dtype": ["bf16"],
          "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both", "strides": "odd",
          "cu_seqlens": [0, 70, 100, 100, 165], "tags": ["check"]}])",
         {0, 70, 100, 100, 165}},
        {R"([{"name": "batch", "axes": {"B": 3, "T": 70, "H": 3, "K": 96}, "dtype": ["bf16"],
          "decay": {"kind": "per_token", "distribution": "normal"}, "states": "both", "tags": ["check"]}])",
         {0, 70, 140, 210}},
    }};

TEST(GlaNan, StaysInItsSequenceAndHead) {
  expect_contained(kPlanting, {DType::kBFloat16, DType::kFloat16, DType::kFloat32}, Device::cpu());
}

TEST(GpuGlaNan, StaysInItsSequenceAndHead) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  expect_contained(kPlanting, {DType::kBFloat16, DType::kFloat16}, Device::cuda());
}

/// -inf forgets exactly, however large the state was.
TEST(GlaNan, ResetForgetsAHugeState) {
  const Layout& layout = kPlanting.layouts[0];
  TensorSet set =
      find_operation("gla").make(parse_cases("gla", layout.json, "test")[0], DType::kFloat32, 5);
  const NamedTensor& decay = set.get("log_decay");
  const NamedTensor& state = set.get("initial_state");
  for (std::int64_t h = 0; h < kPlanting.heads; ++h) {
    store(DType::kFloat32, set.buffers[decay.buffer].data() + decay.offset, element(decay, 0, h),
          -kInf);
    store(DType::kFloat32, set.buffers[state.buffer].data() + state.offset, h * 64 * 64 + 7, 1e30f);
  }
  for (const std::string& variant : available_variants(find_operation("gla"), Device::cpu())) {
    const Buffers after =
        run(with_variant(find_operation("gla"), variant), set, set.buffers, Device::cpu());
    for (const OutputError& error : find_operation("gla").expect(set, false)->compare(set, after)) {
      EXPECT_TRUE(error.passed) << variant << " " << error.output << " " << error.value;
    }
  }
}

}  // namespace
}  // namespace tandem::tools
