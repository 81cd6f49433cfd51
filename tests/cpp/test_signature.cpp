// What a call's table says of its inputs' layouts: which of them are better read as a copy.
#include "ops/signature.h"

#include <gtest/gtest.h>

#include <string>

#include "tandem/tandem.h"

namespace tandem {
namespace {

/// Rows of 128 bytes; 1 MiB in all.
TensorView activation(Device device = Device::cuda()) {
  return TensorView::contiguous(reinterpret_cast<void*>(1ull << 44), DType::kBFloat16,
                                {1, 2048, 4, 64}, device);
}

bool better_copied(const TensorView& view, const char* call = "gla_forward",
                   const char* name = "q") {
  return find_signature(call)->find(name)->better_copied(view);
}

TEST(BetterCopied, WhatTmaReadsIsReadWhereItIs) {
  EXPECT_FALSE(better_copied(activation()));
  TensorView padded = activation();
  padded.strides = {2048 * 4 * 72, 4 * 72, 72, 1};
  EXPECT_FALSE(better_copied(padded));
  TensorView single = activation();
  single.strides[0] = 0;  // an axis of one element is never stepped over
  EXPECT_FALSE(better_copied(single));
}

TEST(BetterCopied, BasesAndStridesOff16BytesAndExpandedAxes) {
  TensorView view = activation();
  view.data = static_cast<char*>(view.data) + 2;
  EXPECT_TRUE(better_copied(view));
  for (const int axis : {1, 2}) {
    view = activation();
    view.strides[axis] = 0;
    EXPECT_TRUE(better_copied(view)) << axis;
    view = activation();
    view.strides[axis] += 1;
    EXPECT_TRUE(better_copied(view)) << axis;
  }
  EXPECT_TRUE(better_copied(view, "gla_backward", "d_o"));
  EXPECT_TRUE(better_copied(view, "gla_state_forward", "v"));
  EXPECT_TRUE(better_copied(view, "gla_state_backward", "d_o"));
}

TEST(BetterCopied, NotWhatIsSmallOrOnTheCpu) {
  TensorView view = activation(Device::cpu());
  view.strides[1] = 0;
  EXPECT_FALSE(better_copied(view));
  view = activation();
  view.strides[1] = 0;
  view.shape[1] = 2047;
  EXPECT_FALSE(better_copied(view));
}

TEST(BetterCopied, NotWhereTheCopysRowsWouldBeOddToo) {
  TensorView view = TensorView::contiguous(reinterpret_cast<void*>(1ull << 44), DType::kBFloat16,
                                           {1, 4096, 4, 60}, Device::cuda());
  view.strides[1] = 0;
  EXPECT_FALSE(better_copied(view));
}

/// Kernels read those as they are, or nobody has measured a copy.
TEST(BetterCopied, NotWhatNoTableCallsTiled) {
  TensorView view = activation();
  view.strides[1] = 0;
  EXPECT_FALSE(better_copied(view, "gla_forward", "log_decay"));
  EXPECT_FALSE(better_copied(view, "gla_step", "q"));
  EXPECT_FALSE(better_copied(view, "gated_scan_forward", "x"));
  EXPECT_FALSE(better_copied(view, "gla_forward", "o"));
}

}  // namespace
}  // namespace tandem
