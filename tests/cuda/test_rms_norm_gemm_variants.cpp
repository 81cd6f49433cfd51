// The host side of rms_norm_gemm on CUDA: its variants and workspace. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/rms_norm_gemm.h"
#include "planned.h"
#include "tandem/tandem.h"

namespace tandem::cuda {
namespace {

using ::testing::HasSubstr;

/// Contiguous tensors at aligned addresses that nothing reads.
RmsNormGemmForwardArgs forward_args(std::int64_t M, std::int64_t d, std::int64_t columns) {
  RmsNormGemmForwardArgs args;
  args.x = view(1, {M, d});
  args.norm_weight = view(2, {d});
  args.segments.push_back({.weight = view(3, {columns, d}), .out = view(4, {M, columns})});
  return args;
}

TEST(RmsNormGemmVariants, TakeTheirDtype) {
  std::string name;
  CallOptions options;
  options.chosen = &name;
  rms_norm_gemm_forward_workspace_bytes(make_problem(forward_args(100, 64, 48)), kDevice, options);
  EXPECT_EQ(name, "rms_norm_gemm_forward.sm90.bf16");
  options.variant = "rms_norm_gemm_forward.sm90.fp16";
  try {
    rms_norm_gemm_forward_workspace_bytes(make_problem(forward_args(100, 64, 48)), kDevice,
                                          options);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("takes fp16, got bf16"));
  }
}

TEST(RmsNormGemmPlan, HoldsTheNormalizedRows) {
  const auto bytes = [](std::int64_t M, std::int64_t d) {
    return rms_norm_gemm_forward_workspace_bytes(make_problem(forward_args(M, d, 48)), kDevice, {});
  };
  EXPECT_EQ(bytes(100, 64), 100u * 64 * 2);
  EXPECT_EQ(bytes(0, 64), 0u);
  EXPECT_GE(bytes(100, 60), (100u + 48) * 64 * 2);  // rows of 16 bytes, and the weight's copy
}

TEST(RmsNormGemmPlan, TakesOnlyWhatTheWantedGradientsNeed) {
  RmsNormGemmBackwardArgs args;
  args.x = view(1, {1024, 2048});
  args.norm_weight = view(2, {2048});
  args.rstd = view(3, {1024}, DType::kFloat32);
  args.segments.push_back({.weight = view(4, {2048, 2048}), .d_out = view(5, {1024, 2048})});
  const auto bytes = [&] {
    return rms_norm_gemm_backward_workspace_bytes(make_problem(args), kDevice, {});
  };
  constexpr std::size_t kRows = std::size_t{1024} * 2048 * 2;  // of n, or of dn
  args.dx = view(6, {1024, 2048});
  EXPECT_EQ(bytes(), kRows);
  args.d_norm_weight = view(7, {2048});
  EXPECT_GT(bytes(), kRows);
  EXPECT_LT(bytes(), 2 * kRows);
  args.segments[0].d_weight = view(8, {2048, 2048});
  EXPECT_GE(bytes(), 2 * kRows);
}

}  // namespace
}  // namespace tandem::cuda
