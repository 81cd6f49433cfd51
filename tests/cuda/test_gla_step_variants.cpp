// The host side of gla_step on CUDA: which variant a problem gets and why others are passed over.
// Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/gla/step.h"
#include "cuda/runtime/choose_variant.h"
#include "ops/gla.h"
#include "tandem/tandem.h"

namespace tandem::cuda::gla {
namespace {

using ::testing::HasSubstr;

/// Contiguous tensors at an aligned address that nothing reads.
GlaStepArgs contiguous_args(std::int64_t B, int HQ, int H, int K, int V,
                            DType state = DType::kFloat32, DType dtype = DType::kBFloat16) {
  const auto view = [](std::uintptr_t address, const Dims& shape, DType of) {
    return TensorView::contiguous(reinterpret_cast<void*>(address), of, shape, Device::cuda());
  };
  GlaStepArgs args;
  args.q = view(1ull << 44, {B, HQ, K}, dtype);
  args.k = view(2ull << 44, {B, HQ, K}, dtype);
  args.v = view(3ull << 44, {B, H, V}, dtype);
  args.o = view(4ull << 44, {B, H, V}, dtype);
  args.state = view(5ull << 44, {B, H, K, V}, state);
  return args;
}

const StepVariant& choose(const GlaStepArgs& args, const DeviceProperties& device) {
  return choose_variant("gla_step", step_variants(), device, {}, [&](const StepVariant& variant) {
    return variant.supports(make_problem(args), device);
  });
}

std::string first_accepting(const GlaStepArgs& args) {
  return choose(args, DeviceProperties::h200()).name;
}

std::string reason_of(const std::string& name, const GlaStepArgs& args) {
  for (const StepVariant& variant : step_variants()) {
    if (variant.name == name) return variant.supports(make_problem(args), DeviceProperties::h200());
  }
  throw std::out_of_range(name);
}

TEST(GlaStepVariants, DtypesAndAlignedWidthsChoose) {
  EXPECT_EQ(first_accepting(contiguous_args(64, 32, 32, 128, 128)),
            "gla_step.sm90.bf16.state_fp32.v64");
  EXPECT_EQ(first_accepting(contiguous_args(1, 32, 32, 128, 128)),
            "gla_step.sm90.bf16.state_fp32.v32");
  EXPECT_EQ(first_accepting(contiguous_args(1, 4, 8, 200, 136, DType::kBFloat16, DType::kFloat16)),
            "gla_step.sm90.fp16.state_bf16.v64");
  EXPECT_EQ(first_accepting(contiguous_args(2, 1, 1, 7, 5)),
            "gla_step.sm90.bf16.state_fp32.v32.scalar");
  EXPECT_EQ(first_accepting(contiguous_args(0, 1, 1, 7, 8)), "gla_step.sm90.bf16.state_fp32.v32");
}

/// Tiles of either width sum over K in orders of their own.
TEST(GlaStepVariants, BatchInvariantCallsTakeOneTileForAnyB) {
  const DeviceProperties device = DeviceProperties::h200();
  for (const std::int64_t B : {1, 16, 64, 1000}) {
    const GlaStepProblem problem = make_problem(contiguous_args(B, 32, 32, 128, 128));
    const StepVariant& chosen = choose_variant(
        "gla_step", step_variants(), device, {},
        [&](const StepVariant& variant) { return variant.supports(problem, device, true); });
    EXPECT_EQ(chosen.name, "gla_step.sm90.bf16.state_fp32.v32") << B;
  }
  EXPECT_EQ(step_variants().front().supports(make_problem(contiguous_args(64, 32, 32, 128, 128)),
                                             device, true),
            "is for large B: not batch-invariant");
}

TEST(GlaStepVariants, ReasonsNameTheLimit) {
  const char* fp32 = "gla_step.sm90.bf16.state_fp32.v32";
  const char* bf16 = "gla_step.sm90.bf16.state_bf16.v64";
  EXPECT_EQ(reason_of(fp32, contiguous_args(2, 1, 1, 8, 8, DType::kFloat32, DType::kFloat16)),
            "takes bf16, got fp16");
  EXPECT_EQ(reason_of(fp32, contiguous_args(2, 1, 1, 8, 8, DType::kBFloat16)),
            "takes a state in fp32, got bf16");
  EXPECT_EQ(reason_of(fp32, contiguous_args(2, 1, 1, 8, 6)), "takes V a multiple of 4, got 6");
  EXPECT_EQ(reason_of("gla_step.sm90.bf16.state_fp32.v64", contiguous_args(2, 1, 1, 8, 128)),
            "takes at least 528 tiles of 64 columns, got 4");
  EXPECT_EQ(reason_of(bf16, contiguous_args(2, 1, 1, 8, 12, DType::kBFloat16)),
            "takes V a multiple of 8, got 12");
  EXPECT_EQ(reason_of(fp32, contiguous_args(std::int64_t{1} << 24, 64, 64, 8, 64)),
            "takes at most 2^31 - 1 batches times heads times tiles of V, got 16777216 x 64 x 2");
}

TEST(GlaStepVariants, StatesOffSixteenBytesGoToScalar) {
  const std::string vector = "gla_step.sm90.bf16.state_fp32.v32";
  GlaStepArgs args = contiguous_args(2, 4, 4, 8, 8);
  args.state.data = static_cast<char*>(args.state.data) + 4;
  EXPECT_EQ(reason_of(vector, args), "state does not start at a multiple of 16 bytes");
  EXPECT_EQ(first_accepting(args), vector + ".scalar");
  args = contiguous_args(2, 4, 4, 8, 8);
  args.state.strides = {401, 100, 12, 1};
  EXPECT_EQ(reason_of(vector, args),
            "state has a batch stride of 1604 bytes, not a multiple of 16");
  args.state.strides = {400, 99, 12, 1};
  EXPECT_EQ(reason_of(vector, args), "state has a head stride of 396 bytes, not a multiple of 16");
  args.state.strides = {400, 96, 9, 1};
  EXPECT_EQ(reason_of(vector, args), "state has a key stride of 36 bytes, not a multiple of 16");
  args.state.strides = {400, 100, 12, 1};
  EXPECT_EQ(reason_of(vector, args), "");
}

TEST(GlaStepVariants, EveryReasonIsGivenWhenNoneTakesIt) {
  const GlaStepArgs args = contiguous_args(2, 4, 4, 8, 8);
  const DeviceProperties a100{DeviceType::kCuda, "NVIDIA A100", 8, 0, 108, 166912, 41943040};
  try {
    choose(args, a100);
    FAIL() << "an A100 was accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("[gla_step] no variant on NVIDIA A100"));
    EXPECT_THAT(error.what(), HasSubstr("gla_step.sm90.bf16.state_fp32.v32.scalar: needs compute "
                                        "capability 9.0, NVIDIA A100 has 8.0"));
  }
}

TEST(GlaStepVariants, AreListedWithTheOthers) {
  std::size_t listed = 0;
  for (const VariantInfo& info : tandem::variants(DeviceProperties::h200())) {
    listed += info.name.rfind("gla_step.sm90.", 0) == 0;
  }
  EXPECT_EQ(listed, step_variants().size());
}

TEST(GlaStepVariants, NoDeviceIsSaidByTheCall) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a device";
  try {
    tandem::gla_step(contiguous_args(2, 4, 4, 8, 8));
    FAIL() << "ran without a device";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuda:0: no CUDA device: "));
  }
}

}  // namespace
}  // namespace tandem::cuda::gla
