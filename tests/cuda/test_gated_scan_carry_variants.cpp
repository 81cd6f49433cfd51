// The host side of gated_scan_decay, gated_scan_carry and its backward on CUDA: which variant a
// problem gets and why others are passed over. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/gated_scan/carry_variants.h"
#include "ops/gated_scan.h"
#include "tandem/tandem.h"

namespace tandem::cuda::gated_scan {
namespace {

TensorView view(std::uintptr_t address, const Dims& shape, DType dtype) {
  return TensorView::contiguous(reinterpret_cast<void*>(address << 44), dtype, shape,
                                Device::cuda());
}

Dims before_shape(const Dims& shape) { return {shape[0], (shape[1] + 63) / 64, shape[2]}; }

/// Contiguous tensors at an aligned address that nothing reads.
GatedScanDecayArgs decay_args(const Dims& shape, DType dtype = DType::kBFloat16) {
  return {.decay = view(1, shape, dtype),
          .before = view(2, before_shape(shape), DType::kFloat32),
          .total = view(3, {shape[0], shape[2]}, DType::kFloat32)};
}

GatedScanCarryArgs carry_args(const Dims& shape, DType dtype = DType::kBFloat16,
                              DType decay_dtype = DType::kBFloat16) {
  return {.out = view(1, shape, dtype),
          .log_decay = view(2, shape, decay_dtype),
          .gate = view(3, shape, dtype),
          .before = view(4, before_shape(shape), DType::kFloat32),
          .carry = view(5, {shape[0], shape[2]}, DType::kFloat32)};
}

GatedScanCarryBackwardArgs backward_args(const Dims& shape, DType dtype = DType::kBFloat16,
                                         DType decay_dtype = DType::kBFloat16) {
  return {.d_out = view(1, shape, dtype),
          .decay = view(2, shape, decay_dtype),
          .before = view(3, before_shape(shape), DType::kFloat32),
          .sums = view(4, before_shape(shape), DType::kFloat32),
          .d_carry = view(5, {shape[0], shape[2]}, DType::kFloat32)};
}

template <class Args>
std::string name_of(const Args& args) {
  return choose(make_problem(args), DeviceProperties::h200()).name;
}

template <class Args>
std::string reason_of(const Args& args) {
  const auto problem = make_problem(args);
  if constexpr (std::is_same_v<Args, GatedScanDecayArgs>) {
    return reason_against(decay_variants().front(), problem);
  } else if constexpr (std::is_same_v<Args, GatedScanCarryBackwardArgs>) {
    return reason_against(carry_backward_variants().front(), problem);
  } else {
    return reason_against(carry_variants().front(), problem);
  }
}

TEST(GatedScanCarryVariants, DtypesChoose) {
  const Dims shape{2, 100, 64};
  using enum DType;
  EXPECT_EQ(name_of(decay_args(shape)), "gated_scan_decay.sm90.bf16.vector");
  EXPECT_EQ(name_of(decay_args(shape, kFloat16)), "gated_scan_decay.sm90.fp16.vector");
  EXPECT_EQ(name_of(decay_args(shape, kFloat32)), "gated_scan_decay.sm90.fp32.vector");
  EXPECT_EQ(name_of(carry_args(shape)), "gated_scan_carry.sm90.bf16.vector");
  EXPECT_EQ(name_of(carry_args(shape, kBFloat16, kFloat32)),
            "gated_scan_carry.sm90.bf16.decay_fp32.vector");
  EXPECT_EQ(name_of(carry_args(shape, kFloat32, kFloat32)), "gated_scan_carry.sm90.fp32.vector");
  EXPECT_EQ(name_of(backward_args(shape)), "gated_scan_carry_backward.sm90.bf16.vector");
  EXPECT_EQ(name_of(backward_args(shape, kFloat16, kFloat32)),
            "gated_scan_carry_backward.sm90.fp16.decay_fp32.vector");
}

TEST(GatedScanCarryVariants, WhatIsNotAlignedGoesToScalar) {
  EXPECT_EQ(name_of(decay_args({2, 100, 7})), "gated_scan_decay.sm90.bf16.scalar");
  EXPECT_EQ(reason_of(decay_args({2, 100, 7})), "takes D a multiple of 8, got 7");
  EXPECT_EQ(name_of(decay_args({2, 100, 4}, DType::kFloat32)), "gated_scan_decay.sm90.fp32.vector");
  EXPECT_EQ(name_of(carry_args({2, 100, 7})), "gated_scan_carry.sm90.bf16.scalar");
  const auto moved = [](TensorView& view) { view.data = static_cast<char*>(view.data) + 4; };
  GatedScanCarryArgs args = carry_args({2, 100, 64});
  moved(args.before);
  EXPECT_EQ(reason_of(args), "before does not start at a multiple of 16 bytes");
  args = carry_args({2, 100, 64});
  moved(args.carry);
  EXPECT_EQ(reason_of(args), "carry does not start at a multiple of 16 bytes");
  EXPECT_EQ(name_of(args), "gated_scan_carry.sm90.bf16.scalar");
  args = carry_args({2, 100, 64});
  args.out.strides = {6600, 66, 1};
  EXPECT_EQ(reason_of(args), "out has a time stride of 132 bytes, not a multiple of 16");
  EXPECT_EQ(name_of(backward_args({2, 100, 7})), "gated_scan_carry_backward.sm90.bf16.scalar");
  GatedScanCarryBackwardArgs backward = backward_args({2, 100, 64});
  moved(backward.sums);
  EXPECT_EQ(reason_of(backward), "sums does not start at a multiple of 16 bytes");
  backward = backward_args({2, 100, 64});
  moved(backward.d_carry);
  EXPECT_EQ(reason_of(backward), "");
  backward.d_out.strides = {6600, 66, 1};
  EXPECT_EQ(reason_of(backward), "d_out has a time stride of 132 bytes, not a multiple of 16");
  GatedScanDecayArgs decay = decay_args({2, 100, 64});
  moved(decay.decay);
  EXPECT_EQ(reason_of(decay), "decay does not start at a multiple of 16 bytes");
}

TEST(GatedScanCarryVariants, ReasonsNameTheLimit) {
  EXPECT_EQ(reason_of(decay_args({1, std::int64_t{1} << 31, 8})),
            "takes T up to 2146435072, got 2147483648");
  EXPECT_EQ(reason_of(decay_args({std::int64_t{1} << 31, 1, 8})),
            "takes at most 2^31 - 1 vectors of channels times chunks, got B x T x D = "
            "2147483648 x 1 x 8");
  EXPECT_EQ(reason_of(carry_args({1, 8, 8}, DType::kFloat16, DType::kFloat16)),
            "takes bf16, got fp16");
}

TEST(GatedScanCarryVariants, OldDevicesAreRefused) {
  DeviceProperties device = DeviceProperties::h200();
  device.name = "NVIDIA A100";
  device.compute_major = 8;
  EXPECT_THROW(choose(make_problem(decay_args({1, 8, 8})), device), Unsupported);
  EXPECT_THROW(choose(make_problem(carry_args({1, 8, 8})), device), Unsupported);
  EXPECT_THROW(choose(make_problem(backward_args({1, 8, 8})), device), Unsupported);
}

}  // namespace
}  // namespace tandem::cuda::gated_scan
