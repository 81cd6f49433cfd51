// Which keys and queries a CTA of attention's backward has, and who adds to a tile of dq before it.
#pragma once

#include "cuda/attention/backward_params.h"

namespace tandem::cuda::attention {

/// Returns a boundary of cu_seqlens, clamped into [0,T].
__device__ inline int clamped_boundary(const std::int32_t* cu_seqlens, std::int64_t n,
                                       std::int64_t T) {
  return min(max(cu_seqlens[n], 0), static_cast<int>(T));
}

/// A sequence's tokens, and which of its keys a query sees.
struct SequenceSpan {
  int batch = 0;
  int query_begin = 0;
  int queries = 0;
  int key_begin = 0;
  int keys = 0;
  int key_room = 0;  // tokens that the tensors have from key_begin on: dk and dv are 0 behind keys
  // Query i sees the keys from i + first to i + last.
  int first = 0;
  int last = 0;

  __device__ void set(const AttentionForwardProblem& problem, int n) {
    if (problem.cu_seqlens_q == nullptr) {
      batch = n;
      query_begin = key_begin = 0;
      queries = static_cast<int>(problem.TQ);
      keys = key_room = static_cast<int>(problem.TK);
      if (problem.lengths_k != nullptr) keys = min(max(problem.lengths_k[n], 0), keys);
    } else {
      batch = 0;
      query_begin = clamped_boundary(problem.cu_seqlens_q, n, problem.TQ);
      queries = max(clamped_boundary(problem.cu_seqlens_q, n + 1, problem.TQ) - query_begin, 0);
      key_begin = clamped_boundary(problem.cu_seqlens_k, n, problem.TK);
      keys = max(clamped_boundary(problem.cu_seqlens_k, n + 1, problem.TK) - key_begin, 0);
      key_room = keys;
    }
    first = keys - queries - static_cast<int>(problem.mask.left);
    last = keys - queries + static_cast<int>(problem.mask.right);
  }

  /// Tiles of queries in the sequences before, `n` of them.
  __device__ int tiles_before(const AttentionBackwardParams& params, BackwardTile tile,
                              int n) const {
    const AttentionForwardProblem& problem = params.problem.forward;
    return problem.cu_seqlens_q == nullptr ? params.query_tiles / static_cast<int>(problem.N) * n
                                           : query_begin / tile.queries + n;
  }

  /// The first key that queries from i on see, if they see any.
  __device__ int first_key(int i) const { return max(0, i + first); }
  /// The last key that queries up to i see; negative if there is none.
  __device__ int last_key(int i) const { return min(keys - 1, i + last); }
};

/// Finds the sequence of block f: the last whose first block, cu_seqlens[n] / rows + n, is not
/// behind it, or 0 for blocks in front of all. All lanes of a warp.
__device__ inline int find_sequence(const std::int32_t* cu_seqlens, int sequences, std::int64_t T,
                                    int rows, int f) {
  int n = 0;
  const int lane = threadIdx.x % 32;
  for (int count = sequences; count > 1;) {
    const int step = (count + 31) / 32;
    const int offset = lane * step;
    const bool begun =
        offset < count && clamped_boundary(cu_seqlens, n + offset, T) / rows + n + offset <= f;
    const int before = max(__popc(__ballot_sync(0xFFFFFFFFu, begun)) - 1, 0) * step;
    n += before;
    count = min(step, count - before);
  }
  return n;
}

/// Sets `n` and the block's index in its sequence, given its index among those of all sequences.
/// The index is negative for blocks of the tokens in front of the first sequence. All lanes of a
/// warp.
__device__ inline void find_block(const std::int32_t* cu_seqlens, int sequences, std::int64_t T,
                                  int rows, int f, int& n, int& block) {
  if (cu_seqlens == nullptr) {
    const int per_sequence = (static_cast<int>(T) + rows - 1) / rows;
    n = f / per_sequence;
    block = f % per_sequence;
  } else {
    n = find_sequence(cu_seqlens, sequences, T, rows, f);
    block = f - (clamped_boundary(cu_seqlens, n, T) / rows + n);
  }
}

/// A block of keys of one key head, and a part of the queries that read it.
struct BackwardPlace {
  int sequence;
  int key_head;
  int part;
  int block;

  /// Finds item `index`. All lanes of a warp. Items are numbered so that blocks of a head follow
  /// each other, at a distance.
  __device__ BackwardPlace(const AttentionBackwardParams& params, BackwardTile tile, int index) {
    const AttentionForwardProblem& problem = params.problem.forward;
    const int sequences = static_cast<int>(problem.N);
    const int parts = problem.HKV * params.parts.count();  // of a sequence
    int of_sequence;
    if (problem.cu_seqlens_k == nullptr) {
      // Heads side by side, block by block, then the next heads.
      const int heads = sequences * parts, blocks = params.key_blocks / sequences;
      const int together = params.heads_together;
      const int begin = index / (together * blocks) * together;
      const int beside = min(together, heads - begin);
      index -= begin * blocks;
      block = index / beside;
      const int head = begin + index % beside;
      sequence = head / parts;
      of_sequence = head % parts;
    } else {
      of_sequence = index % parts;
      find_block(problem.cu_seqlens_k, sequences, problem.TK, tile.keys, index / parts, sequence,
                 block);
    }
    key_head = of_sequence / params.parts.count();
    part = of_sequence % params.parts.count();
  }
};

/// A block of keys, and the tiles of queries that see any of them: [first_tile, last_tile] of every
/// head of the part.
struct BackwardItem {
  static constexpr int kNone = -1;

  SequenceSpan span;
  int key_head;  // kNone: there are no more items
  int part;
  int first_head;  // of those of the part
  int end_head;
  int block;
  int tiles_before;  // tiles of the sequences before
  int first_tile;
  int last_tile;

  __device__ int tiles() const { return last_tile - first_tile + 1; }

  __device__ void set(const AttentionBackwardParams& params, BackwardTile tile,
                      const BackwardPlace& place) {
    const AttentionForwardProblem& problem = params.problem.forward;
    key_head = place.key_head;
    part = place.part;
    const int group = problem.H / problem.HKV, heads = params.part_heads();
    first_head = key_head * group + part / params.parts.tiles * heads;
    end_head = min(first_head + heads, (key_head + 1) * group);
    block = place.block;
    span.set(problem, place.sequence);
    tiles_before = span.tiles_before(params, tile, place.sequence);
    // Queries that see a key of the block: those from its first key less `last`, to its last key
    // less `first`.
    const int begin = block * tile.keys, end = min(begin + tile.keys, span.keys);
    const int first_query = max(0, begin - span.last);
    const int last_query = min(span.queries - 1, end - 1 - span.first);
    const bool seen = 0 <= begin && begin < end && first_query <= last_query;
    first_tile = first_query / tile.queries;
    last_tile = seen ? last_query / tile.queries : first_tile - 1;
  }

  /// Keeps of the tiles those of the part.
  __device__ void keep_part(const AttentionBackwardParams& params) {
    const int tile_part = part % params.parts.tiles, begin = tile_part * params.part_tiles;
    first_tile = max(first_tile, begin);
    if (tile_part + 1 < params.parts.tiles) {
      last_tile = min(last_tile, begin + params.part_tiles - 1);
    }
  }
};

/// Key blocks that see a tile of queries: [first, last], none if last < first.
struct SeenBlocks {
  int first;
  int last;

  __device__ SeenBlocks(const SequenceSpan& span, BackwardTile tile, int index) {
    const int first_query = index * tile.queries;
    const int first_key = span.first_key(first_query);
    const int last_key = span.last_key(min(first_query + tile.queries, span.queries) - 1);
    first = first_key / tile.keys;
    last = last_key < first_key ? first - 1 : last_key / tile.keys;
  }
};

}  // namespace tandem::cuda::attention
