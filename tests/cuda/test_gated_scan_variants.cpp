// The host side of gated_scan on CUDA: which variant a problem gets and why others are passed over,
// how many CTAs share a chain, the workspace. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/gated_scan/variants.h"
#include "cuda/scan/plan.h"
#include "ops/gated_scan.h"
#include "tandem/tandem.h"

namespace tandem::cuda::gated_scan {
namespace {

using ::testing::HasSubstr;

TensorView view(std::uintptr_t address, const Dims& shape, DType dtype) {
  return TensorView::contiguous(reinterpret_cast<void*>(address << 44), dtype, shape,
                                Device::cuda());
}

/// Contiguous tensors at an aligned address that nothing reads.
GatedScanForwardArgs contiguous_args(const Dims& shape, DType dtype = DType::kBFloat16,
                                     DType decay_dtype = DType::kBFloat16) {
  GatedScanForwardArgs args;
  args.x = view(1, shape, dtype);
  args.log_decay = view(2, shape, decay_dtype);
  args.gate = view(3, shape, dtype);
  args.out = view(4, shape, dtype);
  return args;
}

GatedScanBackwardArgs backward_args(const Dims& shape, DType dtype = DType::kBFloat16) {
  const GatedScanForwardArgs forward = contiguous_args(shape, dtype, dtype);
  GatedScanBackwardArgs args;
  args.x = forward.x;
  args.log_decay = forward.log_decay;
  args.gate = forward.gate;
  args.d_out = view(5, shape, dtype);
  args.dx = view(6, shape, dtype);
  args.d_log_decay = view(7, shape, dtype);
  args.d_gate = view(8, shape, dtype);
  return args;
}

std::string forward_of(const GatedScanForwardArgs& args) {
  return choose(make_problem(args), DeviceProperties::h200()).name;
}
std::string backward_of(const GatedScanBackwardArgs& args) {
  return choose(make_problem(args), DeviceProperties::h200()).name;
}

std::string reason_of(const std::string& name, const GatedScanForwardArgs& args) {
  for (const ForwardVariant& variant : forward_variants()) {
    if (variant.name == name) return variant.supports(make_problem(args));
  }
  throw std::out_of_range(name);
}

TEST(GatedScanVariants, ShapesChooseTiles) {
  EXPECT_EQ(forward_of(contiguous_args({8, 4096, 1024})), "gated_scan_forward.sm90.bf16.w64_t256");
  EXPECT_EQ(forward_of(contiguous_args({4, 2048, 64})), "gated_scan_forward.sm90.bf16.w32_t128");
  EXPECT_EQ(forward_of(contiguous_args({4, 1024, 64})), "gated_scan_forward.sm90.bf16.w64_t64.tma");
  EXPECT_EQ(forward_of(contiguous_args({1, 4096, 64})), "gated_scan_forward.sm90.bf16.w16_t256");
  EXPECT_EQ(forward_of(contiguous_args({1, 4096, 2048})),
            "gated_scan_forward.sm90.bf16.w64_t128.tma");
  EXPECT_EQ(backward_of(backward_args({8, 4096, 1024})),
            "gated_scan_backward.sm90.bf16.w64_t128.tma");
  EXPECT_EQ(backward_of(backward_args({1, 512, 64})), "gated_scan_backward.sm90.bf16.w32_t128");
}

TEST(GatedScanVariants, BatchInvariantCallsGiveEverySequenceItsOwnTiles) {
  const CallOptions invariant{.batch_invariant = true};
  const DeviceProperties device = DeviceProperties::h200();
  const auto forward = [&](const GatedScanForwardArgs& args) {
    return choose(make_problem(args), device, invariant).name;
  };
  const auto backward = [&](const GatedScanBackwardArgs& args) {
    return choose(make_problem(args), device, invariant).name;
  };
  for (const Dims& shape : {Dims{8, 4096, 1024}, {1, 512, 64}, {1, 4096, 64}, {300, 1, 64}}) {
    EXPECT_EQ(forward(contiguous_args(shape)), "gated_scan_forward.sm90.bf16.w32_t128.sequences");
    EXPECT_EQ(backward(backward_args(shape)), "gated_scan_backward.sm90.bf16.w32_t128.sequences");
  }
  GatedScanForwardArgs packed = contiguous_args({1, 4096, 64});
  packed.cu_seqlens = view(9, {101}, DType::kInt32);
  EXPECT_EQ(forward(packed), "gated_scan_forward.sm90.bf16.w32_t128.sequences");
  EXPECT_EQ(forward(contiguous_args({2, 100, 7})),
            "gated_scan_forward.sm90.bf16.w32_t128.scalar.sequences");
  EXPECT_EQ(forward(contiguous_args({2, 100, 64}, DType::kFloat32, DType::kFloat32)),
            "gated_scan_forward.sm90.fp32.w32_t128.sequences");
}

/// Packed sequences keep the states before each 128 of their own tokens.
TEST(GatedScanVariants, BatchInvariantSequencesHaveStatesOfTheirOwn) {
  const DeviceProperties device = DeviceProperties::h200();
  GatedScanBackwardArgs args = backward_args({2, 129, 40});
  EXPECT_EQ(gated_scan_backward_workspace_bytes(args, device, true), 2u * 2 * 40 * 4);
  args = backward_args({1, 1000, 40});
  args.cu_seqlens = view(9, {6}, DType::kInt32);
  EXPECT_EQ(gated_scan_backward_workspace_bytes(args, device, true), (7u + 5) * 40 * 4);
  EXPECT_EQ(gated_scan_backward_workspace_bytes(args, device), 8u * 40 * 4);
}

TEST(GatedScanVariants, TheLastChoiceOfAThreadIsTold) {
  const auto choose = [](const Dims& shape) {
    gated_scan_forward_workspace_bytes(contiguous_args(shape), DeviceProperties::h200());
    return last_variant();
  };
  EXPECT_EQ(choose({8, 4096, 1024}), "gated_scan_forward.sm90.bf16.w64_t256");
  EXPECT_EQ(choose({4, 2048, 64}), "gated_scan_forward.sm90.bf16.w32_t128");
  // What another op calls is not told.
  gated_scan_forward_workspace_bytes(make_problem(contiguous_args({8, 4096, 1024})),
                                     DeviceProperties::h200());
  EXPECT_EQ(last_variant(), "gated_scan_forward.sm90.bf16.w32_t128");
}

TEST(GatedScanVariants, DtypesChoose) {
  const Dims shape{4, 2048, 64};
  EXPECT_EQ(forward_of(contiguous_args(shape, DType::kFloat16, DType::kFloat16)),
            "gated_scan_forward.sm90.fp16.w32_t128");
  EXPECT_EQ(forward_of(contiguous_args(shape, DType::kFloat16, DType::kFloat32)),
            "gated_scan_forward.sm90.fp16.decay_fp32.w32_t128");
  EXPECT_EQ(forward_of(contiguous_args(shape, DType::kFloat32, DType::kFloat32)),
            "gated_scan_forward.sm90.fp32.w32_t128");
  EXPECT_EQ(backward_of(backward_args(shape, DType::kFloat32)),
            "gated_scan_backward.sm90.fp32.w32_t128");
}

TEST(GatedScanVariants, WhatIsNotAlignedGoesToScalar) {
  const std::string vector = "gated_scan_forward.sm90.bf16.w32_t128";
  const std::string scalar = "gated_scan_forward.sm90.bf16.w32_t128.scalar";
  EXPECT_EQ(forward_of(contiguous_args({2, 100, 7})), scalar);
  EXPECT_EQ(reason_of(vector, contiguous_args({2, 100, 7})), "takes D a multiple of 8, got 7");
  GatedScanForwardArgs args = contiguous_args({2, 100, 64});
  args.gate->data = static_cast<char*>(args.gate->data) + 2;
  EXPECT_EQ(forward_of(args), scalar);
  EXPECT_EQ(reason_of(vector, args), "gate does not start at a multiple of 16 bytes");
  args = contiguous_args({2, 100, 64});
  args.out.strides = {6600, 66, 1};
  EXPECT_EQ(forward_of(args), scalar);
  EXPECT_EQ(reason_of(vector, args), "out has a time stride of 132 bytes, not a multiple of 16");
  GatedScanBackwardArgs gradients = backward_args({2, 100, 64});
  gradients.dx->data = static_cast<char*>(gradients.dx->data) + 2;
  EXPECT_EQ(backward_of(gradients), "gated_scan_backward.sm90.bf16.w32_t128.scalar");
}

TEST(GatedScanVariants, WhatTmaCannotCopyGoesToOthers) {
  const std::string rows = "gated_scan_backward.sm90.bf16.w64_t128.tma";
  const std::string pieces = "gated_scan_backward.sm90.bf16.w32_t128";
  const auto reason = [&](const GatedScanBackwardArgs& args) {
    for (const BackwardVariant& variant : backward_variants()) {
      if (variant.name == rows) return variant.supports(make_problem(args));
    }
    throw std::out_of_range(rows);
  };
  GatedScanBackwardArgs args = backward_args({300, 100, 64});
  EXPECT_EQ(backward_of(args), rows);
  args.x.strides = {0, 64, 1};
  EXPECT_EQ(backward_of(args), pieces);
  EXPECT_EQ(reason(args),
            "x has a batch stride of 0 bytes, not a positive multiple of 16 below 2^40");
  args = backward_args({1, 0, 64});
  EXPECT_EQ(backward_of(args), pieces);
  EXPECT_EQ(reason(args), "x has no elements");
}

TEST(GatedScanVariants, ReasonsNameTheLimit) {
  const std::string name = "gated_scan_forward.sm90.bf16.w32_t128";
  EXPECT_EQ(reason_of(name, contiguous_args({1, 8, 8}, DType::kFloat16, DType::kFloat16)),
            "takes bf16, got fp16");
  EXPECT_EQ(reason_of(name, contiguous_args({1, 8, 8}, DType::kBFloat16, DType::kFloat32)),
            "takes decays in bf16, got fp32");
  EXPECT_EQ(reason_of(name, contiguous_args({1, std::int64_t{1} << 31, 8})),
            "takes T up to 2146435072, got 2147483648");
  EXPECT_EQ(reason_of(name, contiguous_args({std::int64_t{1} << 27, 1, 8})),
            "takes at most 134217727 batches times blocks of 32 channels, got 134217728 x 1");
}

TEST(GatedScanVariants, OldDevicesAreRefusedWithEveryVariantsReason) {
  DeviceProperties device = DeviceProperties::h200();
  device.name = "NVIDIA A100";
  device.compute_major = 8;
  try {
    choose(make_problem(contiguous_args({1, 8, 8})), device);
    FAIL() << "no refusal";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("[gated_scan_forward] no variant on NVIDIA A100 takes"));
    EXPECT_THAT(error.what(), HasSubstr("gated_scan_forward.sm90.fp32.w32_t128.scalar: needs "
                                        "compute capability 9.0, NVIDIA A100 has 8.0"));
  }
}

TEST(GatedScanVariants, WorkspaceIsAStateForEachTileOfTheBackward) {
  const DeviceProperties device = DeviceProperties::h200();
  EXPECT_EQ(gated_scan_forward_workspace_bytes(contiguous_args({8, 4096, 1024}), device), 0u);
  GatedScanBackwardArgs args = backward_args({2, 129, 40});
  EXPECT_EQ(gated_scan_backward_workspace_bytes(args, device), 2u * 2 * 40 * 4);
  args.d_log_decay = args.d_gate = std::nullopt;  // dx needs no states
  EXPECT_EQ(gated_scan_backward_workspace_bytes(args, device), 0u);
}

/// Ranks of the tiles of w64_t256 and w32_t128.
int wide_ranks(std::int64_t chains, std::int64_t T) {
  return plan_scan({chains, (T + 255) / 256, 256, 64, 1}, DeviceProperties::h200()).ranks;
}
int narrow_ranks(std::int64_t chains, std::int64_t T) {
  return plan_scan({chains, (T + 127) / 128, 128, 32, 2}, DeviceProperties::h200()).ranks;
}

TEST(ScanPlan, ManyChainsAreWalkedByOneCtaEach) {
  EXPECT_EQ(wide_ranks(128, 4096), 1);
  EXPECT_EQ(wide_ranks(132, 4096), 1);
  EXPECT_EQ(wide_ranks(2000, 100), 1);
  EXPECT_EQ(narrow_ranks(2000, 1), 1);
}

TEST(ScanPlan, FewChainsAreSharedByClusters) {
  EXPECT_EQ(wide_ranks(1, 256), 1);
  EXPECT_EQ(wide_ranks(1, 257), 2);
  EXPECT_EQ(wide_ranks(1, 4096), 16);
  EXPECT_EQ(wide_ranks(7, 4096), 16);
  EXPECT_EQ(wide_ranks(8, 4096), 8);   // 7 clusters of 16 fit at a time
  EXPECT_EQ(wide_ranks(16, 4096), 6);  // 15 of 8
  EXPECT_EQ(narrow_ranks(2, 512), 4);
  EXPECT_EQ(narrow_ranks(2, 1 << 20), 16);
}

TEST(ScanPlan, TimeGrowsWithTheWork) {
  const auto time = [](std::int64_t chains, std::int64_t tiles) {
    return plan_scan({chains, tiles, 256, 64, 1}, DeviceProperties::h200()).time;
  };
  for (std::int64_t chains = 1; chains < 600; ++chains) {
    EXPECT_LE(time(chains, 16), time(chains + 1, 16)) << chains;
    EXPECT_LE(time(chains, 16), time(chains, 17)) << chains;
  }
}

}  // namespace
}  // namespace tandem::cuda::gated_scan
