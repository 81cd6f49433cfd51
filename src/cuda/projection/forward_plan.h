// projection_forward's variants and plan, for the call and its tests. Host only.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/call_options.h"
#include "cuda/gemm/matrix.h"
#include "cuda/projection/forward_params.h"
#include "cuda/projection/heads_params.h"
#include "ops/projection_problem.h"
#include "tandem/context.h"
#include "tandem/device.h"

namespace tandem::cuda::projection {

/// Tiles of 128 x `columns`, or of `few_rows`.
struct ForwardVariant {
  using Launch = void (*)(const HeadsParams&, int multiprocessors, void* stream);
  using Normalize = void (*)(const NormalizeParams&, void* stream);
  using Finish = void (*)(const FinishParams&, void* stream);
  /// Segments without activation only; with any activation; or without one, but some with heads
  /// that end in a norm or a rotation.
  enum class Takes { kPlain, kActivations, kHeads };

  std::string name;
  DType dtype;
  int columns;  // of a tile
  Takes takes;
  int most_rows;  // that it takes; 0: any number
  Launch launch;
  Normalize normalize;
  Finish finish;
  int few_rows = 0;           // of a tile of gemm/few_rows.cuh, up to
  bool splits = false;        // each tile's depth among the CTAs of a cluster
  bool leaves_heads = false;  // all, to the kernel behind
};

const std::vector<ForwardVariant>& forward_variants();
/// Those of calls that keep what rounding takes away.
const std::vector<ForwardVariant>& two_part_variants();

/// "" when the variant can run the problem, else why not.
std::string reason_against(const ForwardVariant& variant, const ProjectionForwardProblem& problem);

/// What a call keeps in its workspace: offsets in bytes, where copied or wide.
struct ForwardPlan {
  struct Segment {
    bool copies_weight = false;  // TMA cannot read it
    bool wide = false;           // a tile cannot finish its heads: z goes through the workspace
    std::size_t weight = 0;      // rows padded to 16 bytes
    std::size_t z = 0;           // fp32 [M,columns]
  };
  bool copies_x = false;
  std::size_t x = 0;
  std::array<Segment, kMostProjectionSegments> segments;
  std::size_t workspace_bytes = 0;

  /// Whether any operand is copied.
  bool copies() const {
    return copies_x || std::any_of(segments.begin(), segments.end(),
                                   [](const Segment& segment) { return segment.copies_weight; });
  }
};
ForwardPlan plan_forward(const ForwardVariant& variant, const ProjectionForwardProblem& problem);

/// Runs the call behind a kernel of another op that made x and followed the stream: what it has not
/// written may be read while it runs.
void run_forward_behind(const ProjectionForwardProblem& problem, const Context& context,
                        const CallOptions& options);

/// Predicted microseconds of a variant for any number of rows, which decide between these.
double predict_forward(const ForwardVariant& variant, const ProjectionForwardProblem& problem,
                       const DeviceProperties& device);

}  // namespace tandem::cuda::projection
