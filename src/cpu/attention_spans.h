// How attention's work is cut on the CPU: sequences, and which keys and queries of one see each
// other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/attention_problem.h"

namespace tandem::cpu {

/// Half-open: [begin,end).
struct Range {
  std::int64_t begin;
  std::int64_t end;

  std::int64_t size() const { return end - begin; }
};

/// One sequence: queries and keys [begin,end) of batch row b. Indices below count from them.
struct AttentionSpan {
  std::int64_t b;
  Range q;
  Range k;
  AttentionMask mask;

  /// The keys that query i sees.
  Range keys_of(std::int64_t i) const {
    const std::int64_t place = i + k.size() - q.size();
    const std::int64_t begin = mask.left == AttentionMask::kUnlimited ? 0 : place - mask.left;
    const std::int64_t end =
        mask.right == AttentionMask::kUnlimited ? k.size() : place + mask.right + 1;
    return clamped({begin, end}, k.size());
  }

  /// The keys that some query of a range may see.
  Range keys_of(Range queries) const {
    return {keys_of(queries.begin).begin, keys_of(queries.end - 1).end};
  }

  /// The queries that may see some key of a range.
  Range queries_of(Range keys) const {
    const std::int64_t shift = k.size() - q.size();
    const std::int64_t begin =
        mask.right == AttentionMask::kUnlimited ? 0 : keys.begin - shift - mask.right;
    const std::int64_t end =
        mask.left == AttentionMask::kUnlimited ? q.size() : keys.end - shift + mask.left;
    return clamped({begin, end}, q.size());
  }

 private:
  static Range clamped(Range range, std::int64_t size) {
    const std::int64_t begin = std::clamp<std::int64_t>(range.begin, 0, size);
    return {begin, std::clamp<std::int64_t>(range.end, begin, size)};
  }
};

/// Throws InvalidArgument in the name of `op` for cu_seqlens and lengths_k whose values the tensors
/// do not have.
void check_attention_lengths(const char* op, const AttentionSizes& sizes);

/// Returns every sequence, in order. After check_attention_lengths.
std::vector<AttentionSpan> attention_spans(const AttentionSizes& sizes);

/// Writes zeros to a [B,T,heads,dim] tensor at tokens outside every sequence; `of_keys`: it has TK
/// tokens, not TQ.
void clear_outside(const AttentionSizes& sizes, const StridedTensor& tensor, bool of_keys,
                   int heads, int dim);

}  // namespace tandem::cpu
