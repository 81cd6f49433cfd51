// The host side of gla's backward on CUDA: by spans of wide heads. Needs no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cuda/gla/wide/plan.h"
#include "tests/cuda/gla_backward_choice.h"

namespace tandem::cuda::gla {
namespace {

TEST(GlaBackwardVariants, BySpansWhatIsWide) {
  constexpr const char* kName = "gla_backward.sm90.bf16.c64.wide";
  GlaBackwardArgs args = backward_args(2, 256, 4, 4, 256, 512);
  EXPECT_EQ(reason(kName, args), "");
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64.wide", args), "takes fp16, got bf16");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 136, 8)), "");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 8, 136)), "");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 128, 128)),
            "takes K or V above 128, got 128 and 128");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 264, 512)), "takes K <= 256, got 264");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 4, 4, 256, 520)), "takes V <= 512, got 520");
  EXPECT_EQ(reason(kName, backward_args(2, 256, 2, 4, 256, 256)), "takes H = HQ, got 4 and 2");
  // Where sums for d_log_decay would cancel too loosely for fp16.
  const auto final_state = TensorView::contiguous(
      reinterpret_cast<void*>(10ull << 44), DType::kFloat32, {2, 4, 256, 512}, Device::cuda());
  args.d_final_state = final_state;
  EXPECT_EQ(reason(kName, args), "");
  GlaBackwardArgs halves = args;
  for (TensorView* view :
       {&halves.q, &halves.k, &halves.v, &halves.d_o, &*halves.dq, &*halves.dk, &*halves.dv}) {
    view->dtype = DType::kFloat16;
  }
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64.wide", halves),
            "takes fp16 and d_final_state without d_log_decay");
  halves.d_log_decay.reset();
  EXPECT_EQ(reason("gla_backward.sm90.fp16.c64.wide", halves), "");
  args.dk.reset();
  EXPECT_EQ(reason(kName, args), "makes dq, dk and dv, of which not all are wanted");
}

TEST(GlaBackwardPlan, BySpansWhereThatIsPredictedToBeFaster) {
  const DeviceProperties device = DeviceProperties::h200();
  const auto by_spans = [&](const GlaBackwardArgs& args) {
    return plan_wide_backward(make_problem(args), device, std::size_t{1} << 40).time;
  };
  // Measured (docs/ops/gla_backward.log.md), microseconds by spans and by walks.
  struct Measured {
    GlaBackwardArgs args;
    double spans, walks;
  };
  const Measured table[] = {
      {backward_args(8, 2048, 4, 4, 256, 512), 356, 545},
      {backward_args(1, 8192, 4, 4, 256, 512), 231, 340},
      {backward_args(1, 2048, 4, 4, 256, 512), 73, 195},
      {backward_args(4, 2048, 12, 12, 192, 384), 456, 914},
      {backward_args(1, 2048, 8, 8, 256, 256), 80, 115},
      {backward_args(2, 4096, 16, 16, 256, 256), 479, 533},
      {backward_args(4, 4096, 16, 16, 192, 192), 761, 723},
      {backward_args(4, 4096, 16, 16, 256, 128), 661, 578},
      {backward_args(8, 2048, 4, 4, 128, 256), 169, 176},
      {backward_args(1, 8192, 4, 4, 128, 256), 143, 128},
      {backward_args(1, 2048, 4, 4, 128, 256), 48, 67},
      {backward_args(1, 2048, 8, 8, 128, 256), 62, 95},
      {backward_args(1, 4096, 8, 8, 64, 256), 105, 115},
      {backward_args(8, 2048, 8, 8, 128, 256), 299, 283},
      {backward_args(3, 4096, 16, 16, 128, 256), 488, 477},
      {backward_args(4, 4096, 16, 16, 128, 256), 629, 546},
      {backward_args(4, 2048, 8, 8, 128, 512), 270, 490},
      {backward_args(4, 4096, 8, 8, 128, 192), 283, 335},
      {backward_args(8, 4096, 16, 16, 128, 192), 1060, 993},
      {backward_args(8, 2048, 8, 8, 64, 256), 283, 214},
      {backward_args(4, 512, 8, 8, 64, 256), 51, 70},
      {backward_args(16, 512, 4, 4, 128, 256), 89, 127},
      {backward_args(2, 8192, 4, 4, 128, 256), 207, 187},
      {backward_args(2, 8192, 8, 8, 256, 256), 523, 491},
  };
  for (const auto& [args, spans, walks] : table) {
    const GlaForwardProblem f = make_problem(args).forward;
    const std::string what = "B" + std::to_string(f.B) + " T" + std::to_string(f.T) + " K" +
                             std::to_string(f.K) + " V" + std::to_string(f.V);
    // Either may be predicted to be faster where they are as good as equal.
    if (std::abs(spans - walks) < 0.06 * walks) continue;
    EXPECT_EQ(goes(".wide", args), spans < walks) << what;
    if (spans < walks) {
      const double beside_walks = f.T > 4096 ? 1.25 : 1.0;  // whose predictions are too long there
      EXPECT_NEAR(by_spans(args) / beside_walks, spans, 0.15 * spans) << what;
    }
  }
  EXPECT_FALSE(goes(".wide", backward_args(8, 2048, 32, 32, 256, 256)));
}

TEST(GlaBackwardPlan, HeadsInTurnWhereStatesHaveNoRoom) {
  const DeviceProperties device = DeviceProperties::h200();
  const GlaBackwardProblem problem = make_problem(backward_args(8, 2048, 32, 32, 256, 256));
  const std::size_t all = plan_wide_backward(problem, device, std::size_t{1} << 40).workspace_bytes;
  EXPECT_EQ(plan_wide_backward(problem, device, all).slab_heads, 256);
  for (const std::size_t parts : {2, 3, 16, 1000}) {
    const WideBackwardPlan plan = plan_wide_backward(problem, device, all / parts);
    EXPECT_GE(plan.slab_heads, 1);
    EXPECT_TRUE(plan.workspace_bytes <= all / parts || plan.slab_heads == 1) << parts;
  }
}

}  // namespace
}  // namespace tandem::cuda::gla
