// The host side of causal_conv1d on CUDA: which variant a problem gets and why others are passed
// over, how it is cut, the workspace. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/causal_conv1d/variants.h"
#include "ops/causal_conv1d.h"
#include "tandem/tandem.h"

namespace tandem::cuda::causal_conv1d {
namespace {

using ::testing::HasSubstr;

const DeviceProperties kDevice = DeviceProperties::h200();

TensorView view(std::uintptr_t address, const Dims& shape, DType dtype) {
  return TensorView::contiguous(reinterpret_cast<void*>(address << 44), dtype, shape,
                                Device::cuda());
}

/// Contiguous tensors at an aligned address that nothing reads.
CausalConv1dForwardArgs forward_args(const Dims& shape, DType dtype = DType::kBFloat16) {
  CausalConv1dForwardArgs args;
  args.x = view(1, shape, dtype);
  args.weight = view(2, {shape[2], 4}, dtype);
  args.out = view(3, shape, dtype);
  return args;
}

CausalConv1dBackwardArgs backward_args(const Dims& shape, DType dtype = DType::kBFloat16) {
  const CausalConv1dForwardArgs forward = forward_args(shape, dtype);
  CausalConv1dBackwardArgs args;
  args.x = forward.x;
  args.weight = forward.weight;
  args.d_out = view(4, shape, dtype);
  args.dx = view(5, shape, dtype);
  args.d_weight = view(6, {shape[2], 4}, dtype);
  return args;
}

std::string name_of(const CausalConv1dForwardArgs& args) {
  return choose(make_problem(args), kDevice).name;
}
std::string name_of(const CausalConv1dBackwardArgs& args) {
  return choose(make_problem(args), kDevice).name;
}

TEST(CausalConv1dVariants, DtypesAndAlignmentChoose) {
  EXPECT_EQ(name_of(forward_args({2, 100, 64})), "causal_conv1d_forward.sm90.bf16.rows");
  EXPECT_EQ(name_of(forward_args({2, 100, 66})), "causal_conv1d_forward.sm90.bf16.scalar");
  EXPECT_EQ(name_of(forward_args({2, 100, 64}, DType::kFloat16)),
            "causal_conv1d_forward.sm90.fp16.rows");
  EXPECT_EQ(name_of(backward_args({2, 100, 64}, DType::kFloat32)),
            "causal_conv1d_backward.sm90.fp32.rows");
  CausalConv1dForwardArgs args = forward_args({2, 100, 64});
  args.out.data = static_cast<char*>(args.out.data) + 2;
  EXPECT_EQ(name_of(args), "causal_conv1d_forward.sm90.bf16.scalar");
  EXPECT_EQ(reason_against(forward_variants()[0], make_problem(args)),
            "out does not start at a multiple of 8 bytes");
  args = forward_args({2, 100, 64});
  args.x.data = static_cast<char*>(args.x.data) + 8;
  EXPECT_EQ(reason_against(forward_variants()[0], make_problem(args)),
            "x does not start at a multiple of 16 bytes");
  CausalConv1dBackwardArgs gradients = backward_args({2, 100, 64});
  gradients.dx->strides = {6600, 66, 1};
  EXPECT_EQ(name_of(gradients), "causal_conv1d_backward.sm90.bf16.scalar");
  EXPECT_EQ(reason_against(backward_variants()[0], make_problem(gradients)),
            "dx has a time stride of 132 bytes, not a multiple of 8");
  gradients.dx.reset();  // what is not wanted need not be aligned
  EXPECT_EQ(name_of(gradients), "causal_conv1d_backward.sm90.bf16.rows");
}

TEST(CausalConv1dVariants, StepsTakeAnyLayout) {
  CausalConv1dStepArgs args;
  args.x = view(1, {3, 33}, DType::kBFloat16);
  args.weight = view(2, {33, 3}, DType::kFloat32);
  args.state = view(3, {3, 33, 2}, DType::kBFloat16);
  args.state.strides = {200, 1, 100};
  args.out = view(4, {3, 33}, DType::kBFloat16);
  EXPECT_EQ(choose(make_problem(args), kDevice).name, "causal_conv1d_step.sm90.bf16");
}

TEST(CausalConv1dVariants, ReasonsNameTheLimit) {
  const ForwardVariant& variant = forward_variants()[0];
  const auto reason = [&](const Dims& shape) {
    return reason_against(variant, make_problem(forward_args(shape)));
  };
  EXPECT_EQ(reason({1, 8, 66}), "takes D a multiple of 4, got 66");
  EXPECT_EQ(reason({1, std::int64_t{1} << 31, 8}), "takes T up to 2146435072, got 2147483648");
  EXPECT_EQ(reason_against(variant, make_problem(forward_args({1, 8, 8}, DType::kFloat32))),
            "takes bf16, got fp32");
}

TEST(CausalConv1dVariants, OldDevicesAreRefusedWithEveryVariantsReason) {
  DeviceProperties device = kDevice;
  device.name = "NVIDIA A100";
  device.compute_major = 8;
  try {
    choose(make_problem(forward_args({1, 8, 8})), device);
    FAIL() << "no refusal";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("[causal_conv1d_forward] no variant on NVIDIA A100 takes"));
    EXPECT_THAT(error.what(), HasSubstr("causal_conv1d_forward.sm90.fp32.scalar: needs compute "
                                        "capability 9.0, NVIDIA A100 has 8.0"));
  }
}

Cut forward_cut(const Dims& shape, int channels = kChannels) {
  return cut_tokens(make_problem(forward_args(shape)), kForwardPace, channels, false,
                    kDevice.multiprocessors);
}

TEST(CausalConv1dCut, StripsAreShortEnoughToKeepTheDeviceBusy) {
  for (const Dims& shape : {Dims{8, 4096, 4096}, {4, 2048, 5376}, {1, 2048, 4096}}) {
    EXPECT_GE(forward_cut(shape).blocks(), kDevice.multiprocessors);
  }
  EXPECT_EQ(forward_cut({1, 128, 256}).strip_tokens, 8);
  EXPECT_EQ(forward_cut({8, 4096, 4096}).strip_tokens, 64);
  // No longer than rows.
  EXPECT_EQ(forward_cut({5000, 7, 256}).strips_per_row, 1);
}

/// Every token and channel has one thread.
TEST(CausalConv1dCut, CoversTheCall) {
  for (const Dims& shape : {Dims{8, 4096, 4096}, {1, 1, 4}, {300, 7, 12}, {2, 1000, 5376}}) {
    const Cut cut = forward_cut(shape);
    const std::int64_t T = shape[1];
    EXPECT_GE(std::int64_t{cut.strips_per_row} * cut.strip_tokens, T);
    EXPECT_LT(std::int64_t{cut.strips_per_row - 1} * cut.strip_tokens, T);
    EXPECT_EQ(cut.strips, shape[0] * cut.strips_per_row);
    EXPECT_GE(cut.token_blocks * cut.strips_per_block(), cut.strips);
    EXPECT_GE(std::int64_t{cut.channel_blocks} * cut.columns * kChannels, shape[2]);
    EXPECT_EQ(kThreads % cut.columns, 0);
  }
  EXPECT_EQ(forward_cut({1, 0, 8}).blocks(), 0);
  EXPECT_EQ(forward_cut({0, 8, 8}).blocks(), 0);
}

TEST(CausalConv1dVariants, WorkspaceIsASumForEachBlockOfTokens) {
  EXPECT_EQ(causal_conv1d_forward_workspace_bytes(forward_args({8, 4096, 4096}), kDevice), 0u);
  CausalConv1dBackwardArgs args = backward_args({8, 4096, 4096});
  const CausalConv1dBackwardProblem problem = make_problem(args);
  const Cut cut =
      cut_tokens(problem.forward, backward_pace(2), kChannels, false, kDevice.multiprocessors);
  EXPECT_EQ(causal_conv1d_backward_workspace_bytes(args, kDevice),
            static_cast<std::size_t>(cut.token_blocks) * 4096 * 5 * 4);
  args.d_weight.reset();
  EXPECT_EQ(causal_conv1d_backward_workspace_bytes(args, kDevice), 0u);
}

}  // namespace
}  // namespace tandem::cuda::causal_conv1d
