// Packed sequences merged: of many short ones, each walked from its own first chunk on, the last
// chunks are half empty. Walked as fewer long ones only these ones' are. At the first token of a
// sequence the decay is -inf, which forgets what came before, exactly (parts/decay.cuh).
//
// A factor of 0 does not stop a NaN or an infinity on its way into the next sequence. So walks of
// merged sequences note whether an output is not finite, and the same walks of the sequences as
// they are follow: where nothing was noted they end at once, else they write every output again.
#pragma once

#include "cuda/gla/common/finite_guard.h"
#include "cuda/gla/walk/plan.h"
#include "cuda/runtime/workspace.h"
#include "ops/gla_problem.h"

namespace tandem::cuda::gla {

struct MergePlan {
  std::int64_t sequences = 0;  // merged; 0: none are
  std::int64_t tokens = 0;     // of a merged one, about

  // Offsets into the workspace, 256-byte aligned.
  std::size_t boundaries = 0;  // int32 [sequences+1]
  std::size_t log_decay = 0;   // fp32 [T,H]
  std::size_t non_finite = 0;  // uint32
};

/// Plans how a problem's sequences are merged for walks of such shapes, each of which is one launch
/// more: where that is predicted to be clearly faster. `states`: some are given or wanted, which
/// merged sequences have none of.
MergePlan plan_merge(const GlaRecurrence& problem, bool states,
                     const std::vector<SplitShape>& walks);
/// What merging takes of a workspace, but for a word and the boundaries.
inline std::int64_t merged_bytes(const GlaRecurrence& problem) { return 4 * problem.T * problem.H; }
/// Places what merging takes in a workspace whose first bytes both ways to run the call use, one
/// after the other; returns the bytes of all.
std::size_t place_merge(MergePlan& plan, const GlaRecurrence& problem, std::size_t first_bytes,
                        std::size_t second_bytes);

/// The problem of the merged sequences, for planning.
template <class Problem>
Problem merged(Problem problem, const MergePlan& plan) {
  problem.N = plan.sequences;
  return problem;
}

/// Launches what merges the sequences: makes the problem that of the merged ones, whose boundaries
/// and decays are on the device then. Clears the guard's word.
void merge(GlaRecurrence& problem, const MergePlan& plan, const ScratchMemory& scratch,
           void* stream);

/// The same for all sequences, and the tokens of none, as one that is not packed.
MergePlan plan_merge_all(const GlaRecurrence& problem);
template <class Problem>
Problem all_merged(Problem problem) {
  problem.N = 1;
  problem.cu_seqlens = nullptr;
  return problem;
}
void merge_all(GlaRecurrence& problem, const MergePlan& plan, const ScratchMemory& scratch,
               void* stream);

/// Microseconds of walks of such shapes over so many packed sequences of any length, whole ones.
double predicted_packed_time(const GlaRecurrence& problem, std::int64_t sequences,
                             const std::vector<SplitShape>& walks);

/// Guards of the walks of the merged sequences, and of those behind them.
FiniteGuard first_guard(const MergePlan& plan, const ScratchMemory& scratch);
FiniteGuard second_guard(const MergePlan& plan, const ScratchMemory& scratch);

}  // namespace tandem::cuda::gla
