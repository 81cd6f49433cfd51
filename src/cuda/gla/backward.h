// The tables behind cuda::gla_backward, for its tests.
#pragma once

#include "cuda/gla/chunks/params.h"
#include "cuda/gla/chunks/plan.h"
#include "cuda/gla/forward.h"
#include "cuda/gla/groups/params.h"
#include "cuda/gla/groups/plan.h"
#include "cuda/gla/reverse/params.h"
#include "cuda/gla/reverse/plan.h"
#include "cuda/gla/state/params.h"
#include "cuda/gla/walk/backward.h"
#include "cuda/gla/wide/params.h"

namespace tandem::cuda::gla {

/// A way to run a call: by chunks (chunks/plan.h), in one reverse walk (reverse/plan.h), by groups
/// of heads (groups/plan.h), by spans of wide heads (wide/plan.h), or by a walk per gradient
/// (walk/backward.h), which picks its tiles itself.
struct BackwardVariant {
  std::string name;
  DType dtype;
  bool tma;
  ChunkBackwardLaunch by_chunks = nullptr;  // all null: by walks
  bool chunks_in_reverse = false;           // of by_chunks: in one reverse walk
  ReverseBackwardLaunch in_reverse = nullptr;
  GroupBackwardLaunch by_groups = nullptr;
  SegmentStatesLaunch segments = nullptr;  // of the last two, where sequences are cut
  WideBackwardLaunch by_spans = nullptr;

  bool by_walks() const { return !by_chunks && !in_reverse && !by_groups && !by_spans; }
  /// Whether it takes packed sequences, merged into one.
  bool as_one() const { return by_chunks || in_reverse || by_groups; }
};

const std::vector<BackwardVariant>& backward_variants();

/// Plans the copies of q, k, v, d_o and the wanted gradients.
TilePlans plan_tiles(const GlaBackwardProblem& problem);

/// "" when the variant can run the problem, else why not.
std::string reason_against(const BackwardVariant& variant, const GlaBackwardProblem& problem,
                           const TilePlans& tiles);

}  // namespace tandem::cuda::gla
