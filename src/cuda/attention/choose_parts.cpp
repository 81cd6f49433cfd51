#include "cuda/attention/choose_parts.h"

namespace tandem::cuda::attention {
namespace {

/// Tiles of queries that see the blocks of keys of a sequence.
struct SeenTiles {
  std::int64_t all = 0;
  std::int64_t most = 0;  // of one block
  std::int64_t blocks = 0;

  SeenTiles(const AttentionForwardProblem& problem, const BackwardTile& tile) {
    // Packed sequences have lengths that the host does not know: as if all were equal.
    const bool packed = problem.cu_seqlens_q != nullptr;
    const std::int64_t sequences = packed ? std::max<std::int64_t>(problem.N, 1) : 1;
    const std::int64_t queries = ceil_div(problem.TQ, sequences);
    const std::int64_t keys = ceil_div(problem.TK, sequences);
    const AttentionMask& mask = problem.mask;
    blocks = ceil_div(keys, tile.keys);
    for (std::int64_t key = 0; key < keys; key += tile.keys) {
      // Query i sees keys from i + keys - queries - left to i + keys - queries + right.
      std::int64_t first = 0, last = queries - 1;
      if (mask.right >= 0) first = std::max(first, key - mask.right - keys + queries);
      if (mask.left >= 0) {
        last = std::min(last, std::min(key + tile.keys, keys) - 1 + mask.left - keys + queries);
      }
      if (first > last) continue;
      const std::int64_t seen = last / tile.queries - first / tile.queries + 1;
      all += seen;
      most = std::max(most, seen);
    }
  }
};

}  // namespace

BackwardParts choose_parts(const AttentionForwardProblem& problem, const BackwardTile& tile,
                           int multiprocessors) {
  if (problem.N == 0 || problem.HKV == 0 || problem.H == 0) return {};
  const SeenTiles tiles(problem, tile);
  // Per microsecond: of a step, a tile's products for a block of keys; of the sums. kAlone: how
  // long a step of the last CTAs at work takes, beside others.
  constexpr double kStepFlops = 4.4e6, kAlone = 0.87, kSumBytes = 3e6, kSumLaunch = 3.0;
  const bool makes_dq = tile.sum_columns > 0;
  const double step = 2.0 * tile.queries * tile.keys *
                      ((makes_dq ? 3 : 2) * problem.K + 2 * problem.V) / kStepFlops;
  const double part_bytes =
      8.0 * static_cast<double>(problem.B * problem.TK * problem.HKV) * (problem.K + problem.V);
  const bool alike = 5 * tiles.all > 4 * tiles.blocks * tiles.most;
  const auto time_of = [&](const BackwardParts& parts) {
    const std::int64_t group = problem.H / problem.HKV;
    const std::int64_t of_parts = problem.N * problem.HKV * parts.count();
    const auto longest =
        static_cast<double>(ceil_div(tiles.most, parts.tiles) * ceil_div(group, parts.heads));
    // Where blocks are alike in rounds, else the long ones first and the short ones where there is
    // room.
    const double steps =
        alike ? static_cast<double>(ceil_div(of_parts * tiles.blocks, multiprocessors)) * longest
              : std::max(kAlone * longest, static_cast<double>(problem.N * problem.H * tiles.all) /
                                               static_cast<double>(multiprocessors));
    const int count = parts.count();
    return steps * step + (count == 1 ? 0.0 : kSumLaunch + count * part_bytes / kSumBytes);
  };
  BackwardParts best;
  double best_time = time_of(best);
  const auto consider = [&](const BackwardParts& parts) {
    const double time = time_of(parts);
    if (time < best_time) best_time = time, best = parts;
  };
  const int group = problem.H / problem.HKV;
  for (int heads = group - 1; heads >= 1; --heads) {
    const int parts = static_cast<int>(ceil_div(group, heads));
    if (ceil_div(group, parts) == heads) consider({.heads = parts});  // else fewer heads do
  }
  // Tiles once every head is a part: until then heads give as much.
  const auto most = std::min<std::int64_t>(tiles.most, multiprocessors);
  for (int cut = 2; cut <= most; ++cut) consider({.heads = group, .tiles = cut});
  return best;
}

}  // namespace tandem::cuda::attention
