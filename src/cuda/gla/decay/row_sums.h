// What the walks of a backward leave behind for the gradient by the decays, and where.
//
// With F the gradient that flows through the state between two tokens, <S, dS> there,
//   dg_t = F before t,   F before t = F after t + q_t . dq_t - k_t . dk_t
// so row sums and one F for every flow span are enough (docs/ops/gla_backward.md).
#pragma once

#include <vector_types.h>

#include <cstdint>

#include "core/strided_tensor.h"

namespace tandem::cuda::gla {

/// Flow spans: 2^shift consecutive chunks that share one F.
struct FlowSpans {
  int shift = 0;
  int per_sequence = 0;  // of sequences of equal length
  int count = 0;         // of all sequences: the slots of a head
  // Whether a sequence's first span has a slot, too: without an initial state S and F are 0 there.
  bool first_has = true;

  constexpr int chunks() const { return 1 << shift; }
  constexpr int tokens() const { return 64 << shift; }
  constexpr bool has_slot(int span) const { return first_has || span > 0; }
  /// Slot of a sequence's flow span. Packed sequences leave gaps, since none knows where those
  /// before it end: sequence n, beginning at token b, has at most b / tokens + n spans before it,
  /// and b / tokens without the first ones, which only packed sequences leave out.
  constexpr int slot(bool packed, int sequence, int sequence_begin, int span) const {
    const int before = sequence_begin >> (6 + shift);
    if (!first_has) return before + span - 1;
    return (packed ? before + sequence : sequence * per_sequence) + span;
  }
};

/// Row sums of one walk whose outputs are columns of dq or dk, by panels of 64 columns. x is q of
/// dq and k of dk; a row sum adds up one panel's columns of x (.) o. Null rows: not wanted.
struct RowSumParams {
  StridedTensor x;
  // Outputs [panels,B,H,T]. For dq `rows` sums all of o; for dk `rows` sums what comes from inside
  // the chunk and `state_rows` what comes from the state.
  float* rows = nullptr;
  float* state_rows = nullptr;
  uint4* states = nullptr;  // [panels,H,spans,padded K/16,128]: S before each span, 16 bits; the
                            // walk for dq writes it, the walk for dk reads it
  float* flows = nullptr;  // out [panels,H,spans]: the panel's share of what flows through a span's
                           // first chunk, by the walk for dk
  FlowSpans spans;
};

}  // namespace tandem::cuda::gla
