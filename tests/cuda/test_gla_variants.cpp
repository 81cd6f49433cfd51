// The host side of gla on CUDA: which variant a problem gets and why others are passed over,
// workspace sizes, and the plan behind every tensor map. Needs no GPU.
#include "cuda/gla/variants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tandem/tandem.h"

namespace tandem::cuda {
namespace {

using ::testing::HasSubstr;

/// Contiguous tensors at an aligned address that nothing reads.
GlaForwardArgs contiguous_args(std::int64_t B, std::int64_t T, int HQ, int H, int K, int V,
                               DType dtype = DType::kBFloat16) {
  const auto view = [&](std::uintptr_t address, const Dims& shape) {
    return TensorView::contiguous(reinterpret_cast<void*>(address), dtype, shape, Device::cuda());
  };
  GlaForwardArgs args;
  args.q = view(1ull << 44, {B, T, HQ, K});
  args.k = view(2ull << 44, {B, T, HQ, K});
  args.v = view(3ull << 44, {B, T, H, V});
  args.o = view(4ull << 44, {B, T, H, V});
  return args;
}

std::string first_accepting(const GlaForwardArgs& args) {
  const GlaForwardProblem problem = make_problem(args);
  for (const ForwardVariant& variant : forward_variants()) {
    if (variant.supports(problem).empty()) return variant.name;
  }
  return "none";
}

const ForwardVariant& variant_named(const std::string& name) {
  for (const ForwardVariant& variant : forward_variants()) {
    if (variant.name == name) return variant;
  }
  throw std::out_of_range(name);
}

TEST(GlaVariants, SmallestTileThatHoldsTheWidthsIsFirst) {
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 64, 64)),
            "gla_forward.sm90.bf16.c64_k64_v64");
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 64, 72)),
            "gla_forward.sm90.bf16.c64_k64_v128");
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 96, 64)),
            "gla_forward.sm90.bf16.c64_k128_v64");
  EXPECT_EQ(first_accepting(contiguous_args(2, 256, 4, 4, 128, 128, DType::kFloat16)),
            "gla_forward.sm90.fp16.c64_k128_v128");
}

TEST(GlaVariants, WhatTmaCannotReadGoesToGather) {
  GlaForwardArgs args = contiguous_args(2, 256, 4, 4, 64, 64);
  args.k.data = static_cast<char*>(args.k.data) + 2;
  EXPECT_EQ(first_accepting(args), "gla_forward.sm90.bf16.c64_k64_v64.gather");
  const auto& tma = variant_named("gla_forward.sm90.bf16.c64_k64_v64");
  EXPECT_EQ(tma.supports(make_problem(args)), "k does not start at a multiple of 16 bytes");

  args = contiguous_args(2, 256, 4, 4, 20, 64);
  EXPECT_EQ(tma.supports(make_problem(args)),
            "q has a head stride of 40 bytes, not a positive multiple of 16 below 2^40");
  args = contiguous_args(2, 256, 4, 4, 64, 64);
  args.v.strides[0] = 0;  // one sequence's values for the whole batch
  EXPECT_EQ(tma.supports(make_problem(args)),
            "v has a batch stride of 0 bytes, not a positive multiple of 16 below 2^40");
  EXPECT_EQ(first_accepting(args), "gla_forward.sm90.bf16.c64_k64_v64.gather");
  EXPECT_EQ(first_accepting(contiguous_args(2, 0, 4, 4, 64, 64)),
            "gla_forward.sm90.bf16.c64_k64_v64.gather");
}

TEST(GlaVariants, ReasonsNameTheLimit) {
  const auto& variant = variant_named("gla_forward.sm90.bf16.c64_k64_v64");
  const auto reason = [&](const GlaForwardArgs& args) {
    return variant.supports(make_problem(args));
  };
  EXPECT_EQ(reason(contiguous_args(1, 1, 1, 1, 64, 64, DType::kFloat16)), "takes bf16, got fp16");
  EXPECT_EQ(reason(contiguous_args(1, 1, 1, 1, 128, 64)), "takes K <= 64, got 128");
  EXPECT_EQ(reason(contiguous_args(1, 1, 1, 1, 64, 96)), "takes V <= 64, got 96");
  EXPECT_EQ(reason(contiguous_args(1, std::int64_t{1} << 31, 1, 1, 64, 64)),
            "takes T < 2^31 - 64, got 2147483648");
}

TEST(GlaVariants, WorkspaceIsAskedForAnyDevice) {
  const GlaForwardArgs args = contiguous_args(2, 256, 4, 4, 128, 128);
  EXPECT_EQ(tandem::gla_forward_workspace_bytes(args, DeviceProperties::h200()), 0u);
  try {
    tandem::gla_forward_workspace_bytes(contiguous_args(1, 64, 1, 1, 512, 64),
                                        DeviceProperties::h200());
    FAIL() << "K = 512 was accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("[gla_forward] no variant on NVIDIA H200"));
    EXPECT_THAT(error.what(), HasSubstr("c64_k128_v128: takes K <= 128, got 512"));
  }
  DeviceProperties a100{DeviceType::kCuda, "NVIDIA A100", 8, 0, 108, 166912, 41943040};
  try {
    tandem::gla_forward_workspace_bytes(args, a100);
    FAIL() << "an A100 was accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs compute capability 9.0, NVIDIA A100 has 8.0"));
  }
  for (const VariantInfo& info : tandem::variants(a100)) EXPECT_NE(info.unavailable, "");
  for (const VariantInfo& info : tandem::variants(DeviceProperties::h200())) {
    EXPECT_EQ(info.unavailable, "") << info.name;
  }
}

TEST(GlaVariants, SwitchForcesOneVariant) {
  const GlaForwardArgs args = contiguous_args(2, 256, 4, 4, 64, 64);
  ASSERT_EQ(setenv("TANDEM_VARIANT", "gla_forward.sm90.fp16.c64_k64_v64", 1), 0);
  try {
    tandem::gla_forward_workspace_bytes(args, DeviceProperties::h200());
    FAIL() << "an fp16 variant was accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("fp16.c64_k64_v64: takes fp16, got bf16"));
    EXPECT_THAT(error.what(), HasSubstr("TANDEM_VARIANT asks for"));
  }
  unsetenv("TANDEM_VARIANT");
}

TEST(GlaVariants, TensorMapPlans) {
  GlaForwardArgs args = contiguous_args(2, 300, 2, 4, 96, 128);
  // q is the first part of a packed [B,T,2*HQ*K] buffer.
  args.q.strides = {std::int64_t{300} * 384, 384, 96, 1};
  const ForwardTilePlans plans = plan_tiles(make_problem(args));
  EXPECT_EQ(plans.q.problem, "");
  EXPECT_EQ(plans.q.base, args.q.data);
  EXPECT_EQ(plans.q.extents, (std::array<std::uint64_t, 4>{96, 2, 300, 2}));
  EXPECT_EQ(plans.q.stride_bytes, (std::array<std::uint64_t, 3>{192, 768, 300 * 768}));
  EXPECT_EQ(plans.q.box, (std::array<std::uint32_t, 4>{64, 1, 64, 1}));
  EXPECT_EQ(plans.o.extents, (std::array<std::uint64_t, 4>{128, 4, 300, 2}));
  EXPECT_EQ(plans.o.stride_bytes, (std::array<std::uint64_t, 3>{256, 1024, 300 * 1024}));
}

TEST(GlaVariants, NoDeviceIsSaidByTheCall) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a device";
  try {
    gla_forward(make_problem(contiguous_args(1, 64, 1, 1, 64, 64)), Context{});
    FAIL() << "ran without a device";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuda:0: no CUDA device: "));
  }
}

}  // namespace
}  // namespace tandem::cuda
