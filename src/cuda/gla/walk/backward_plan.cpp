// The walks of a backward: which there are, what each reads and writes, how they are cut and what
// runs beside what, and their workspace. Host only.
#include <algorithm>
#include <utility>

#include "core/environment.h"
#include "cuda/gla/variant_choice.h"
#include "cuda/gla/walk/backward.h"
#include "cuda/gla/walk/config.h"
#include "cuda/gla/walk/schedule.h"

namespace tandem::cuda::gla {
namespace {

using Gradient = BackwardWalk::Gradient;
// Widest K, and widest part of V: each is some walk's K.
#ifdef TANDEM_CUDA_DEV
constexpr int kWidest = 128;
#else
constexpr int kWidest = 256;
#endif
constexpr int kMostParts = 2;  // of V

/// The walks over tiles of one pair of widths.
struct WalkTiles {
  DType dtype;
  int key_dim;
  int value_dim;
  WalkLaunch launch[4];  // by Gradient; the last one's are null unless the tiles are square
};

template <class Element>
void add_tiles(std::vector<WalkTiles>& table, DType dtype) {
  for_each_walk_tile([&]<int kKeyDim, int kValueDim>() {
    const auto launch = []<Walk kWalk>() -> WalkLaunch {
      return {&launch_walk<WalkConfig<Element, kKeyDim, kValueDim, false, kWalk>>,
              &launch_walk<WalkConfig<Element, kKeyDim, kValueDim, true, kWalk>>};
    };
    table.push_back(
        {dtype,
         kKeyDim,
         kValueDim,
         {launch.template operator()<Walk::kQuery>(), launch.template operator()<Walk::kKey>(),
          launch.template operator()<Walk::kValue>()}});
    if constexpr (kKeyDim == kValueDim) {
      table.back().launch[static_cast<int>(Gradient::kKV)].whole =
          &launch_walk<WalkConfig<Element, kKeyDim, kValueDim, false, Walk::kKeyValue>>;
    }
  });
}

const std::vector<WalkTiles>& walk_tiles() {
  static const std::vector<WalkTiles> table = [] {
    std::vector<WalkTiles> rows;
    add_tiles<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_tiles<__half>(rows, DType::kFloat16);
#endif
    return rows;
  }();
  return table;
}

/// The narrowest tiles that hold a walk.
const WalkTiles& narrowest_tiles(DType dtype, int K, int V) {
  return *std::ranges::find_if(walk_tiles(), [&](const WalkTiles& one) {
    const bool fits = one.key_dim == 256 ? one.value_dim == 64 : V <= 64 || one.value_dim == 128;
    return one.dtype == dtype && K <= one.key_dim && fits;
  });
}

/// Tiles for a walk, and what it is with them.
struct TiledWalk {
  const WalkTiles* tiles;
  SplitShape shape;
  int segments;
};

/// Keeps columns [first, last) of V of what dq and dk are made of. Strides, those of states too,
/// stay as they are.
GlaBackwardProblem keep_columns(GlaBackwardProblem problem, int first, int last) {
  GlaForwardProblem& f = problem.forward;
  const auto move = [](auto* data, std::int64_t offset) {
    return data == nullptr ? nullptr : data + offset;
  };
  for (StridedTensor* tensor : {&f.v, &problem.d_o}) {
    tensor->data = static_cast<char*>(tensor->data) + first * size_of(f.dtype);
  }
  f.initial_state = move(f.initial_state, first);
  problem.d_final_state = move(problem.d_final_state, first);
  problem.d_initial_state = move(problem.d_initial_state, first);
  f.V = last - first;
  return problem;
}

/// The problem by parts of V that are no wider than a walk's K, the first one the widest. All begin
/// where TMA can.
std::vector<GlaBackwardProblem> parts_of(const GlaBackwardProblem& problem) {
  const int V = problem.forward.V;
  const std::int64_t count = std::max<std::int64_t>(ceil_div(V, kWidest), 1);
  const int width = static_cast<int>(ceil_div(V, 8 * count) * 8);
  std::vector<GlaBackwardProblem> parts;
  for (int part = 0; part < count; ++part) {
    parts.push_back(keep_columns(problem, part * width, std::min((part + 1) * width, V)));
  }
  return parts;
}

/// Describes the walk for a gradient that is written to `o`, without its launches. `backward` is
/// the part of V, of so many columns.
BackwardWalk make_walk(const GlaBackwardProblem& backward, Gradient gradient,
                       const StridedTensor& o, int columns) {
  const GlaForwardProblem& f = backward.forward;
  const std::int64_t state = std::int64_t{f.K} * columns;
  BackwardWalk walk;
  walk.gradient = gradient;
  walk.problem = f;
  walk.problem.o = o;
  walk.problem.final_state = nullptr;
  const auto set = [&](const StridedTensor& q, const StridedTensor& k, const StridedTensor& v) {
    walk.problem.q = q;
    walk.problem.k = k;
    walk.problem.v = v;
  };
  if (gradient == Gradient::kV) {
    set(f.k, f.q, backward.d_o);
    walk.state_strides = {columns, 1, state};
  } else {
    const bool of_q = gradient == Gradient::kQ;
    if (of_q) {
      set(backward.d_o, f.v, f.k);
    } else {
      set(f.v, backward.d_o, f.q);
    }
    walk.x = of_q ? f.q : f.k;
    walk.problem.HQ = f.H;
    walk.problem.K = f.V;
    walk.problem.V = f.K;
    walk.heads_per_value = f.H / f.HQ;
    walk.state_strides = {1, columns, state};
    walk.row_sums = backward.d_log_decay.data != nullptr;
    walk.summed = (f.H != f.HQ || f.V != columns) && o.data != nullptr;
  }
  if (gradient != Gradient::kQ) walk.problem.initial_state = backward.d_final_state;
  return walk;
}

/// Puts dv and dq side by side, instead of one after the other over all SMs, where heads are few.
/// Possible because only dk needs what another walk leaves (dq's states).
void pair_walks(BackwardPlan& plan) {
  if (plan.walks.size() < 2) return;
  BackwardWalk& query = plan.walks.front();
  BackwardWalk& value = plan.walks.back();
  const SplitShape of_query = query.plan.shape;
  const SplitShape of_value = value.plan.shape;
  if (query.gradient != Gradient::kQ || value.gradient != Gradient::kV ||
      query.problem.cu_seqlens != nullptr || gla_segments_switch() != 0 || of_query.items == 0) {
    return;
  }
  const PairSegments segments =
      choose_pair_segments(of_query, of_value,
                           predicted_time(of_query, query.plan.segments) +
                               predicted_time(of_value, value.plan.segments));
  if (segments.a == 0) return;
  query.plan = plan_walk(query.problem, of_query, segments.a);
  value.plan = plan_walk(value.problem, of_value, segments.b);
  query.plan.states += value.plan.workspace_bytes;
  query.plan.factors += value.plan.workspace_bytes;
  query.plan.workspace_bytes += value.plan.workspace_bytes;
  query.beside_walk = true;
  std::rotate(plan.walks.begin(), plan.walks.end() - 1, plan.walks.end());
}

/// Joins dk and dv in one walk, where each takes one walk per head and none runs beside another.
void join_walks(BackwardPlan& plan, const GlaBackwardProblem& problem) {
  if (plan.walks.size() < 2) return;
  BackwardWalk& key = plan.walks[plan.walks.size() - 2];
  const BackwardWalk& value = plan.walks.back();
  const auto whole = [](const BackwardWalk& walk) {
    return walk.plan.segments == 1 && walk.plan.value_tiles == 1;
  };
  const GlaForwardProblem& f = problem.forward;
  const WalkLaunch& launch = narrowest_tiles(f.dtype, key.problem.K, key.problem.V)
                                 .launch[static_cast<int>(Gradient::kKV)];
  if (key.gradient != Gradient::kK || value.gradient != Gradient::kV || !whole(key) ||
      !whole(value) || !problem.dk.data || launch.whole == nullptr) {
    return;
  }
  key.gradient = Gradient::kKV;
  key.launch = launch;
  key.value = problem.dv;
  key.plan.shape.with_value = true;
  key.problem.final_state = problem.d_initial_state;
  plan.walks.pop_back();
}

/// Tiles a walk whose K is taken as `K`: as `given`, or if null with the narrowest tiles, or wider
/// ones that are predicted to be faster.
TiledWalk tile_walk(const BackwardWalk& walk, int K, const WalkTiles* given,
                    const DeviceProperties& device, bool batch_invariant) {
  const GlaForwardProblem& problem = walk.problem;
  const auto with = [&](const WalkTiles& tiles) {
    SplitShape shape = split_shape(problem, tiles.key_dim, tiles.value_dim, device);
    shape.row_sums = walk.row_sums;
    shape.reach = shape.chunks;  // choose_pair_segments takes it so
    return TiledWalk{&tiles, shape, choose_segments(problem, shape, batch_invariant)};
  };
  if (given != nullptr) return with(*given);
  const WalkTiles& narrowest = narrowest_tiles(problem.dtype, K, problem.V);
  TiledWalk best = with(narrowest);
  if (problem.V <= narrowest.value_dim) return best;
  for (const WalkTiles& wider : walk_tiles()) {
    if (wider.dtype != narrowest.dtype || wider.key_dim != narrowest.key_dim ||
        wider.value_dim <= narrowest.value_dim) {
      continue;
    }
    const TiledWalk other = with(wider);
    // why where segments are forced, too: small problems, which checks have, meet these tiles.
    if (gla_segments_switch() > 0 ||
        predicted_time(other.shape, other.segments) < predicted_time(best.shape, best.segments)) {
      best = other;
    }
  }
  return best;
}

/// Microseconds of writing o in fp32 per head, and of reading it again to be summed.
double sum_time(const BackwardWalk& walk, const DeviceProperties& device) {
  if (!walk.summed) return 0.0;
  const GlaForwardProblem& problem = walk.problem;
  return static_cast<double>(2 * 4 * problem.B * problem.T * problem.H * problem.V) /
         device_model(device).gla_walk.bytes_per_microsecond;
}

}  // namespace

std::string reason_against_walks(const GlaBackwardProblem& problem) {
  const std::string reason = width_reason("K", problem.forward.K, kWidest);
  return reason.empty() ? width_reason("V", problem.forward.V, kMostParts * kWidest) : reason;
}

BackwardPlan plan_backward(const GlaBackwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant) {
  const GlaForwardProblem& f = problem.forward;
  const bool decays = problem.d_log_decay.data != nullptr;
  const std::vector<GlaBackwardProblem> parts = parts_of(problem);
  BackwardPlan plan;
  plan.parts = static_cast<int>(parts.size());
  const auto add_parts = [&](Gradient gradient, const StridedTensor& o) {
    for (int part = 0; part < plan.parts; ++part) {
      plan.walks.push_back(make_walk(parts[part], gradient, o, f.V));
      plan.walks.back().part = part;
    }
  };
  if (problem.dq.data || decays) add_parts(Gradient::kQ, problem.dq);
  if (problem.dk.data || decays || (problem.d_initial_state && !problem.dv.data)) {
    add_parts(Gradient::kK, problem.dk);
  }
  if (problem.dv.data) plan.walks.push_back(make_walk(problem, Gradient::kV, problem.dv, f.V));

  bool summed = false;
  const WalkTiles* of_row_sums = nullptr;  // one for all, whose panels of sums then match
  for (BackwardWalk& walk : plan.walks) {
    if (walk.is_reverse() && walk.gradient == plan.walks.back().gradient) {
      walk.problem.final_state = parts[walk.part].d_initial_state;
    }
    // why by the widest part: panels of all parts are then of one size.
    const int K = walk.gradient == Gradient::kV ? f.K : parts.front().forward.V;
    const auto [tiles, shape, segments] =
        tile_walk(walk, K, walk.row_sums ? of_row_sums : nullptr, device, batch_invariant);
    walk.launch = tiles->launch[static_cast<int>(walk.gradient)];
    walk.plan = plan_walk(walk.problem, shape, segments);
    summed |= walk.summed;
    if (!walk.row_sums) continue;
    plan.panels = plan.parts * walk.plan.value_tiles * (tiles->value_dim / 64);
    of_row_sums = tiles;
  }
  if (plan.parts == 1) {
    if (!batch_invariant) pair_walks(plan);
    join_walks(plan, problem);
  }
  std::size_t walk_bytes = 0;
  for (const BackwardWalk& walk : plan.walks) {
    walk_bytes = std::max(walk_bytes, walk.plan.workspace_bytes);
  }
  WorkspaceLayout workspace(walk_bytes);
  for (const BackwardWalk& walk : plan.walks) plan.flag_count += walk.plan.flags;
  plan.flags = workspace.add(4 * plan.flag_count);
  std::size_t flags = plan.flags;
  for (BackwardWalk& walk : plan.walks) {
    walk.plan.ready = flags;
    flags += 4 * static_cast<std::size_t>(walk.plan.flags);
  }
  if (summed) plan.wide_output = workspace.add(4 * f.B * f.T * f.H * f.K);
  plan.workspace_bytes = workspace.bytes();
  if (!decays) return plan;

  // Stored states of flow spans take no more memory than the wider of q and v, at 64 columns half
  // of that: they are written and read. Narrower heads have fewer roundings to average, and one F
  // per chunk.
  if (std::min(f.K, f.V) >= 64) plan.spans.shift = 1;
  const int key_columns = 64 * plan.panels / plan.parts;
  while (plan.spans.tokens() < std::min(of_row_sums->key_dim, key_columns)) ++plan.spans.shift;
  const int tokens = plan.spans.tokens();
  plan.spans.per_sequence = static_cast<int>(ceil_div(f.T, tokens));
  // Of many short sequences most spans are the first ones.
  plan.spans.first_has = f.cu_seqlens == nullptr || f.initial_state != nullptr;
  plan.spans.count = static_cast<int>(f.cu_seqlens == nullptr ? f.N * plan.spans.per_sequence
                                      : plan.spans.first_has  ? f.T / tokens + f.N
                                                              : f.T / tokens + 1);
  const std::int64_t panel_rows = std::int64_t{plan.panels} * f.B * f.T * f.H;
  plan.query_rows = workspace.add(4 * panel_rows);
  plan.key_rows = workspace.add(4 * panel_rows);
  plan.key_state_rows = workspace.add(4 * panel_rows);
  const std::int64_t panel_spans = std::int64_t{plan.panels} * f.H * plan.spans.count;
  plan.flows = workspace.add(4 * 128 * panel_spans);
  plan.states = workspace.add(panel_spans * of_row_sums->key_dim * 64 * 2);
  constexpr std::int64_t kSpansPerCta = 4, kMostSplits = 64;
  const std::int64_t sequences = f.cu_seqlens != nullptr ? std::max<std::int64_t>(f.N, 1) : 1;
  plan.decay_splits = static_cast<unsigned>(
      std::clamp<std::int64_t>(f.T / sequences / tokens / kSpansPerCta, 1, kMostSplits));
  if (!problem.d_log_decay.per_token) {
    plan.decay_sums = workspace.add(4 * f.N * f.H * plan.decay_splits);
  }
  plan.workspace_bytes = workspace.bytes();
  const BackwardWalk& before = plan.walks.back();
  plan.decay_beside_walk = !before.row_sums && before.plan.items > 0;
  return plan;
}

double predicted_sums_time(const BackwardPlan& plan, const DeviceProperties& device) {
  double time = 0.0;
  for (const BackwardWalk& walk : plan.walks) time += sum_time(walk, device);
  return time;
}

double predicted_walks_time(const BackwardPlan& plan, const DeviceProperties& device) {
  const DeviceModel::GlaBackward& model = device_model(device).gla_backward;
  const bool decays = std::ranges::any_of(plan.walks, &BackwardWalk::row_sums);
  double time = (decays ? model.decays : 0.0) + predicted_sums_time(plan, device);
  for (std::size_t i = 0; i < plan.walks.size(); ++i) {
    const WalkPlan& own = plan.walks[i].plan;
    if (own.shape.items == 0) continue;
    if (i + 1 < plan.walks.size() && plan.walks[i + 1].beside_walk) {
      const WalkPlan& other = plan.walks[++i].plan;
      time += predicted_pair_time(own.shape, own.segments, other.shape, other.segments);
    } else {
      time += predicted_time(own.shape, own.segments);
    }
  }
  return model.together * time;
}

}  // namespace tandem::cuda::gla
