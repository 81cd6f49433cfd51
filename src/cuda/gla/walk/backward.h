// A backward by walks: one or two per gradient, then a kernel for the gradient by the decays.
//
// Each gradient is a gated linear attention of other tensors (docs/ops/gla_backward.md):
//   dq_i = scale sum_{j<=i} D_ij (do_i . v_j) k_j      a forward of q: do, k: v, v: k
//   dk_j = scale sum_{i>=j} D_ij (v_j . do_i) q_i      from the last token on, q: v, k: do, v: q
//   dv_j = scale sum_{i>=j} D_ij (k_j . q_i) do_i      from the last token on, q: k, k: q, v: do
// whose states are S transposed, dS transposed and dS. The second and the third need one dS: where
// none of the walks is cut, one walk makes both (walk/key_value.cuh).
//
// V wider than a walk's K can be is two parts. dq, dk and the row sums for the gradient by the
// decays are sums over them, of a walk each; states are made of each part's columns alone. dv is
// one walk, whose V may be of any width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/gla/decay/row_sums.h"
#include "cuda/gla/walk/run.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

/// A gradient as a walk over other tensors than a forward's, which have the names of their roles in
/// the walk.
struct BackwardWalk {
  enum class Gradient { kQ, kK, kV, kKV };  // kKV: both

  Gradient gradient;
  int part = 0;                  // of V, which its K is
  GlaForwardProblem problem;     // o: where the walk writes
  StridedTensor x;               // q or k: for the gradient by the decays; kKV makes dv of it
  StridedTensor value;           // dv, of kKV
  int heads_per_value = 1;       // heads that share a head of the walk's v
  StateStrides state_strides{};  // of the states that the walk begins and ends with
  bool row_sums = false;         // makes row sums for the gradient by the decays
  bool summed = false;           // o is fp32 and per head: a share, of a part or a head
  bool beside_walk = false;      // runs beside the walk launched before it
  WalkLaunch launch;
  WalkPlan plan;

  /// Whether it runs from the last token on.
  bool is_reverse() const { return gradient != Gradient::kQ; }
};

/// What a call launches, and its workspace, in which the walks share the first bytes.
struct BackwardPlan {
  std::vector<BackwardWalk> walks;  // needed ones only, in the order of their launches
  int parts = 1;                    // of V
  int panels = 0;                   // panels of 64 columns of K, of all parts
  FlowSpans spans;
  unsigned decay_splits = 1;       // CTAs per (sequence, head) of the gradient by the decays
  bool decay_beside_walk = false;  // its kernel runs beside the walk for dv

  std::int64_t flag_count = 0;

  // Offsets, 256-byte aligned.
  std::size_t flags = 0;           // uint32 [flag_count]: those of all split walks, cleared at once
  std::size_t wide_output = 0;     // fp32 [B,T,H,K], where walks are summed
  std::size_t query_rows = 0;      // fp32 [panels,B,H,T]: q . dq
  std::size_t key_rows = 0;        // fp32 [panels,B,H,T]: k . dk, from inside the chunk
  std::size_t key_state_rows = 0;  // fp32 [panels,B,H,T]: k . dk, from the state
  std::size_t flows = 0;           // fp32 [panels,H,spans,128]
  std::size_t states = 0;          // 16 bits [panels,H,spans,padded V of a part,64]
  std::size_t decay_sums = 0;      // fp32 [N,H,splits], for a constant decay
  std::size_t workspace_bytes = 0;
};

/// Says why a problem's sizes cannot go by walks; "" when they can.
std::string reason_against_walks(const GlaBackwardProblem& problem);

/// With `batch_invariant` no walk is cut, and which walks there are depends on K, V and the wanted
/// gradients alone.
BackwardPlan plan_backward(const GlaBackwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant = false);

/// Predicts microseconds of what sums walks' gradients over heads and parts.
double predicted_sums_time(const BackwardPlan& plan, const DeviceProperties& device);

/// Predicts microseconds of the walks, these sums and the kernel for the decays, at 64 columns.
double predicted_walks_time(const BackwardPlan& plan, const DeviceProperties& device);

/// Launches all of a call; `name` is the variant's, for errors, `tma` whether tiles are copied so.
void run_by_walks(const GlaBackwardProblem& problem, const BackwardPlan& plan,
                  const FiniteGuard& guard, const std::string& name, bool tma,
                  const ScratchMemory& scratch, void* stream);

}  // namespace tandem::cuda::gla
