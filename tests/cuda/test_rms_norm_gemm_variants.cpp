// The host side of rms_norm_gemm on CUDA: its variants and workspace. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "cuda/projection/forward_plan.h"
#include "cuda/projection/heads_plan.h"
#include "ops/projection.h"
#include "ops/rms_norm_gemm.h"
#include "planned.h"
#include "tandem/tandem.h"

namespace tandem::cuda {
namespace {

using ::testing::EndsWith;
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
  constexpr std::size_t kRows = std::size_t{1024} * 2048 * 2;  // of dn, or of n
  args.dx = view(6, {1024, 2048});
  EXPECT_EQ(bytes(), kRows);
  args.d_norm_weight = view(7, {2048});
  EXPECT_GT(bytes(), kRows);
  EXPECT_LT(bytes(), 2 * kRows);
  const std::size_t without_weight = bytes();
  args.segments[0].d_weight = view(8, {2048, 2048});
  EXPECT_EQ(bytes(), without_weight);  // n lies where dn did
  args.dx.reset();
  args.d_norm_weight.reset();
  EXPECT_EQ(bytes(), kRows);
}

using projection::ForwardVariant;

/// The call with heads that end in both, of queries alone.
RmsNormGemmForwardArgs with_heads(RmsNormGemmForwardArgs args, std::int64_t width,
                                  std::int64_t rotated) {
  RmsNormGemmSegment& segment = args.segments[0];
  segment.head_width = width;
  segment.head_norm_weight = view(5, {width});
  segment.rotates = true;
  args.rope_cos = view(6, {1 << 16, rotated / 2}, DType::kFloat32);
  args.rope_sin = view(7, {1 << 16, rotated / 2}, DType::kFloat32);
  return args;
}

const ForwardVariant& variant(const std::string& end) {
  for (const ForwardVariant& one : projection::forward_variants()) {
    if (one.name == "projection_forward.sm90.bf16." + end) return one;
  }
  throw std::out_of_range(end);
}

std::string reason(const std::string& end, const RmsNormGemmForwardArgs& args) {
  return projection::reason_against(variant(end), make_problem(args).projection);
}

TEST(RmsNormGemmHeadVariants, TakeWhatTheOthersDoNot) {
  const RmsNormGemmForwardArgs plain = forward_args(100, 64, 256);
  const RmsNormGemmForwardArgs heads = with_heads(plain, 128, 128);
  for (const std::string end : {"n128", "n256.plain", "m32"}) {
    EXPECT_EQ(reason(end, heads), end == "m32" ? "takes up to 32 rows, got M 100"
                                               : "takes segments without head norms and rotations");
  }
  for (const std::string end : {"n128.heads", "n256.heads"}) {
    EXPECT_EQ(reason(end, heads), "");
    EXPECT_EQ(reason(end, plain), "takes segments with head norms or rotations");
  }
  EXPECT_EQ(reason("n192.heads", heads), "");
  EXPECT_EQ(reason("m8.heads", with_heads(forward_args(8, 64, 256), 128, 128)), "");
  EXPECT_EQ(reason("m8.heads", heads), "takes up to 8 rows, got M 100");
}

/// The variant that a call takes with heads of 128 columns that are turned, of queries, keys and
/// values.
std::string chosen(std::int64_t M, std::int64_t d, std::int64_t queries, bool normalizes) {
  RmsNormGemmForwardArgs args = forward_args(M, d, 0);
  args.segments.clear();
  for (const std::int64_t columns : {queries, std::int64_t{1024}, std::int64_t{1024}}) {
    const int address = 10 + 10 * static_cast<int>(args.segments.size());
    RmsNormGemmSegment segment;
    segment.weight = view(address, {columns, d});
    segment.out = view(address + 1, {M, columns});
    segment.rotates = args.segments.size() < 2;
    if (segment.rotates) segment.head_width = 128;
    if (segment.rotates && normalizes) segment.head_norm_weight = view(address + 2, {128});
    args.segments.push_back(segment);
  }
  args.rope_cos = view(6, {1 << 16, 64}, DType::kFloat32);
  args.rope_sin = view(7, {1 << 16, 64}, DType::kFloat32);
  return chosen_variant(&projection_forward_workspace_bytes, make_problem(args).projection, false,
                        "");
}

TEST(RmsNormGemmHeadVariants, ByPredictedTime) {
  EXPECT_THAT(chosen(128, 4096, 4096, false), HasSubstr(".m"));  // of few rows
  EXPECT_THAT(chosen(200, 4096, 4096, false), EndsWith(".n128.heads"));
  EXPECT_THAT(chosen(128, 4096, 4096, true), HasSubstr(".m"));
  EXPECT_THAT(chosen(200, 4096, 4096, true), EndsWith(".n128.heads"));
  EXPECT_THAT(chosen(128, 5120, 8192, true), EndsWith(".n128.heads"));
  EXPECT_THAT(chosen(300, 4096, 4096, false), EndsWith(".n160.heads"));
  EXPECT_THAT(chosen(256, 4096, 4096, false), EndsWith(".n128.heads"));
  EXPECT_THAT(chosen(384, 4096, 4096, false), EndsWith(".n160.heads"));  // one wave
  EXPECT_THAT(chosen(512, 4096, 4096, false), EndsWith(".n256.heads"));
  EXPECT_THAT(chosen(200, 5120, 8192, true), EndsWith(".n160.heads"));
  EXPECT_THAT(chosen(384, 5120, 8192, true), EndsWith(".n256.heads"));
  EXPECT_THAT(chosen(2048, 4096, 4096, true), EndsWith(".n128.heads"));
}

TEST(RmsNormGemmHeadPlan, ATileFinishesWhatItCan) {
  const auto leaves = [](const std::string& end, const RmsNormGemmForwardArgs& args) {
    const auto plan = projection::plan_forward(variant(end), make_problem(args).projection);
    EXPECT_EQ(plan.workspace_bytes > 0, plan.segments[0].wide);
    return plan.segments[0].wide;
  };
  const RmsNormGemmForwardArgs plain = forward_args(100, 64, 768);
  EXPECT_FALSE(leaves("n128.heads", with_heads(plain, 128, 128)));
  EXPECT_FALSE(leaves("n128.heads", with_heads(plain, 96, 32)));
  EXPECT_TRUE(leaves("n128.heads", with_heads(plain, 256, 64)));
  EXPECT_FALSE(leaves("n256.heads", with_heads(plain, 256, 256)));
  EXPECT_TRUE(leaves("n192.heads", with_heads(plain, 128, 128)));
  // Tiles of 256 columns finish regular heads alone.
  EXPECT_FALSE(leaves("n256.heads", with_heads(plain, 128, 128)));
  EXPECT_TRUE(leaves("n256.heads", with_heads(plain, 128, 64)));
  EXPECT_TRUE(leaves("n256.heads", with_heads(plain, 96, 32)));
  // Halves that are no power of two of blocks apart; neighbours always are.
  RmsNormGemmForwardArgs odd = with_heads(plain, 96, 96);
  EXPECT_TRUE(leaves("n128.heads", odd));
  odd.rope_layout = RopeLayout::kInterleaved;
  EXPECT_FALSE(leaves("n128.heads", odd));
  EXPECT_TRUE(leaves("n128.heads", with_heads(plain, 96, 8)));
  // Tables that are not read in pairs.
  RmsNormGemmForwardArgs apart = with_heads(plain, 128, 128);
  apart.rope_cos->strides[0] += 1;
  EXPECT_TRUE(leaves("n128.heads", apart));
  apart = with_heads(plain, 128, 128);
  apart.rope_sin->data = static_cast<char*>(apart.rope_sin->data) + 4;
  EXPECT_TRUE(leaves("n128.heads", apart));
}

TEST(RmsNormGemmHeadPlan, TheBackwardMakesDzAndSums) {
  RmsNormGemmBackwardArgs args;
  args.x = view(1, {1024, 512});
  args.norm_weight = view(2, {512});
  args.rstd = view(3, {1024}, DType::kFloat32);
  args.segments.push_back({.weight = view(4, {512, 512}),
                           .head_width = 128,
                           .head_norm_weight = view(5, {128}),
                           .pre_norm = view(6, {1024, 512}),
                           .head_rstd = view(7, {1024, 4}, DType::kFloat32),
                           .d_out = view(8, {1024, 512})});
  const auto bytes = [&] {
    return rms_norm_gemm_backward_workspace_bytes(make_problem(args), kDevice, {});
  };
  EXPECT_EQ(bytes(), 0u);
  args.dx = view(9, {1024, 512});
  constexpr std::size_t kMatrix = std::size_t{1024} * 512 * 2;  // dn, and dz
  EXPECT_EQ(bytes(), 2 * kMatrix);
  args.dx.reset();
  args.segments[0].d_head_norm_weight = view(10, {128});
  EXPECT_GT(bytes(), kMatrix);
  EXPECT_LE(bytes(), kMatrix + 528 * 128 * 4);
}

}  // namespace
}  // namespace tandem::cuda
