// Batch invariance of gla on CUDA, as far as its plans tell: what depends on one sequence alone.
// Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cuda/gla/backward.h"
#include "cuda/gla/forward.h"
#include "cuda/gla/state.h"
#include "cuda/gla/state/plan.h"
#include "cuda/gla/walk/plan.h"
#include "ops/gla.h"
#include "tandem/tandem.h"
#include "tests/cuda/gla_args.h"

namespace tandem::cuda::gla {
namespace {

using ::testing::HasSubstr;

/// Packed sequences are cut nowhere, whatever their number; so must a batch-invariant batch's be.
TEST(GlaBatchInvariance, NothingIsCut) {
  const DeviceProperties device = DeviceProperties::h200();
  setenv("TANDEM_GLA_SEGMENTS", "3", 1);
  for (const std::int64_t B : {1, 2, 64}) {
    for (const std::int64_t T : {1, 64, 1000, 1 << 20}) {
      const GlaForwardProblem problem = make_problem(contiguous_args(B, T, 2, 2, 64, 64));
      EXPECT_EQ(plan_forward(problem, 64, 64, device, true).segments, 1) << B << " " << T;
      GlaStateForwardProblem state;
      static_cast<GlaRecurrence&>(state) = problem;
      EXPECT_EQ(plan_state(state, 64, 64, device, true).segments, 1) << B << " " << T;
    }
  }
  unsetenv("TANDEM_GLA_SEGMENTS");
}

TEST(GlaBatchInvariance, TheWalksOfABackwardDependOnOneSequenceAlone) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto walks = [&](const GlaBackwardArgs& args) {
    std::string text;
    for (const BackwardWalk& walk : plan_backward(make_problem(args), device, true).walks) {
      text += std::to_string(static_cast<int>(walk.gradient)) + " in " +
              std::to_string(walk.plan.segments) + ", ";
    }
    return text;
  };
  for (const auto& [K, V] : {std::pair{64, 64}, {128, 128}, {64, 128}, {192, 192}, {64, 512}}) {
    GlaBackwardArgs packed = backward_args(1, 5000, 2, 2, K, V);
    packed.cu_seqlens = TensorView::contiguous(reinterpret_cast<void*>(11ull << 44), DType::kInt32,
                                               {4}, Device::cuda());
    const std::string of_packed = walks(packed);
    for (const std::int64_t B : {1, 2, 64}) {
      for (const std::int64_t T : {1, 256, 8192}) {
        EXPECT_EQ(walks(backward_args(B, T, 2, 2, K, V)), of_packed) << B << " " << T << " " << K;
      }
    }
  }
}

TEST(GlaBatchInvariance, WhatDependsOnTheBatchIsRefused) {
  const DeviceProperties device = DeviceProperties::h200();
  const GlaBackwardArgs args = backward_args(8, 1024, 8, 8, 64, 64);
  tandem::gla_backward_workspace_bytes(args, device);
  EXPECT_EQ(last_variant(), "gla_backward.sm90.bf16.c64.chunks");
  EXPECT_EQ(tandem::gla_backward_workspace_bytes(args, device, true),
            plan_backward(make_problem(args), device, true).workspace_bytes);
  EXPECT_EQ(last_variant(), "gla_backward.sm90.bf16.c64");
  setenv("TANDEM_BATCH_INVARIANT", "1", 1);
  tandem::gla_backward_workspace_bytes(args, device);
  EXPECT_EQ(last_variant(), "gla_backward.sm90.bf16.c64");
  setenv("TANDEM_VARIANT", "gla_backward.sm90.bf16.c64.chunks", 1);
  try {
    tandem::gla_backward_workspace_bytes(args, device);
    FAIL() << "the choice by B and T was made";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("c64.chunks: is not batch-invariant"));
  }
  unsetenv("TANDEM_VARIANT");
  setenv("TANDEM_BATCH_INVARIANT", "yes", 1);
  try {
    tandem::gla_backward_workspace_bytes(args, device);
    FAIL() << "a value that is none was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "[environment] TANDEM_BATCH_INVARIANT must be 0 or 1, got yes");
  }
  unsetenv("TANDEM_BATCH_INVARIANT");
}

}  // namespace
}  // namespace tandem::cuda::gla
