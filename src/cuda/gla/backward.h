// The tables behind cuda::gla_backward, for its tests.
#pragma once

#include "cuda/gla/chunks/params.h"
#include "cuda/gla/chunks/plan.h"
#include "cuda/gla/forward.h"
#include "cuda/gla/groups/params.h"
#include "cuda/gla/groups/plan.h"
#include "cuda/gla/reverse/params.h"
#include "cuda/gla/reverse/plan.h"

namespace tandem::cuda::gla {

/// A way to run a call: by chunks (chunks/plan.h), in one reverse walk (reverse/plan.h), by groups
/// of heads (groups/plan.h), or by a walk per gradient, each of which picks its tiles by itself.
struct BackwardVariant {
  std::string name;
  DType dtype;
  bool tma;
  ChunkBackwardLaunch by_chunks = nullptr;  // all null: by walks
  ReverseBackwardLaunch in_reverse = nullptr;
  GroupBackwardLaunch by_groups = nullptr;

  bool by_walks() const { return !by_chunks && !in_reverse && !by_groups; }
};

const std::vector<BackwardVariant>& backward_variants();

/// Plans the copies of q, k, v, d_o and the wanted gradients.
TilePlans plan_tiles(const GlaBackwardProblem& problem);

/// "" when the variant can run the problem, else why not.
std::string reason_against(const BackwardVariant& variant, const GlaBackwardProblem& problem,
                           const TilePlans& tiles);

/// A gradient as a walk over other tensors than a forward's, which have the names of their roles in
/// the walk.
struct BackwardWalk {
  enum class Gradient { kQ, kK, kV, kKV };  // kKV: both

  Gradient gradient;
  GlaForwardProblem problem;     // o: where the walk writes
  StridedTensor x;               // q or k: for the gradient by the decays; kKV makes dv of it
  StridedTensor value;           // dv, of kKV
  int heads_per_value = 1;       // heads that share a head of the walk's v
  StateStrides state_strides{};  // of the states that the walk begins and ends with
  bool row_sums = false;         // makes row sums for the gradient by the decays
  bool sums_heads = false;       // o is fp32 and per head, summed over those that share one
  bool beside_walk = false;      // runs beside the walk launched before it
  WalkLaunch launch;
  WalkPlan plan;
};

/// What a call launches, and its workspace, in which the walks share the first bytes.
struct BackwardPlan {
  std::vector<BackwardWalk> walks;  // needed ones only, in the order of their launches
  int panels = 0;                   // panels of 64 columns of K
  FlowSpans spans;
  unsigned decay_splits = 1;       // CTAs per (sequence, head) of the gradient by the decays
  bool decay_beside_walk = false;  // its kernel runs beside the walk for dv

  std::int64_t flag_count = 0;

  // Offsets, 256-byte aligned.
  std::size_t flags = 0;           // uint32 [flag_count]: those of all split walks, cleared at once
  std::size_t wide_output = 0;     // fp32 [B,T,H,K], where heads share q and k
  std::size_t query_rows = 0;      // fp32 [panels,B,H,T]: q . dq
  std::size_t key_rows = 0;        // fp32 [panels,B,H,T]: k . dk, from inside the chunk
  std::size_t key_state_rows = 0;  // fp32 [panels,B,H,T]: k . dk, from the state
  std::size_t flows = 0;           // fp32 [panels,H,spans,128]
  std::size_t states = 0;          // 16 bits [panels,H,spans,padded V,64]
  std::size_t decay_sums = 0;      // fp32 [N,H,splits], for a constant decay
  std::size_t workspace_bytes = 0;
};

/// With `batch_invariant` no walk is cut, and which walks there are depends on K, V and the wanted
/// gradients alone.
BackwardPlan plan_backward(const GlaBackwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant = false);

}  // namespace tandem::cuda::gla
