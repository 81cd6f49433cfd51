// What gla's backward on CUDA does with the states that its forward saved: the host side. Needs no
// GPU.
#include <gtest/gtest.h>

#include "cuda/gla/common/backward_maps.h"
#include "tests/cuda/gla_backward_choice.h"

namespace tandem::cuda::gla {
namespace {

const DeviceProperties kDevice = DeviceProperties::h200();

GlaBackwardProblem with_saved_states(GlaBackwardArgs args, std::uintptr_t address = 10ull << 44) {
  const Dims &v = args.v.shape, &k = args.k.shape;
  args.saved_states =
      TensorView::contiguous(reinterpret_cast<void*>(address), DType::kBFloat16,
                             {v[0], (v[1] + 127) / 128, v[2], v[3], k[3]}, Device::cuda());
  return make_problem(args);
}

TEST(GlaSavedStates, AreNotMadeAgain) {
  const GlaBackwardArgs args = backward_args(4, 4096, 32, 32, 128, 128);
  const ReversePlan reverse = plan_reverse_backward(with_saved_states(args), kDevice);
  EXPECT_TRUE(reverse.saved_states);
  EXPECT_EQ(reverse.workspace_bytes, 0u);
  EXPECT_LT(reverse.time, plan_reverse_backward(make_problem(args), kDevice).time);

  const GlaBackwardArgs narrow = backward_args(8, 1024, 32, 32, 64, 64);
  for (const bool in_reverse : {false, true}) {
    const std::size_t made =
        plan_chunk_backward(make_problem(narrow), kDevice, in_reverse).workspace_bytes;
    EXPECT_EQ(plan_chunk_backward(with_saved_states(narrow), kDevice, in_reverse).workspace_bytes,
              in_reverse ? 0 : made / 2);
  }

  const GlaBackwardArgs grouped = backward_args(1, 4096, 1, 16, 256, 64);
  EXPECT_EQ(plan_group_backward(with_saved_states(grouped), kDevice).part_bytes,
            plan_group_backward(make_problem(grouped), kDevice).part_bytes / 2);
}

TEST(GlaSavedStates, CutSequencesBetweenPairsOfChunks) {
  for (const int heads : {1, 2, 8, 16, 24, 40}) {
    for (const std::int64_t T : {640, 4100, 6000, 16384}) {
      const ReversePlan plan = plan_reverse_backward(
          with_saved_states(backward_args(1, T, heads, heads, 128, 128)), kDevice);
      EXPECT_TRUE(plan.segments == 1 || plan.segment_chunks % 2 == 0) << heads << ' ' << T;
      EXPECT_LT((plan.segments - 1) * plan.segment_chunks, plan.chunks) << heads << ' ' << T;
    }
  }
}

TEST(GlaSavedStates, AreMadeAgainWhereCopiesCannotReadThem) {
  const GlaBackwardArgs args = backward_args(2, 256, 4, 4, 128, 128);
  EXPECT_TRUE(can_copy_saved_states(with_saved_states(args).forward));
  EXPECT_FALSE(can_copy_saved_states(make_problem(args).forward));
  EXPECT_FALSE(can_copy_saved_states(with_saved_states(args, (10ull << 44) + 8).forward));
  EXPECT_FALSE(
      can_copy_saved_states(with_saved_states(backward_args(2, 256, 4, 4, 124, 128)).forward));
}

}  // namespace
}  // namespace tandem::cuda::gla
