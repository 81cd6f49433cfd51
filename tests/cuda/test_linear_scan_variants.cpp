// The host side of linear_scan on CUDA: which variant a problem gets and why others are passed
// over, how it is cut into tiles, workspace sizes. Needs no GPU.
#include "cuda/linear_scan/variants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cuda/linear_scan/backward.h"
#include "ops/linear_scan.h"
#include "tandem/tandem.h"

namespace tandem::cuda::linear_scan {
namespace {

using ::testing::HasSubstr;

const DeviceProperties kDevice = DeviceProperties::h200();

TensorView view(int address, const Dims& shape, DType dtype = DType::kFloat16) {
  return TensorView::contiguous(reinterpret_cast<void*>(std::uintptr_t{1} * address << 44), dtype,
                                shape, Device::cuda());
}

/// Contiguous tensors at aligned addresses that nothing reads.
LinearScanForwardArgs contiguous_args(std::int64_t B, std::int64_t T, int d, int D,
                                      DType dtype = DType::kFloat16) {
  LinearScanForwardArgs args;
  args.u = view(1, {B, T, d}, dtype);
  args.weight = view(2, {D, d}, dtype);
  args.log_decay = view(3, {B, T, D}, dtype);
  args.gate = view(4, {B, T, D}, dtype);
  args.out = view(5, {B, T, D}, dtype);
  return args;
}

std::string first_accepting(const LinearScanForwardArgs& args) {
  const LinearScanForwardProblem problem = make_problem(args);
  const Tiling best = choose_tiling(problem, kDevice);
  for (const ForwardVariant& variant : forward_variants()) {
    if (reason_against(variant, problem, kDevice, best).empty()) return variant.name;
  }
  return "none";
}

/// Why the variant of this name refuses.
std::string reason_of(const std::string& name, const LinearScanForwardArgs& args,
                      const CallOptions& options = {}) {
  const LinearScanForwardProblem problem = make_problem(args);
  const Tiling best = choose_tiling(problem, kDevice);
  for (const ForwardVariant& variant : forward_variants()) {
    if (variant.name == name) return reason_against(variant, problem, kDevice, best, options);
  }
  throw std::out_of_range(name);
}

struct Decision {
  const char* what;
  std::int64_t B, T;
  int d, D;
  Tiling tiling;
};

TEST(LinearScanVariants, TilesByShape) {
  using enum Tiling;
  const Decision decisions[] = {
      {"fewer tiles than multiprocessors", 4, 2048, 256, 64, kAlone},
      {"more tiles than multiprocessors", 16, 2048, 256, 64, kSmall},
      {"many columns", 8, 4096, 1024, 1024, kChain},
      {"many, but one tile of each", 300, 100, 64, 200, kSmall},
      {"many, but hardly a token", 300, 2, 64, 200, kSmall},
      {"few columns of many tokens", 1, 8192, 256, 512, kSmall},
      {"few columns, each of long products", 1, 4096, 4096, 4096, kComposed},
      {"columns enough for tiles, too few for chains", 1, 2048, 1024, 1024, kComposed},
      {"narrow, however many", 64, 8192, 256, 64, kSmall},
      {"few tiles of long products", 1, 512, 4096, 4096, kComposed},
      {"few tokens of many sequences", 64, 1, 4096, 4096, kComposed},
  };
  for (const Decision& one : decisions) {
    const auto problem = make_problem(contiguous_args(one.B, one.T, one.d, one.D));
    EXPECT_EQ(choose_tiling(problem, kDevice), one.tiling) << one.what;
  }
}

TEST(LinearScanVariants, WhatIsKeptCostsATileMoreThanTwoLaunches) {
  LinearScanForwardArgs args = contiguous_args(8, 2048, 768, 1536);
  EXPECT_EQ(choose_tiling(make_problem(args), kDevice), Tiling::kChain);
  args.x = view(10, {8, 2048, 1536});
  EXPECT_EQ(choose_tiling(make_problem(args), kDevice), Tiling::kComposed);
}

TEST(LinearScanVariants, TheQuickestIsFirst) {
  EXPECT_EQ(first_accepting(contiguous_args(4, 2048, 256, 64)),
            "linear_scan_forward.sm90.fp16.c64_t64_alone");
  EXPECT_EQ(first_accepting(contiguous_args(16, 2048, 256, 64)),
            "linear_scan_forward.sm90.fp16.c64_t64");
  EXPECT_EQ(first_accepting(contiguous_args(8, 4096, 1024, 1024, DType::kBFloat16)),
            "linear_scan_forward.sm90.bf16.c128_t256_chain");
  EXPECT_EQ(reason_of("linear_scan_forward.sm90.fp16.c64_t64", contiguous_args(16, 4096, 256, 512)),
            "is slower here than c128_t256_chain");
}

TEST(LinearScanVariants, WhatTmaCannotReadIsComposed) {
  const std::string tma = "linear_scan_forward.sm90.fp16.c64_t64";
  const std::string composed = "linear_scan_forward.sm90.fp16.composed";
  LinearScanForwardArgs args = contiguous_args(16, 2048, 256, 64);
  args.gate->data = static_cast<char*>(args.gate->data) + 2;
  EXPECT_EQ(first_accepting(args), composed);
  EXPECT_EQ(reason_of(tma, args), "gate does not start at a multiple of 16 bytes");

  args = contiguous_args(16, 2048, 20, 64);
  EXPECT_EQ(first_accepting(args), composed);
  EXPECT_EQ(reason_of(tma, args),
            "u has a time stride of 40 bytes, not a positive multiple of 16 below 2^40");
  args = contiguous_args(16, 2048, 64, 64);
  args.log_decay->strides[0] = 0;  // one row's decays for the whole batch
  EXPECT_EQ(first_accepting(args), composed);
  EXPECT_EQ(first_accepting(contiguous_args(4, 0, 64, 64)), composed);
}

/// Tiles of packed tokens are many sequences': a product's rows and the scan's sequences are not.
TEST(LinearScanVariants, BatchInvariantCallsAreComposed) {
  const auto chosen = [](const LinearScanForwardArgs& args, bool batch_invariant) {
    linear_scan_forward_workspace_bytes(args, kDevice, batch_invariant);
    return last_variant();
  };
  const std::string composed = "linear_scan_forward.sm90.fp16.composed";
  for (const std::int64_t B : {1, 16}) {
    for (const std::int64_t T : {1, 100, 4096}) {
      EXPECT_EQ(chosen(contiguous_args(B, T, 256, 64), true), composed) << B << " " << T;
      EXPECT_NE(chosen(contiguous_args(B, T, 256, 64), false), composed) << B << " " << T;
    }
  }
  LinearScanForwardArgs packed = contiguous_args(1, 4096, 256, 64);
  packed.cu_seqlens = view(9, {101}, DType::kInt32);
  EXPECT_EQ(chosen(packed, true), composed);
  EXPECT_THAT(reason_of(composed, contiguous_args(1, std::int64_t{1} << 31, 8, 8),
                        {.batch_invariant = true}),
              HasSubstr("takes M below 2^31 - 128"));
  EXPECT_EQ(reason_of("linear_scan_forward.sm90.fp16.c64_t64", packed, {.batch_invariant = true}),
            "is not batch-invariant");
}

TEST(LinearScanVariants, Fp32DecaysAreComposed) {
  LinearScanForwardArgs args = contiguous_args(8, 4096, 1024, 1024);
  args.log_decay = view(3, {8, 4096, 1024}, DType::kFloat32);
  EXPECT_EQ(first_accepting(args), "linear_scan_forward.sm90.fp16.composed");
  EXPECT_EQ(reason_of("linear_scan_forward.sm90.fp16.c128_t256_chain", args),
            "takes decays in fp16, got fp32");
}

TEST(LinearScanVariants, ReasonsNameTheLimit) {
  const std::string name = "linear_scan_forward.sm90.fp16.c64_t64";
  EXPECT_EQ(reason_of(name, contiguous_args(1, 8, 8, 8, DType::kBFloat16)), "takes fp16, got bf16");
  EXPECT_EQ(reason_of(name, contiguous_args(1, std::int64_t{1} << 31, 8, 8)),
            "takes T < 2^31 - 256, got 2147483648");
  EXPECT_EQ(reason_of(name, contiguous_args(std::int64_t{1} << 31, 1, 8, 8)),
            "takes fewer than 2^31 - 1 sequences, got 2147483648");
  EXPECT_THAT(reason_of(name, contiguous_args(1 << 20, 64 * 2048, 8, 8)),
              HasSubstr("tiles, got 2147483648"));
}

TEST(LinearScanVariants, RefusalsListEveryVariant) {
  const LinearScanForwardArgs args = contiguous_args(1, std::int64_t{1} << 31, 8, 8);
  try {
    linear_scan_forward_workspace_bytes(args, DeviceProperties::h200());
    FAIL() << "2^31 tokens were accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("[linear_scan_forward] no variant on NVIDIA H200"));
    EXPECT_THAT(error.what(), HasSubstr("bf16.c64_t64: takes bf16, got fp16"));
    EXPECT_THAT(error.what(), HasSubstr("fp16.c64_t64: takes T < 2^31 - 256"));
  }
  const DeviceProperties a100{DeviceType::kCuda, "NVIDIA A100", 8, 0, 108, 166912, 41943040};
  try {
    linear_scan_forward_workspace_bytes(contiguous_args(4, 2048, 256, 64), a100);
    FAIL() << "an A100 was accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs compute capability 9.0, NVIDIA A100 has 8.0"));
  }
}

TEST(LinearScanVariants, WorkspaceHoldsTheTilesRecords) {
  const auto bytes = [](const LinearScanForwardArgs& args) {
    return linear_scan_forward_workspace_bytes(args, DeviceProperties::h200());
  };
  // 128 tiles' maps of 64 channels, a state for each of 4 columns' one group of 64, the ticket.
  EXPECT_EQ(bytes(contiguous_args(4, 2048, 256, 64)), 128u * 64 * 8 + 4 * 64 * 4 + 256);
  // 16 tiles' states of 64 columns of 128 channels, the ticket.
  EXPECT_EQ(bytes(contiguous_args(8, 4096, 1024, 1024)), 16u * 64 * 128 * 4 + 256);
}

TEST(LinearScanVariants, PlansOfCtas) {
  const auto blocks = [](std::int64_t B, std::int64_t T, int d, int D) {
    const LinearScanForwardProblem problem = make_problem(contiguous_args(B, T, d, D));
    return plan_forward(problem, choose_tiling(problem, kDevice), kDevice).blocks;
  };
  EXPECT_EQ(blocks(4, 2048, 256, 64), 128u);
  EXPECT_EQ(blocks(16, 2048, 256, 64), 264u);
  EXPECT_EQ(blocks(8, 4096, 1024, 1024), 132u);
  EXPECT_EQ(blocks(1, 0, 64, 64), 1u);
}

LinearScanBackwardArgs backward_args(std::int64_t B, std::int64_t T, int d, int D) {
  const LinearScanForwardArgs forward = contiguous_args(B, T, d, D);
  LinearScanBackwardArgs args;
  args.u = forward.u;
  args.weight = forward.weight;
  args.log_decay = forward.log_decay;
  args.gate = forward.gate;
  args.d_out = view(6, {B, T, D});
  return args;
}

BackwardPlan plan_of(const LinearScanBackwardArgs& args) {
  return plan_backward(make_problem(args), DeviceProperties::h200());
}

TEST(LinearScanBackward, KeepsOnlyWhatIsAskedFor) {
  LinearScanBackwardArgs args = backward_args(4, 2048, 256, 64);
  args.d_initial_state = view(7, {4, 64}, DType::kFloat32);
  BackwardPlan plan = plan_of(args);
  EXPECT_FALSE(plan.projects);
  EXPECT_FALSE(plan.needs_dx);
  args.du = view(8, {4, 2048, 256});
  plan = plan_of(args);
  EXPECT_FALSE(plan.projects);
  EXPECT_TRUE(plan.needs_dx);
  args.d_gate = view(9, {4, 2048, 64});
  EXPECT_TRUE(plan_of(args).projects);
  args.x = view(10, {4, 2048, 64});
  EXPECT_FALSE(plan_of(args).projects);
}

TEST(LinearScanBackward, CopiesWhatIsNotTheRowsOfOneMatrix) {
  LinearScanBackwardArgs args = backward_args(4, 2048, 256, 64);
  args.d_weight = view(8, {64, 256});
  args.du = view(9, {4, 2048, 256});
  EXPECT_FALSE(plan_of(args).copies_u);
  EXPECT_FALSE(plan_of(args).copies_du);
  args.u.strides[0] += 8;
  EXPECT_TRUE(plan_of(args).copies_u);
  EXPECT_FALSE(plan_of(args).copies_du);
  args.du->strides[0] += 8;
  EXPECT_TRUE(plan_of(args).copies_du);
  args.d_weight.reset();
  EXPECT_FALSE(plan_of(args).copies_u);  // nothing reads it
}

TEST(LinearScanVariants, SwitchForcesOneVariant) {
  const LinearScanForwardArgs args = contiguous_args(4, 2048, 256, 64);
  const std::string chain = "linear_scan_forward.sm90.fp16.c128_t256_chain";
  EXPECT_EQ(reason_of(chain, args), "is slower here than c64_t64_alone");
  EXPECT_EQ(reason_of(chain, args, {.variant = chain}), "");
  ASSERT_EQ(setenv("TANDEM_VARIANT", "linear_scan_forward.sm90.bf16.c64_t64", 1), 0);
  EXPECT_THROW(linear_scan_forward_workspace_bytes(args, DeviceProperties::h200()), Unsupported);
  ASSERT_EQ(setenv("TANDEM_VARIANT", "linear_scan_backward.sm90.fp16", 1), 0);
  LinearScanBackwardArgs backward = backward_args(4, 2048, 256, 64);
  backward.du = view(8, {4, 2048, 256});
  // The scan inside has variants of its own.
  EXPECT_GT(linear_scan_backward_workspace_bytes(backward, DeviceProperties::h200()), 0u);
  EXPECT_EQ(last_variant(), "linear_scan_backward.sm90.fp16");
  unsetenv("TANDEM_VARIANT");
}

}  // namespace
}  // namespace tandem::cuda::linear_scan
