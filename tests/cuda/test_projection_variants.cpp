// The host side of projection on CUDA: which variant a problem gets, what is copied or goes through
// the workspace. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/gemm/predict.h"
#include "cuda/projection/backward_plan.h"
#include "cuda/projection/forward_plan.h"
#include "ops/projection.h"
#include "planned.h"
#include "tandem/tandem.h"

namespace tandem::cuda::projection {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

/// Contiguous tensors at aligned addresses that nothing reads.
ProjectionForwardArgs forward_args(std::int64_t M, std::int64_t d, std::int64_t columns) {
  ProjectionForwardArgs args;
  args.x = view(1, {M, d});
  args.segments.push_back({.weight = view(2, {columns, d}), .out = view(3, {M, columns})});
  return args;
}

ProjectionBackwardArgs backward_args(std::int64_t M, std::int64_t d, std::int64_t columns) {
  ProjectionBackwardArgs args;
  args.x = view(1, {M, d});
  args.segments.push_back({.weight = view(2, {columns, d}),
                           .d_out = view(3, {M, columns}),
                           .d_weight = view(4, {columns, d})});
  args.dx = view(5, {M, d});
  return args;
}

/// The variant that a call takes.
std::string chosen(const ProjectionForwardArgs& args, bool batch_invariant = false,
                   std::string_view forced = "") {
  return chosen_variant(&projection_forward_workspace_bytes, make_problem(args), batch_invariant,
                        forced);
}

const ForwardVariant& variant(const std::string& name) {
  for (const ForwardVariant& one : forward_variants()) {
    if (one.name == name) return one;
  }
  throw std::out_of_range(name);
}

TEST(ProjectionVariants, ByTheNumberOfRows) {
  EXPECT_THAT(chosen(forward_args(1, 2048, 4096)), EndsWith(".m8"));
  EXPECT_THAT(chosen(forward_args(9, 2048, 4096)), EndsWith(".m16"));
  EXPECT_THAT(chosen(forward_args(32, 2048, 4096)), EndsWith(".m32"));
  EXPECT_THAT(chosen(forward_args(64, 2048, 4096)), EndsWith(".m64"));
  EXPECT_THAT(chosen(forward_args(512, 2048, 2048)), EndsWith(".n64.plain"));
  EXPECT_THAT(chosen(forward_args(4096, 2048, 2048)), EndsWith(".n128.plain"));
  EXPECT_THAT(chosen(forward_args(4096, 8192, 2048)), EndsWith(".n256.plain"));
}

TEST(ProjectionVariants, TilesOfFewRowsAsHighAsNeeded) {
  EXPECT_THAT(chosen(forward_args(100, 4096, 4096)), EndsWith(".n64.split"));
  EXPECT_THAT(chosen(forward_args(200, 11008, 4096)), EndsWith(".m128"));  // twice 100
  EXPECT_THAT(chosen(forward_args(300, 11008, 4096)), EndsWith(".m160"));
  EXPECT_THAT(chosen(forward_args(300, 4096, 12288)), EndsWith(".m160.n192.plain"));  // twice 150
  EXPECT_THAT(chosen(forward_args(200, 3584, 18944)), EndsWith(".m200.n192.plain"));  // 99 tiles
  EXPECT_THAT(chosen(forward_args(400, 4096, 28672)), EndsWith(".m208.n256.plain"));  // twice 200
  EXPECT_EQ(reason_against(variant("projection_forward.sm90.bf16.m224"),
                           make_problem(forward_args(1025, 64, 64))),
            "takes up to 1024 rows, got M 1025");
  EXPECT_EQ(gemm::box_rows_a(gemm::Layout::kNT, 100), 100);
}

TEST(ProjectionVariants, WideTilesWithoutActivations) {
  ProjectionForwardArgs args = forward_args(512, 4096, 6144);
  EXPECT_THAT(chosen(args), EndsWith(".n192.plain"));  // one wave
  args.segments[0].activation = Activation::kSilu;
  EXPECT_THAT(chosen(args), EndsWith(".n64"));
  EXPECT_THAT(chosen(forward_args(100, 4096, 12288)), EndsWith(".n96.plain"));  // 128 tiles
  EXPECT_EQ(reason_against(variant("projection_forward.sm90.bf16.n192.plain"), make_problem(args)),
            "takes segments without activation");
}

TEST(ProjectionVariants, OneForAnyNumberOfRowsWhereBatchesMustNotMatter) {
  for (const std::int64_t M : {1, 64, 512, 4096}) {
    EXPECT_THAT(chosen(forward_args(M, 2048, 2048), true), EndsWith(".n128")) << M;
  }
  try {
    chosen(forward_args(1, 2048, 2048), true, "projection_forward.sm90.bf16.m8");
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("is not the one of batch-invariant calls"));
  }
}

TEST(ProjectionVariants, EachCanBeForced) {
  EXPECT_EQ(chosen(forward_args(4096, 2048, 2048), false, "projection_forward.sm90.bf16.n64"),
            "projection_forward.sm90.bf16.n64");
  EXPECT_THROW(chosen(forward_args(9, 64, 64), false, "projection_forward.sm90.bf16.m8"),
               Unsupported);
}

TEST(ProjectionPlan, CopiesWhatTmaCannotRead) {
  ProjectionForwardArgs args = forward_args(100, 64, 48);
  const ForwardVariant& wide = variant("projection_forward.sm90.bf16.n128");
  EXPECT_EQ(plan_forward(wide, make_problem(args)).workspace_bytes, 0u);
  args.x.data = static_cast<char*>(args.x.data) + 2;
  ForwardPlan plan = plan_forward(wide, make_problem(args));
  EXPECT_TRUE(plan.copies_x);
  EXPECT_EQ(plan.workspace_bytes, 100u * 64 * 2);
  args.segments[0].weight.data = static_cast<char*>(args.segments[0].weight.data) + 2;
  plan = plan_forward(wide, make_problem(args));
  EXPECT_TRUE(plan.segments[0].copies_weight);
  EXPECT_EQ(plan.workspace_bytes, (100u + 48) * 64 * 2);
}

TEST(ProjectionPlan, HeadsWiderThanATileGoThroughTheWorkspace) {
  ProjectionForwardArgs args = forward_args(100, 64, 768);
  args.segments[0].activation = Activation::kL2Normalize;
  args.segments[0].head_width = 96;
  const auto wide = [&](const char* name) {
    return plan_forward(variant(name), make_problem(args)).segments[0].wide;
  };
  EXPECT_FALSE(wide("projection_forward.sm90.bf16.n128"));
  EXPECT_TRUE(wide("projection_forward.sm90.bf16.n64"));
  args.segments[0].head_width = 256;
  EXPECT_TRUE(wide("projection_forward.sm90.bf16.n128"));
}

BackwardPlan plan(const ProjectionBackwardArgs& args, bool batch_invariant = false) {
  return plan_backward(backward_variants().front(), make_problem(args), kDevice, batch_invariant);
}

using Cut = std::pair<std::int64_t, int>;  // tiles, parts of each
constexpr Cut kWhole(0, 1);

BackwardPlan plan_weight(std::int64_t M, std::int64_t d, std::int64_t columns) {
  ProjectionBackwardArgs args = backward_args(M, d, columns);
  args.dx.reset();
  return plan(args);
}
BackwardPlan plan_dx(std::int64_t M, std::int64_t d, std::int64_t columns, bool invariant = false) {
  ProjectionBackwardArgs args = backward_args(M, d, columns);
  args.segments[0].d_weight.reset();
  return plan(args, invariant);
}

TEST(ProjectionPlan, TilesThatLeaveMultiprocessorsFreeAreCutInParts) {
  const auto cut = [](const gemm::TailPlan& tail) { return Cut(tail.tiles, tail.parts); };
  EXPECT_EQ(cut(plan_weight(32768, 2048, 2048).weight_tail), kWhole);  // 128 tiles
  EXPECT_EQ(cut(plan_weight(32768, 512, 512).weight_tail), Cut(16, 8));
  EXPECT_EQ(cut(plan_weight(100, 512, 512).weight_tail), kWhole);  // two steps
  const BackwardPlan made = plan_dx(900, 2304, 18432);
  EXPECT_EQ(cut(made.input_tail), Cut(12, 11));  // of 144
  EXPECT_EQ(made.workspace_bytes, std::size_t{12 * 11 * 128 * 128 * 4});
  EXPECT_EQ(plan_dx(900, 2304, 18432, true).input_tail.tiles, 0);  // other sums than of many rows
}

TEST(ProjectionPlan, ProductsRunBesideEachOtherUnlessOneNeedsTheOther) {
  ProjectionBackwardArgs args = backward_args(900, 2304, 18432);
  BackwardPlan made = plan(args);
  EXPECT_TRUE(made.beside);
  EXPECT_EQ(made.input_tail.tiles, 0);
  EXPECT_EQ(made.workspace_bytes, 0u);
  EXPECT_TRUE(plan(args, true).beside);  // the same sums
  args.x.data = static_cast<char*>(args.x.data) + 2;
  EXPECT_FALSE(plan(args).beside);  // x is copied in between
  args = backward_args(900, 2304, 18432);
  ProjectionBackwardProblem problem = make_problem(args);
  problem.x = problem.dx;  // made of it by an op around this one
  EXPECT_FALSE(plan_backward(backward_variants().front(), problem, kDevice, false).beside);
  made = plan(backward_args(16384, 512, 512));  // few long tiles of d_weight are cut all the same
  EXPECT_TRUE(made.beside);
  EXPECT_EQ(made.weight_tail.tiles, 16);
}

TEST(ProjectionPlan, WhoIsFreeEarlierTakesMoreTiles) {
  using Early = std::pair<std::int64_t, std::int64_t>;  // CTAs, tiles
  const auto early = [](const gemm::BesidePlan& plan) {
    return Early(plan.early_ctas, plan.early_tiles);
  };
  // While 96 tiles take 12 us, 36 multiprocessors take three each; then all share 192.
  gemm::BesidePlan made = gemm::plan_beside({96, 12.0}, {300, 4.0}, 132);
  EXPECT_EQ(early(made), Early(36, 3 * 36));
  EXPECT_EQ(made.time, 20.0);
  made = gemm::plan_beside({132 + 92, 100.0}, {1000, 10.0}, 132);  // free after the first wave
  EXPECT_EQ(early(made), Early(40, 10 * 40));
  EXPECT_EQ(made.time, 250.0);
  made = gemm::plan_beside({264, 10.0}, {132, 10.0}, 132);  // all are free together
  EXPECT_EQ(made.early_tiles, 0);
  EXPECT_EQ(made.time, 30.0);
  made = gemm::plan_beside({100, 100.0}, {10, 10.0}, 132);  // fewer tiles than are free
  EXPECT_EQ(made.time, 100.0);
}

TEST(ProjectionPlan, GradientsTakeTheWidthThatFillsWaves) {
  const auto widths = [](std::int64_t M, std::int64_t d, std::int64_t columns) {
    const BackwardVariant& variant = backward_variants().front();
    return std::pair(variant.inputs[plan_dx(M, d, columns).input].columns,
                     variant.weights[plan_weight(M, d, columns).weight].columns);
  };
  EXPECT_EQ(widths(2048, 5120, 2560), std::pair(128, 128));  // dx 640 tiles, d_weight 800
  EXPECT_EQ(widths(1024, 3072, 9216).first, 192);            // 128 tiles
  EXPECT_EQ(widths(8192, 4096, 6144).first, 256);
}

TEST(ProjectionPlan, WeightsOfHalfAWaveOfTilesSplitTheRowsInClusters) {
  const auto splits = [](std::int64_t M, std::int64_t d, std::int64_t columns) {
    const BackwardVariant& variant = backward_variants().front();
    return variant.weights[plan_weight(M, d, columns).weight].splits;
  };
  EXPECT_TRUE(splits(2048, 1024, 1024));
  EXPECT_TRUE(splits(16384, 1024, 1024));
  EXPECT_FALSE(splits(512, 1024, 1024));  // four steps each are not worth an exchange
  EXPECT_FALSE(splits(8192, 768, 2304));  // 108 tiles
  EXPECT_FALSE(splits(32768, 256, 256));  // few tiles: more slices than a cluster has CTAs
}

/// Another order of sums than where rows are many, so not in batch-invariant calls.
TEST(ProjectionPlan, FewTilesSplitTheirDepth) {
  const auto splits = [](std::int64_t M, bool batch_invariant) {
    const BackwardVariant& variant = backward_variants().front();
    return variant.inputs[plan_dx(M, 2048, 2048, batch_invariant).input].splits;
  };
  EXPECT_TRUE(splits(160, false));
  EXPECT_FALSE(splits(160, true));
  EXPECT_FALSE(splits(2048, false));
}

TEST(ProjectionPlan, GradientsThatAreDzAsTheyLieAreNotCopied) {
  ProjectionBackwardArgs args = backward_args(100, 64, 48);
  EXPECT_FALSE(plan(args).segments[0].makes_dz);
  args.segments[0].slope = view(6, {100, 48});
  EXPECT_TRUE(plan(args).segments[0].makes_dz);
  args.segments[0].slope.reset();
  args.segments[0].d_out = view(3, {100, 48}, DType::kFloat32);
  EXPECT_TRUE(plan(args).segments[0].makes_dz);
  args.segments[0].d_out.reset();
  EXPECT_EQ(plan(args).workspace_bytes, 0u);
}

TEST(FewRows, PartsFillTheDeviceButAreNotTooShort) {
  const auto parts = [](std::int64_t column_tiles, std::int64_t depth) {
    return gemm::few_rows_shape(64, 64, column_tiles, depth, 132).parts;
  };
  EXPECT_EQ(parts(16, 2048), 4);
  EXPECT_EQ(parts(30, 4096), 4);  // so many clusters of 4 find place
  EXPECT_EQ(parts(36, 4096), 3);
  EXPECT_EQ(parts(40, 4096), 2);  // so many of 3 do not
  EXPECT_EQ(parts(64, 2048), 2);
  EXPECT_EQ(parts(224, 4096), 1);
  EXPECT_EQ(parts(1, 128), 1);
  EXPECT_EQ(parts(1, 0), 1);
}

TEST(FewRows, TilesAreAsWideAsIsPredictedToBeFast) {
  const auto columns = [](std::int64_t rows, int of_all, std::int64_t depth) {
    return gemm::few_rows_columns(64, gemm::kFewRowsColumns, rows, depth, 132,
                                  [&](int tile) { return ceil_div(of_all, tile); });
  };
  EXPECT_EQ(columns(1, 28672, 4096), 112);  // 256 tiles, two a multiprocessor
  EXPECT_EQ(columns(1, 33792, 4096), 128);  // 264 tiles
  EXPECT_EQ(columns(1, 6144, 4096), 128);   // enough steps under way
  EXPECT_EQ(columns(64, 6144, 4096), 96);   // too few with 128 columns
  EXPECT_EQ(columns(64, 4096, 4096), 64);
  EXPECT_EQ(columns(64, 2048, 2048), 80);
  EXPECT_EQ(columns(64, 8192, 2048), 128);  // 64 tiles in two parts fill the machine
  EXPECT_EQ(columns(100, 28672, 4096), 128);
}

TEST(FewRows, NarrowTilesAndLowOnesHaveMoreStages) {
  const auto stages = [](int columns, int rows) {
    return gemm::few_rows_stages(64, gemm::kFewRowsColumns, columns, rows).count;
  };
  EXPECT_EQ(stages(128, 64), 4);
  EXPECT_EQ(stages(128, 40), 5);
  EXPECT_EQ(stages(96, 64), 5);
  EXPECT_EQ(stages(64, 64), 7);
}

TEST(FewRows, TilesAreEquallyHigh) {
  const gemm::FewRowsShape shape = gemm::few_rows_shape(224, 777, 8, 4096, 132);
  EXPECT_EQ(shape.row_tiles, 4);
  EXPECT_EQ(shape.rows, 195);
  EXPECT_EQ(shape.parts, 3);
  EXPECT_EQ(gemm::box_rows_a(gemm::Layout::kNT, 777, 224), 195);
}

}  // namespace
}  // namespace tandem::cuda::projection
