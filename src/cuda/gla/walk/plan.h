// How a walk is cut over the device: tiles of V, segments of the sequence, CTAs, and the workspace
// that this needs. A pure function of shapes and device properties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cuda/gla/common/segments.h"
#include "cuda/runtime/device_model.h"
#include "cuda/runtime/plan.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// What the choice of segments depends on.
struct SplitShape {
  std::int64_t items = 0;   // walks of whole sequences: N * H * tiles of V, or per heads together
  std::int64_t chunks = 0;  // of 64 tokens, per sequence
  std::int64_t reach = 0;   // chunks back that a state is expected to depend on
  int key_dim = 0;          // padded K
  int value_dim = 0;        // columns of V per walk
  int multiprocessors = 0;
  const DeviceModel::GlaWalk* model = nullptr;
  bool row_sums = false;    // makes row sums, too
  bool with_value = false;  // makes dk and dv
  int heads = 1;            // walked together
};

/// Segments per sequence for the shape alone: 1 where a split is not predicted to be clearly
/// faster. At most one per chunk.
int choose_segments(const SplitShape& shape);

/// Microseconds of a walk with so many segments, by the device's model: right enough to compare.
double predicted_time(const SplitShape& shape, int segments);
/// Microseconds of so many chunks of walks like this, spread evenly over the device.
double predicted_chunks_time(const SplitShape& shape, double chunks);
/// Chunks of the first of two segments whose second reads it, too, if all of it, where that is
/// predicted to be faster than so many segments that hand states on; 0: not. For dense batches.
int choose_first_chunks(const SplitShape& shape, int segments);
/// How CTAs share the walks that are left over, if that is predicted to be faster than whole walks
/// alone; parts = 0: not. Which it is changes no bit.
SharedWalks choose_shared(const GlaForwardProblem& problem, const SplitShape& shape);
/// Microseconds of a walk of which CTAs share some.
double predicted_time(const SplitShape& shape, const SharedWalks& shared);
/// Microseconds of two walks side by side, whose CTAs fit on the device together.
double predicted_pair_time(const SplitShape& a, int a_segments, const SplitShape& b,
                           int b_segments);

/// Segments of two walks side by side; 0 where they are better one after the other.
struct PairSegments {
  int a = 0;
  int b = 0;
};
/// The fewest segments with the shortest predicted_pair_time of those that are on the device
/// together, if that is below `time_to_beat`.
PairSegments choose_pair_segments(const SplitShape& a, const SplitShape& b, double time_to_beat);

/// Segments per sequence that no choice is needed for: 1 where sequences of equal length cannot be
/// cut or bits may not depend on the batch, or what the switch forces. `walks`: how many whole
/// sequences are walked.
std::optional<int> fixed_segments(const GlaRecurrence& problem, std::int64_t walks,
                                  bool batch_invariant);

struct WalkPlan {
  int value_tiles = 1;
  int walks = 0;  // of a sequence, per tile of V
  SplitShape shape;
  int segments = 1;      // per sequence; packed: if all tokens were one
  int first_chunks = 0;  // WalkSchedule's
  SharedWalks shared{};
  int pieces = 0;  // packed and split: segments of all sequences, at most
  int items = 0;
  int flags = 0;        // items, or slots of shared walks, times warps of the state role
  unsigned blocks = 0;  // CTAs: one per multiprocessor at most, which take item after item

  // Offsets into the workspace, 256-byte aligned.
  std::size_t states = 0;   // fp32 [items, padded K * columns of V] when handed on; WalkRelay's
  std::size_t factors = 0;  // fp32 [flags] when handed on
  std::size_t ready = 0;    // uint32 [flags]
  std::size_t order = 0;    // int32 [N] with cu_seqlens, whole
  std::size_t piece = 0;    // WalkPiece [pieces]
  std::size_t ticket = 0;   // uint32 with cu_seqlens
  std::size_t workspace_bytes = 0;

  bool split() const { return segments > 1; }
  bool shares() const { return shared.parts > 0; }
  /// Chunks of a packed segment, at most.
  int piece_chunks() const { return static_cast<int>(ceil_div(shape.chunks, segments)); }
};

/// Plans the walk of a forward call by tiles of `heads` heads together.
WalkPlan plan_forward(const GlaForwardProblem& problem, int key_dim, int value_dim,
                      const DeviceProperties& device, bool batch_invariant = false, int heads = 1);
/// Microseconds of a walk as planned.
double predicted_time(const WalkPlan& plan);
/// Plans a walk of such a shape, cut into so many segments, or partly shared.
WalkPlan plan_walk(const GlaForwardProblem& problem, const SplitShape& shape, int segments,
                   const SharedWalks& shared = {}, int first_chunks = 0);
/// Segments per sequence for a problem: choose_segments of its shape. Packed sequences count as one
/// of all tokens, and stay whole where one each for a CTA does not leave room for others.
int choose_segments(const GlaForwardProblem& problem, const SplitShape& shape,
                    bool batch_invariant = false);
/// Shape of the walk over a whole problem.
SplitShape split_shape(const GlaForwardProblem& problem, int key_dim, int value_dim,
                       const DeviceProperties& device, int heads = 1);

}  // namespace tandem::cuda::gla
