#include "cuda/gla/walk/plan.h"

#include <algorithm>
#include <vector>

#include "core/environment.h"
#include "cuda/gla/common/expected_reach.h"
#include "cuda/gla/common/segments.h"
#include "cuda/gla/walk/params.h"

namespace tandem::cuda::gla {
namespace {

constexpr double kClearly = 0.9;  // a prediction is off by less

/// The value for so many columns of K, out of those at 64, 128 and 256.
double of_width(const double (&values)[3], int key_dim) {
  return values[key_dim == 64 ? 0 : key_dim == 128 ? 1 : 2];
}

/// A time by K, of the shape's tile.
double of_tile(const SplitShape& shape, const double (&values)[3]) {
  const bool widest = shape.key_dim == 256 && shape.value_dim > 64;
  return (widest ? shape.model->widest : 1.0) * of_width(values, shape.key_dim);
}

/// Microseconds of one chunk of one CTA, where the memory does not bind.
double walk_chunk_time(const SplitShape& shape) {
  constexpr double kSecondHead = 1.6;  // times a chunk of one head
  const double plain = of_tile(shape, shape.model->chunk);
  return shape.with_value  ? shape.model->with_value * plain
         : shape.row_sums  ? shape.model->with_row_sums * plain
         : shape.heads > 1 ? kSecondHead * plain
                           : plain;
}

/// Microseconds of the slowest CTA's pass over so many chunks of each segment, where the memory
/// does not bind.
double pass_latency(const SplitShape& shape, int segments, std::int64_t chunks, double chunk_time) {
  const std::int64_t rounds = ceil_div(shape.items * segments, shape.multiprocessors);
  return static_cast<double>(rounds * chunks) * chunk_time;
}

/// Bytes of one chunk of so many tensors of width K + V.
double chunk_bytes(const SplitShape& shape, int tensors) {
  return kChunk * (shape.key_dim + shape.value_dim) * 2.0 * tensors;
}

/// Tensors of width K + V that a walk reads or writes.
int walk_tensors(const SplitShape& shape) { return shape.with_value ? 3 : 2; }

/// Microseconds of traffic of one pass. `tensors`: how many tensors of width K + V it reads or
/// writes.
double pass_traffic(const SplitShape& shape, int tensors) {
  return static_cast<double>(shape.items * shape.chunks) * chunk_bytes(shape, tensors) /
         shape.model->bytes_per_microsecond;
}

/// Microseconds of segments' walks, of which latency and traffic cost each other some.
double together(double latency, double traffic, double of_less) {
  return std::max(latency, traffic) + of_less * std::min(latency, traffic);
}

/// Microseconds of a walk: latency and traffic of its passes, and what does not depend on them.
struct WalkTime {
  double walk_latency;
  double walk_traffic;
  double span_latency = 0.0;
  double span_traffic = 0.0;
  bool split;
  double call;
  double fixed;

  WalkTime(const SplitShape& shape, int segments)
      : walk_latency(pass_latency(shape, segments, ceil_div(shape.chunks, segments),
                                  walk_chunk_time(shape))),
        walk_traffic(pass_traffic(shape, walk_tensors(shape))),
        split(segments > 1),
        call(shape.model->call),
        fixed(call) {
    if (!split) return;
    const std::int64_t read = std::min(ceil_div(shape.chunks, segments), shape.reach);
    span_latency = pass_latency(shape, segments, read, of_tile(shape, shape.model->span_chunk));
    span_traffic = pass_traffic(shape, 1) * static_cast<double>(read * segments) /
                   static_cast<double>(shape.chunks);
    // Factors become 0, and receiving ends, at more than twice the reach.
    const std::int64_t received = std::min<std::int64_t>(
        segments - 1, 1 + 2 * shape.reach / std::max<std::int64_t>(shape.chunks / segments, 1));
    fixed += shape.model->exchange + shape.model->per_segment * static_cast<double>(received);
  }
  double total() const {
    const double walk =
        split ? together(walk_latency, walk_traffic, 0.2) : std::max(walk_latency, walk_traffic);
    return fixed + walk + std::max(span_latency, span_traffic);
  }
  double traffic() const { return call + walk_traffic + span_traffic; }
};

/// Microseconds of two segments whose second reads the first, too, as far as it depends on it.
/// `first_chunks`: of the first one, if on all.
double predicted_ahead_time(const SplitShape& shape, int first_chunks) {
  const auto all = static_cast<double>(shape.chunks), half = 0.5 * all;
  const double read = std::min(static_cast<double>(shape.reach), half);
  const double first = half + (first_chunks - half) * read / half;  // both CTAs then end together
  const double traffic =
      pass_traffic(shape, walk_tensors(shape)) + pass_traffic(shape, 1) * read / all;
  const double looks = shape.reach < shape.chunks ? 2.5 : 0.0;  // at the decays, twice
  constexpr double kOfLess = 0.1;
  return shape.model->call + looks + together(first * walk_chunk_time(shape), traffic, kOfLess);
}

/// Walks of a sequence per tile of V, of so many heads of a group together.
std::int64_t walks_of_sequence(const GlaForwardProblem& problem, int heads) {
  return heads == 1 ? problem.H : problem.HQ * ceil_div(problem.H / problem.HQ, heads);
}

}  // namespace

double predicted_time(const SplitShape& shape, int segments) {
  return WalkTime(shape, segments).total();
}

double predicted_chunks_time(const SplitShape& shape, double chunks) {
  return chunks *
         std::max(walk_chunk_time(shape) / std::max(shape.multiprocessors, 1),
                  chunk_bytes(shape, walk_tensors(shape)) / shape.model->bytes_per_microsecond);
}

double predicted_time(const SplitShape& shape, const SharedWalks& shared) {
  const WalkTime whole(shape, 1);
  const std::int64_t chunks =
      shape.items / shared.blocks * shape.chunks + ceil_div(shape.chunks, shared.parts);
  const double handed_on = (shared.parts > 2 ? 2 : 1) * shape.model->exchange;
  return whole.fixed + handed_on +
         std::max(static_cast<double>(chunks) * walk_chunk_time(shape), whole.walk_traffic);
}

SharedWalks choose_shared(const GlaForwardProblem& problem, const SplitShape& shape) {
  if (problem.cu_seqlens != nullptr || shape.items <= shape.multiprocessors) return {};
  constexpr std::int64_t kLeastChunks = 4;  // of a part
  const std::int64_t left = shape.items % shape.multiprocessors;
  if (left == 0) return {};
  const std::int64_t parts =
      std::min<std::int64_t>(shape.multiprocessors / left, shape.chunks / kLeastChunks);
  if (parts < 2 || shape.chunks * parts > kMaxIndex) return {};
  const SharedWalks shared{shape.multiprocessors, static_cast<int>(left), static_cast<int>(parts),
                           static_cast<int>(shape.chunks)};
  return predicted_time(shape, shared) < predicted_time(shape, 1) ? shared : SharedWalks{};
}

double predicted_pair_time(const SplitShape& a, int a_segments, const SplitShape& b,
                           int b_segments) {
  const WalkTime of_a(a, a_segments), of_b(b, b_segments);
  return std::max({of_a.total(), of_b.total(), of_a.traffic() + of_b.traffic() - of_a.call});
}

PairSegments choose_pair_segments(const SplitShape& a, const SplitShape& b, double time_to_beat) {
  const auto most = [](std::int64_t multiprocessors, const SplitShape& shape) {
    return std::min(multiprocessors / shape.items, std::max<std::int64_t>(shape.chunks, 1));
  };
  const std::int64_t most_a = most(a.multiprocessors, a);
  const std::int64_t most_b = most(a.multiprocessors - a.items, b);
  if (most_a < 1 || most_b < 1) return {};
  // why: with all chunks in reach, of the traffic only whether b is cut matters, so that the best
  // of a range of numbers of segments above 1 is the one with the smallest time alone.
  std::vector<double> alone(most_b + 1), least(most_b + 1);
  for (std::int64_t j = 1; j <= most_b; ++j) {
    alone[j] = predicted_time(b, static_cast<int>(j));
    least[j] = j <= 2 ? alone[j] : std::min(alone[j], least[j - 1]);
  }
  const double traffic[2] = {WalkTime(b, 1).traffic(), WalkTime(b, 2).traffic()};  // whole, cut
  PairSegments best;
  double best_time = time_to_beat;
  for (int i = 1; i <= most_a; ++i) {
    const std::int64_t last = most(a.multiprocessors - i * a.items, b);
    if (last < 1) break;
    const WalkTime of_a(a, i);
    const double floors[2] = {std::max(of_a.total(), of_a.traffic() + traffic[0] - of_a.call),
                              std::max(of_a.total(), of_a.traffic() + traffic[1] - of_a.call)};
    const auto pair_time = [&](std::int64_t j) { return std::max(floors[j > 1], alone[j]); };
    double least_time = pair_time(1);
    if (last > 1) least_time = std::min(least_time, std::max(floors[1], least[last]));
    if (least_time >= best_time) continue;
    best_time = least_time;
    int j = 1;
    while (pair_time(j) > least_time) ++j;
    best = {i, j};
  }
  return best;
}

int choose_segments(const SplitShape& shape) {
  int best = 1;
  double best_time = kClearly * predicted_time(shape, 1);
  const std::int64_t most =
      std::min<std::int64_t>(shape.chunks, shape.multiprocessors / shape.items);
  for (int segments = 2; segments <= most; ++segments) {
    const double time = predicted_time(shape, segments);
    if (time < best_time) {
      best = segments;
      best_time = time;
    }
  }
  return best;
}

int choose_first_chunks(const SplitShape& shape, int segments) {
  constexpr std::int64_t kLeastChunks = 8;
  if (shape.heads > 1 || shape.chunks < kLeastChunks) return 0;
  if (2 * shape.items > shape.multiprocessors) return 0;
  // Both CTAs then end together.
  const double chunk = walk_chunk_time(shape);
  const double span_chunk = of_tile(shape, shape.model->span_chunk);
  const double share = chunk / (2.0 * chunk - span_chunk);
  const int first = static_cast<int>(share * static_cast<double>(shape.chunks) + 0.5);
  // why clearly, if not cut otherwise: a backward starts under a forward that leaves room.
  const double other = predicted_time(shape, segments);
  return predicted_ahead_time(shape, first) < (segments == 1 ? kClearly * other : other) ? first
                                                                                         : 0;
}

std::optional<int> fixed_segments(const GlaRecurrence& problem, std::int64_t walks,
                                  bool batch_invariant) {
  if (batch_invariant) return 1;
  const std::int64_t chunks = ceil_div(problem.T, kChunk);
  if (walks == 0 || chunks < 2) return 1;
  const int forced = gla_segments_switch();
  if (forced > 0) return static_cast<int>(std::min<std::int64_t>(forced, chunks));
  return std::nullopt;
}

int choose_segments(const GlaForwardProblem& problem, const SplitShape& shape,
                    bool batch_invariant) {
  const std::optional<int> fixed = fixed_segments(problem, shape.items, batch_invariant);
  if (fixed) return *fixed;
  if (problem.cu_seqlens == nullptr) return choose_segments(shape);
  // Every sequence but one may have a short segment more than its share.
  SplitShape joined = shape;
  joined.items /= problem.N;
  joined.multiprocessors -= static_cast<int>(
      std::min<std::int64_t>(shape.items - joined.items, shape.multiprocessors - 1));
  return joined.multiprocessors < 2 * joined.items ? 1 : choose_segments(joined);
}

SplitShape split_shape(const GlaForwardProblem& problem, int key_dim, int value_dim,
                       const DeviceProperties& device, int heads) {
  const std::int64_t value_tiles = ceil_div(problem.V, value_dim / heads);
  SplitShape shape{problem.N * walks_of_sequence(problem, heads) * value_tiles,
                   ceil_div(problem.T, kChunk),
                   ceil_div(expected_reach(problem), kChunk),
                   key_dim,
                   value_dim,
                   device.multiprocessors,
                   &device_model(device).gla_walk};
  shape.heads = heads;
  return shape;
}

WalkPlan plan_walk(const GlaForwardProblem& problem, const SplitShape& shape, int segments,
                   const SharedWalks& shared, int first_chunks) {
  WalkPlan plan;
  plan.shape = shape;
  plan.value_tiles = static_cast<int>(ceil_div(problem.V, shape.value_dim / shape.heads));
  plan.walks = static_cast<int>(walks_of_sequence(problem, shape.heads));
  plan.segments = segments;
  plan.first_chunks = first_chunks;
  plan.shared = shared;
  if (problem.cu_seqlens != nullptr && plan.split()) {
    plan.pieces =
        static_cast<int>(problem.N + problem.T / (std::int64_t{kChunk} * plan.piece_chunks()));
    plan.items = plan.pieces * plan.walks * plan.value_tiles;
  } else {
    plan.items = static_cast<int>(shape.items * segments);
  }
  plan.blocks = static_cast<unsigned>(
      plan.split() ? plan.items : std::min(plan.items, std::max(shape.multiprocessors, 1)));
  WorkspaceLayout workspace;
  const int state_warps = shape.value_dim / 16;  // a warp keeps 16 columns of V
  if (plan.shares()) {
    plan.flags = shared.slots() * state_warps;
    plan.states =
        workspace.add(std::int64_t{4} * shared.slots() * shape.heads * problem.K * problem.V);
    plan.ready = workspace.add(std::int64_t{4} * plan.flags);
  } else if (plan.split() && first_chunks == 0) {
    plan.flags = plan.items * state_warps;
    plan.states = workspace.add(std::int64_t{4} * plan.items * shape.key_dim * shape.value_dim);
    plan.factors = workspace.add(std::int64_t{4} * plan.flags);
    plan.ready = workspace.add(std::int64_t{4} * plan.flags);
  }
  if (plan.pieces > 0) {
    plan.piece = workspace.add(static_cast<std::int64_t>(sizeof(WalkPiece)) * plan.pieces);
  } else if (problem.cu_seqlens != nullptr) {
    plan.order = workspace.add(4 * problem.N);
    plan.ticket = workspace.add(4);
  }
  plan.workspace_bytes = workspace.bytes();
  return plan;
}

WalkPlan plan_forward(const GlaForwardProblem& problem, int key_dim, int value_dim,
                      const DeviceProperties& device, bool batch_invariant, int heads) {
  const SplitShape shape = split_shape(problem, key_dim, value_dim, device, heads);
  const int segments = choose_segments(problem, shape, batch_invariant);
  const bool chosen = !fixed_segments(problem, shape.items, batch_invariant);
  if (chosen && problem.cu_seqlens == nullptr) {
    const int first_chunks = choose_first_chunks(shape, segments);
    if (first_chunks > 0) return plan_walk(problem, shape, 2, {}, first_chunks);
  }
  return plan_walk(problem, shape, segments,
                   segments == 1 ? choose_shared(problem, shape) : SharedWalks{});
}

double predicted_time(const WalkPlan& plan) {
  if (plan.first_chunks > 0) return predicted_ahead_time(plan.shape, plan.first_chunks);
  return plan.shares() ? predicted_time(plan.shape, plan.shared)
                       : predicted_time(plan.shape, plan.segments);
}

}  // namespace tandem::cuda::gla
