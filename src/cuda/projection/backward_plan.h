// projection_backward's variants and plan, for the call and its tests. Host only.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "core/call_options.h"
#include "cuda/gemm/matrix.h"
#include "cuda/gemm/predict.h"
#include "cuda/projection/backward_params.h"
#include "cuda/projection/heads_params.h"
#include "ops/projection_problem.h"
#include "tandem/device.h"

namespace tandem::cuda::projection {

/// The kernels in one dtype.
struct BackwardVariant {
  template <class Params>
  using Launch = void (*)(const Params&, void* stream);
  template <class Params>
  using Product = void (*)(const Params&, int multiprocessors, void* stream);

  std::string name;
  DType dtype;
  Launch<GradientParams> gradient;
  Launch<HeadsGradientParams> heads_gradient;
  Launch<HeadSumParams> head_sum;
  struct Input {  // tiles of so many columns
    int columns;
    bool splits;  // each tile's depth among the CTAs of a cluster: another order of sums
    Product<InputParams> launch;
  };
  struct Weight {
    int columns;
    bool splits;
    Product<WeightParams> launch;
  };
  std::vector<Input> inputs;    // for dx
  std::vector<Weight> weights;  // for d_weight
  Launch<ColumnSumParams> column_sums;
  gemm::SumSlices sum_slices;
};

const std::vector<BackwardVariant>& backward_variants();

/// Whether a segment has anything to pass back: columns of dz that are not all 0.
bool has_dz(const ProjectionBackwardProblem& problem, const ProjectionBackwardSegment& segment);

/// "" when the variant can run the problem, else why not.
std::string reason_against(const BackwardVariant& variant,
                           const ProjectionBackwardProblem& problem);

/// What a call keeps in its workspace: offsets in bytes. What is not needed has no bytes.
struct BackwardPlan {
  struct Segment {
    bool makes_dz = false;       // else d_out is dz as it lies
    bool copies_weight = false;  // TMA cannot read it
    std::size_t dz = 0;          // 16 bits [M,columns], rows padded to 16 bytes
    std::size_t weight = 0;
    std::size_t bias_sums = 0;  // fp32 [bias_slices,columns]
    int head_slices = 1;        // into which rows are cut for the gradient by a head norm's weight
    std::size_t head_sums = 0;  // fp32 [head_slices,head_width]
  };
  bool copies_x = false;
  std::size_t x = 0;
  int input = 0;        // index in BackwardVariant::inputs
  int weight = 0;       // in weights
  bool beside = false;  // d_weight's product runs beside dx's, which then has no tail
  gemm::BesidePlan weight_beside;
  gemm::TailPlan input_tail;
  gemm::TailPlan weight_tail;
  std::size_t input_sums = 0;  // fp32 partial sums of the tails
  std::size_t weight_sums = 0;
  int bias_slices = 1;
  std::array<Segment, kMostProjectionSegments> segments;
  std::size_t workspace_bytes = 0;
};
BackwardPlan plan_backward(const BackwardVariant& variant, const ProjectionBackwardProblem& problem,
                           const DeviceProperties& device, bool batch_invariant);

/// Of packed sequences: d_weight sums over the rows in [cu_seqlens[0], cu_seqlens[N]) alone; null:
/// over all.
struct SummedRows {
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t N = 0;
};

/// Runs the call, and `between` when dx is made and before x is read. It may write x only where
/// that is dx's memory: else d_weight's product may run beside dx's.
void run_backward(
    const ProjectionBackwardProblem& problem, const Context& context, const CallOptions& options,
    const SummedRows& summed = {}, const std::function<void()>& between = [] {});

}  // namespace tandem::cuda::projection
