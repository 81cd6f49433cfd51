// Which tiles of queries there are, and who computes them when.
//
// The order brings tiles that read the same keys close together, as many heads at a time as the L2
// holds keys and values of, and among those the longest rows first (a causal mask gives later
// queries more keys), so that what is left at the end is short:
//
//   section of key heads (and batch rows) | tiles of queries, last to first | heads of the section
//
// Of packed sequences each is a batch of its own. Tokens that lie before the first or behind the
// last sequence are two more, without keys.
#pragma once

#include "cuda/attention/forward_params.h"
#include "cuda/attention/reach.cuh"

namespace tandem::cuda::attention {

/// A tile of queries of one head, and the keys they see.
struct ForwardItem {
  static constexpr int kNone = -1;

  int batch = kNone;  // kNone: there are no more items
  int head = 0;
  int first_query = 0;  // token of q
  int queries = 0;      // of the tile, that exist
  int position = 0;     // of the first query among the keys
  int first_key = 0;    // token of k, of the sequence's first key
  int keys = 0;         // of the sequence
  int block_begin = 0;  // blocks of keys that some query sees
  int block_end = 0;
  int first_group = 0;  // the warpgroup that has the first 64 queries; the next ones follow

  /// The first key that is loaded for a block. The last block ends with the sequence's last key, so
  /// that it has none outside, and begins with keys of the one before.
  template <class Config>
  __device__ int first_key_of(int block) const {
    return max(min(block * Config::kKeys, keys - Config::kKeys), 0);
  }
  /// Warpgroups that have queries.
  __device__ int groups() const { return (queries + 63) / 64; }
  /// The first query of a warpgroup, of the tile.
  template <class Config>
  __device__ int query_of(int group) const {
    const int place = group - first_group;
    return 64 * (place < 0 ? place + Config::kGroups : place);
  }
};

/// Finds items by their index. All lanes of a warp, with growing indices.
template <class Config>
class ForwardItems {
 public:
  explicit __device__ ForwardItems(const AttentionForwardParams& params)
      : problem_(params.problem),
        reach_(problem_.mask),
        heads_per_key_head_(problem_.H / problem_.HKV),
        packed_(problem_.cu_seqlens_q != nullptr),
        together_(params.heads_together) {}

  __device__ ForwardItem find(int index) {
    if (!packed_) {
      const int batches = static_cast<int>(problem_.B);
      const int tiles = tile_count(static_cast<int>(problem_.TQ));
      if (index >= tiles * batches * problem_.H) return {};
      return place(index, batches * problem_.HKV, tiles, Sequence{});
    }
    const int lane = threadIdx.x % 32;
    const int sequences = static_cast<int>(problem_.N) + 2;
    for (; first_sequence_ < sequences; first_sequence_ += 32) {
      Sequence own;
      if (first_sequence_ + lane < sequences) own = sequence(first_sequence_ + lane);
      const int tiles = tile_count(own.queries);
      int behind = tiles * problem_.H;  // items of the sequences up to this lane's
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(kAllLanes, behind, distance);
        if (lane >= distance) behind += before;
      }
      const int total = __shfl_sync(kAllLanes, behind, 31);
      if (index < first_item_ + total) {
        const int from = __ffs(__ballot_sync(kAllLanes, index < first_item_ + behind)) - 1;
        const auto of = [&](int value) { return __shfl_sync(kAllLanes, value, from); };
        const Sequence found{of(own.first_query), of(own.queries), of(own.first_key), of(own.keys)};
        const int before = first_item_ + of(behind - tiles * problem_.H);
        return place(index - before, problem_.HKV, of(tiles), found);
      }
      first_item_ += total;
    }
    return {};
  }

 private:
  static constexpr unsigned kAllLanes = 0xFFFFFFFFu;

  struct Sequence {
    int first_query = 0;
    int queries = 0;
    int first_key = 0;
    int keys = 0;
  };

  static __device__ int tile_count(int queries) {
    return (queries + Config::kQueries - 1) / Config::kQueries;
  }
  static __device__ int boundary(const std::int32_t* offsets, int n, std::int64_t tokens) {
    return min(max(offsets[n], 0), static_cast<int>(tokens));
  }

  /// Sequence n - 1 of those that are packed; 0 and N + 1 are the tokens around them.
  __device__ Sequence sequence(int n) const {
    const int last = static_cast<int>(problem_.N);
    Sequence result;
    result.first_query = n == 0 ? 0 : boundary(problem_.cu_seqlens_q, n - 1, problem_.TQ);
    const int end =
        n > last ? static_cast<int>(problem_.TQ) : boundary(problem_.cu_seqlens_q, n, problem_.TQ);
    result.queries = max(end - result.first_query, 0);
    if (n > 0 && n <= last) {
      result.first_key = boundary(problem_.cu_seqlens_k, n - 1, problem_.TK);
      result.keys = max(boundary(problem_.cu_seqlens_k, n, problem_.TK) - result.first_key, 0);
    }
    return result;
  }

  /// Places item `index` of `units` key heads with `tiles` tiles each.
  __device__ ForwardItem place(int index, int units, int tiles, Sequence sequence) const {
    const int heads = heads_per_key_head_;
    const int per_section = together_ < units ? together_ * tiles * heads : index + 1;
    const int section = index / per_section;
    index -= section * per_section;
    const int first_unit = section * together_;
    const int in_section = min(units - first_unit, together_) * heads;
    const int tile = tiles - 1 - index / in_section;
    const int head = index % in_section;
    const int unit = first_unit + head / heads;

    ForwardItem item;
    item.batch = unit / problem_.HKV;
    item.head = unit % problem_.HKV * heads + head % heads;
    if (!packed_) {
      sequence = {0, static_cast<int>(problem_.TQ), 0, static_cast<int>(problem_.TK)};
      if (problem_.lengths_k != nullptr) {
        sequence.keys = min(max(problem_.lengths_k[item.batch], 0), sequence.keys);
      }
    }
    // Tiles are about even, in steps of a warpgroup's queries, and the last ones larger.
    const int groups = (sequence.queries + 63) / 64;
    const int least = groups / tiles, first_larger = tiles - groups % tiles;
    const int begin = 64 * (tile * least + max(tile - first_larger, 0));
    const int queries = 64 * (least + (tile >= first_larger ? 1 : 0));
    item.first_query = sequence.first_query + begin;
    item.queries = min(sequence.queries - begin, queries);
    item.first_key = sequence.first_key;
    item.keys = sequence.keys;
    item.position = begin + sequence.keys - sequence.queries;
    const int last_position = item.position + item.queries - 1;
    const int end = max(min(last_position + reach_.right + 1, item.keys), 0);
    item.block_begin = max(item.position - reach_.left, 0) / Config::kKeys;
    item.block_end = (end + Config::kKeys - 1) / Config::kKeys;
    return item;
  }

  const AttentionForwardProblem& problem_;
  const Reach reach_;
  const int heads_per_key_head_;
  const bool packed_;
  const int together_;
  int first_sequence_ = 0;  // of the packed ones that are looked at
  int first_item_ = 0;      // of that sequence
};

}  // namespace tandem::cuda::attention
