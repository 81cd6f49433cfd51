// gla_backward on CUDA: by groups of heads, by chunks, in one reverse walk or by a walk per
// gradient, and the launches that make up a call. Host only.
//
// Each gradient is a gated linear attention of other tensors (docs/ops/gla_backward.md):
//   dq_i = scale sum_{j<=i} D_ij (do_i . v_j) k_j      a forward of q: do, k: v, v: k
//   dk_j = scale sum_{i>=j} D_ij (v_j . do_i) q_i      from the last token on, q: v, k: do, v: q
//   dv_j = scale sum_{i>=j} D_ij (k_j . q_i) do_i      from the last token on, q: k, k: q, v: do
// whose states are S transposed, dS transposed and dS. The second and the third need one dS: where
// none of the walks is cut, one walk makes both (walk/key_value.cuh).
#include "cuda/gla/backward.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/environment.h"
#include "cuda/gla/decay/gradient.h"
#include "cuda/gla/walk/config.h"
#include "cuda/gla/walk/schedule.h"
#include "cuda/gla/walk/sum_heads.h"
#include "cuda/runtime/call_scope.h"
#include "cuda/runtime/clear.h"
#include "cuda/runtime/plan.h"
#include "ops/gla.h"

namespace tandem::cuda::gla {
namespace {

constexpr const char* kOp = "gla_backward";
using Gradient = BackwardWalk::Gradient;
// Widest K and V: each is some walk's K.
#ifdef TANDEM_CUDA_DEV
constexpr int kWidest = 128;
#else
constexpr int kWidest = 256;
#endif

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

/// The narrowest tiles that hold a walk.
const WalkTiles& tiles_for(DType dtype, int K, int V) {
  static const std::vector<WalkTiles> table = [] {
    std::vector<WalkTiles> rows;
    add_tiles<__nv_bfloat16>(rows, DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
    add_tiles<__half>(rows, DType::kFloat16);
#endif
    return rows;
  }();
  return *std::find_if(table.begin(), table.end(), [&](const WalkTiles& one) {
    const bool wide_enough = V <= 64 || one.value_dim == 128 || one.key_dim == 256;
    return one.dtype == dtype && K <= one.key_dim && wide_enough;
  });
}

/// Describes the walk for a gradient that is written to `o`, without its launches.
BackwardWalk make_walk(const GlaBackwardProblem& backward, Gradient gradient,
                       const StridedTensor& o) {
  const GlaForwardProblem& f = backward.forward;
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
    walk.state_strides = {f.V, 1};
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
    walk.state_strides = {1, f.V};
    walk.row_sums = backward.d_log_decay.data != nullptr;
    walk.sums_heads = f.H != f.HQ && o.data != nullptr;
  }
  if (gradient != Gradient::kQ) walk.problem.initial_state = backward.d_final_state;
  return walk;
}

bool is_reverse(const BackwardWalk& walk) { return walk.gradient != Gradient::kQ; }

/// Predicts microseconds of the walks and the kernel for the decays, at 64 columns.
double predicted_walks_time(const BackwardPlan& plan, const DeviceProperties& device) {
  const DeviceModel::GlaBackward& model = device_model(device).gla_backward;
  double time = plan.walks.empty() || !plan.walks.front().row_sums ? 0.0 : model.decays;
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

/// The variant for a problem and, if it goes by walks, their plan. The plan is made once, since the
/// choice may depend on it.
struct BackwardChoice {
  const BackwardVariant& variant;
  BackwardPlan walks;
};

BackwardChoice choose(const GlaBackwardProblem& problem, const DeviceProperties& device,
                      const CallOptions& options) {
  const TilePlans tiles = plan_tiles(problem);
  std::optional<BackwardPlan> walks;
  const BackwardVariant& variant =
      choose_variant(kOp, backward_variants(), device, options, [&](const BackwardVariant& one) {
        std::string reason = reason_against(one, problem, tiles);
        const bool by_walks = one.by_walks();
        // The others take no cu_seqlens: packed sequences go by walks, and so must all.
        if (!by_walks && options.batch_invariant) reason = "is not batch-invariant";
        if (reason.empty() && !by_walks && options.variant.empty()) {
          if (!walks) walks = plan_backward(problem, device);
          const double time = one.by_groups   ? predicted_groups_time(problem, device)
                              : one.by_chunks ? predicted_chunks_time(problem, device)
                                              : predicted_reverse_time(problem, device);
          if (time > predicted_walks_time(*walks, device)) {
            reason = "is predicted to be slower than walks";
          }
        }
        return reason;
      });
  if (!variant.by_walks()) return {variant, {}};
  return {variant,
          walks ? *std::move(walks) : plan_backward(problem, device, options.batch_invariant)};
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
  const WalkLaunch& launch =
      tiles_for(f.dtype, key.problem.K, key.problem.V).launch[static_cast<int>(Gradient::kKV)];
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

/// Encodes the map of a tensor whose tiles have no problem (plan_tiles).
CUtensorMap tile_map(const StridedTensor& tensor, const GlaRecurrence& problem, int heads,
                     int dim) {
  TilePlans tiles;
  tiles.add("", tensor, problem, heads, dim);
  return encode(tiles.plans[0]);
}

DecayGradientParams decay_gradient_params(const GlaBackwardProblem& problem,
                                          const BackwardPlan& plan, const ScratchMemory& scratch) {
  const GlaForwardProblem& f = problem.forward;
  DecayGradientParams params;
  params.B = f.B;
  params.T = f.T;
  params.N = f.N;
  params.H = f.H;
  params.cu_seqlens = f.cu_seqlens;
  params.log_decay = f.log_decay;
  params.d_log_decay = problem.d_log_decay;
  params.panels = plan.panels;
  params.query_rows = scratch.at<float>(plan.query_rows);
  params.key_rows = scratch.at<float>(plan.key_rows);
  params.key_state_rows = scratch.at<float>(plan.key_state_rows);
  params.flows = scratch.at<float>(plan.flows);
  params.spans = plan.spans;
  params.splits = plan.decay_splits;
  params.sums = scratch.at<float>(plan.decay_sums);
  params.beside_walk = plan.decay_beside_walk;
  return params;
}

void run(const GlaBackwardProblem& backward, const BackwardPlan& plan, const BackwardWalk& walk,
         const BackwardVariant& variant, const ScratchMemory& scratch, void* stream) {
  WalkParams params;
  params.problem = walk.problem;
  params.heads_per_value = walk.heads_per_value;
  params.beside_walk = walk.beside_walk;
  params.state_strides = walk.state_strides;
  if (walk.sums_heads) {
    params.problem.o = {};
    params.wide_output = scratch.at<float>(plan.wide_output);
  }
  params.row_sums.x = walk.x;
  params.value = walk.value;
  if (walk.row_sums) {
    params.row_sums.rows = scratch.at<float>(is_reverse(walk) ? plan.key_rows : plan.query_rows);
    params.row_sums.state_rows = scratch.at<float>(plan.key_state_rows);
    params.row_sums.states = scratch.at<uint4>(plan.states);
    params.row_sums.flows = scratch.at<float>(plan.flows);
    params.row_sums.spans = plan.spans;
  }
  if (variant.tma) {
    const GlaForwardProblem& problem = params.problem;
    const int value_heads = problem.H / walk.heads_per_value;
    params.tma = true;
    params.q_map = tile_map(problem.q, problem, problem.HQ, problem.K);
    params.k_map = tile_map(problem.k, problem, problem.HQ, problem.K);
    params.v_map = tile_map(problem.v, problem, value_heads, problem.V);
    if (problem.o.data) params.o_map = tile_map(problem.o, problem, problem.H, problem.V);
    if (walk.row_sums || walk.value.data) {
      params.x_map = tile_map(walk.x, problem, value_heads, problem.V);
    }
    if (walk.value.data) {
      params.value_map = tile_map(walk.value, problem, problem.H, problem.K);
    }
  }
  run_walk(variant.name, walk.launch, walk.plan, params, scratch, stream);
  if (walk.sums_heads) {
    const GlaForwardProblem& f = backward.forward;
    launch_sum_heads(
        {f.dtype, f.B, f.T, f.N, f.H, f.HQ, f.K, f.cu_seqlens, params.wide_output, walk.problem.o},
        walk.plan.shape.multiprocessors, stream);
  }
}

void run_by_walks(const GlaBackwardProblem& problem, const BackwardVariant& variant,
                  const BackwardPlan& plan, const Context& context) {
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;
  if (plan.flag_count > 0) {
    launch_clear(kOp, scratch.at<std::uint32_t>(plan.flags), plan.flag_count, stream);
  }
  for (const BackwardWalk& walk : plan.walks) run(problem, plan, walk, variant, scratch, stream);
  if (problem.d_log_decay.data != nullptr) {
    launch_decay_gradient(decay_gradient_params(problem, plan, scratch), stream);
  }
}

/// Says why a kernel that makes all gradients at once cannot take a problem, whatever its widths;
/// "" when it can.
std::string reason_against_all_at_once(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (f.cu_seqlens != nullptr) return "takes no cu_seqlens";
  const bool all = problem.dq.data && problem.dk.data && problem.dv.data;
  return all ? "" : "makes dq, dk and dv, of which not all are wanted";
}

/// The same for one that makes them per head.
std::string reason_against_heads(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  if (f.HQ == f.H) return "";
  return "takes H = HQ, got " + std::to_string(f.H) + " and " + std::to_string(f.HQ);
}

BackwardMaps encode_maps(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  return {tile_map(f.q, f, f.HQ, f.K),        tile_map(f.k, f, f.HQ, f.K),
          tile_map(f.v, f, f.H, f.V),         tile_map(problem.d_o, f, f.H, f.V),
          tile_map(problem.dq, f, f.HQ, f.K), tile_map(problem.dk, f, f.HQ, f.K),
          tile_map(problem.dv, f, f.H, f.V)};
}

/// Sums a constant decay's gradient, from `splits` sums per sequence and head.
void sum_decays(const GlaBackwardProblem& problem, float* sums, int splits, void* stream) {
  if (!problem.d_log_decay.data || problem.d_log_decay.per_token) return;
  DecayGradientParams params;
  params.N = problem.forward.N;
  params.H = problem.forward.H;
  params.splits = static_cast<unsigned>(splits);
  params.sums = sums;
  params.d_log_decay = problem.d_log_decay;
  launch_decay_sum(params, stream);
}

void run_by_chunks(const GlaBackwardProblem& problem, const BackwardVariant& variant,
                   const DeviceProperties& device, const Context& context) {
  const GlaForwardProblem& f = problem.forward;
  const ChunkBackwardPlan plan = plan_chunk_backward(problem, device);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;
  ChunkBackwardParams params{encode_maps(problem), problem};
  params.pairs = plan.pairs;
  params.count = static_cast<unsigned>(f.B * f.H * plan.pairs);
  params.multiprocessors = std::max(device.multiprocessors, 1);
  params.states = scratch.at<char>(plan.states);
  params.state_gradients = scratch.at<char>(plan.state_gradients);
  params.cut = plan.cut;
  params.cut_factors = scratch.at<CutFactor>(plan.cut_factors);
  params.decay_sums = scratch.at<float>(plan.decay_sums);
  variant.by_chunks(variant.name.c_str(), params, stream);
  sum_decays(problem, params.decay_sums, 2 * plan.pairs, stream);
}

void run_by_groups(const GlaBackwardProblem& problem, const BackwardVariant& variant,
                   const DeviceProperties& device, const Context& context) {
  const GlaForwardProblem& f = problem.forward;
  const GroupBackwardPlan plan = plan_group_backward(problem);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;
  GroupBackwardParams params{encode_maps(problem), problem};
  params.share = f.H / f.HQ;
  params.chunks = plan.chunks;
  params.pairs = plan.pairs;
  params.multiprocessors = device.multiprocessors;
  params.states = scratch.at<char>(plan.states);
  params.state_gradients = scratch.at<char>(plan.state_gradients);
  params.decay_sums = scratch.at<float>(plan.decay_sums);
  variant.by_groups(variant.name.c_str(), params, stream);
  sum_decays(problem, params.decay_sums, plan.chunks, stream);
}

void run_in_reverse(const GlaBackwardProblem& problem, const BackwardVariant& variant,
                    const Context& context) {
  const ReversePlan plan = plan_reverse_backward(problem);
  const ScratchMemory scratch(kOp, context, plan.workspace_bytes);
  void* const stream = context.stream.handle;
  ReverseParams params{encode_maps(problem), problem};
  params.chunks = plan.chunks;
  params.pairs = plan.pairs;
  params.states = scratch.at<char>(plan.states);
  params.decay_sums = scratch.at<float>(plan.decay_sums);
  variant.in_reverse(variant.name.c_str(), params, stream);
  sum_decays(problem, params.decay_sums, 1, stream);
}

}  // namespace

const std::vector<BackwardVariant>& backward_variants() {
  static const std::vector<BackwardVariant> table =
      table_of_variants<BackwardVariant>([]<class Element>(auto& rows, DType dtype, bool tma) {
        const std::string name =
            std::string(kOp) + ".sm90." + to_string(dtype) + ".c" + std::to_string(kChunk);
        if (tma) {
          rows.push_back({name + ".chunks", dtype, tma, &launch_chunk_backward<Element>});
          rows.push_back({name + ".reverse", dtype, tma, nullptr,
                          &launch_reverse_backward<Element, 128, 128>});
          rows.push_back(
              {name + ".groups", dtype, tma, nullptr, nullptr, &launch_group_backward<Element>});
        }
        rows.push_back({name + (tma ? "" : ".gather"), dtype, tma});
      });
  return table;
}

TilePlans plan_tiles(const GlaBackwardProblem& problem) {
  const GlaForwardProblem& f = problem.forward;
  TilePlans tiles = plan_tiles(f, false);
  tiles.add("d_o", problem.d_o, f, f.H, f.V);
  if (problem.dq.data) tiles.add_stored("dq", problem.dq, f, f.HQ, f.K);
  if (problem.dk.data) tiles.add_stored("dk", problem.dk, f, f.HQ, f.K);
  if (problem.dv.data) tiles.add_stored("dv", problem.dv, f, f.H, f.V);
  return tiles;
}

std::string reason_against(const BackwardVariant& variant, const GlaBackwardProblem& problem,
                           const TilePlans& tiles) {
  const GlaForwardProblem& f = problem.forward;
  std::string reason = common_reason(variant.dtype, variant.tma, f, tiles);
  if (!variant.by_walks()) {
    if (reason.empty()) reason = reason_against_all_at_once(problem);
    if (reason.empty() && !variant.by_groups) reason = reason_against_heads(problem);
    if (!reason.empty()) return reason;
    if (variant.by_groups) return reason_against_groups(problem);
    return variant.by_chunks ? reason_against_chunks(problem) : reason_against_reverse(problem);
  }
  if (reason.empty()) reason = width_reason("K", f.K, kWidest);
  if (reason.empty()) reason = width_reason("V", f.V, kWidest);
  return reason;
}

BackwardPlan plan_backward(const GlaBackwardProblem& problem, const DeviceProperties& device,
                           bool batch_invariant) {
  const GlaForwardProblem& f = problem.forward;
  const bool decays = problem.d_log_decay.data != nullptr;
  BackwardPlan plan;
  if (problem.dq.data || decays) {
    plan.walks.push_back(make_walk(problem, Gradient::kQ, problem.dq));
  }
  if (problem.dk.data || decays || (problem.d_initial_state && !problem.dv.data)) {
    plan.walks.push_back(make_walk(problem, Gradient::kK, problem.dk));
  }
  if (problem.dv.data) plan.walks.push_back(make_walk(problem, Gradient::kV, problem.dv));
  if (!plan.walks.empty() && is_reverse(plan.walks.back())) {
    plan.walks.back().problem.final_state = problem.d_initial_state;
  }

  bool sums_heads = false;
  int key_dim = 0;
  for (BackwardWalk& walk : plan.walks) {
    const WalkTiles& tiles = tiles_for(f.dtype, walk.problem.K, walk.problem.V);
    walk.launch = tiles.launch[static_cast<int>(walk.gradient)];
    SplitShape shape = split_shape(walk.problem, tiles.key_dim, tiles.value_dim, device);
    shape.row_sums = walk.row_sums;
    walk.plan =
        plan_walk(walk.problem, shape, choose_segments(walk.problem, shape, batch_invariant));
    sums_heads |= walk.sums_heads;
    if (!walk.row_sums) continue;
    plan.panels = walk.plan.value_tiles * (tiles.value_dim / 64);
    key_dim = tiles.key_dim;
  }
  if (!batch_invariant) pair_walks(plan);
  join_walks(plan, problem);
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
  if (sums_heads) plan.wide_output = workspace.add(4 * f.B * f.T * f.H * f.K);
  plan.workspace_bytes = workspace.bytes();
  if (!decays) return plan;

  // Stored states of flow spans take no more memory than the wider of q and v, at 64 columns half
  // of that: they are written and read. Narrower heads have fewer roundings to average, and one F
  // per chunk.
  if (std::min(f.K, f.V) >= 64) plan.spans.shift = 1;
  while (plan.spans.tokens() < std::min(key_dim, 64 * plan.panels)) ++plan.spans.shift;
  const int tokens = plan.spans.tokens();
  plan.spans.per_sequence = static_cast<int>(ceil_div(f.T, tokens));
  plan.spans.count = static_cast<int>(f.cu_seqlens != nullptr ? f.T / tokens + f.N
                                                              : f.N * plan.spans.per_sequence);
  const std::int64_t panel_rows = std::int64_t{plan.panels} * f.B * f.T * f.H;
  plan.query_rows = workspace.add(4 * panel_rows);
  plan.key_rows = workspace.add(4 * panel_rows);
  plan.key_state_rows = workspace.add(4 * panel_rows);
  const std::int64_t panel_spans = std::int64_t{plan.panels} * f.H * plan.spans.count;
  plan.flows = workspace.add(4 * 128 * panel_spans);
  plan.states = workspace.add(panel_spans * key_dim * 64 * 2);
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

}  // namespace tandem::cuda::gla

namespace tandem::cuda {

void gla_backward(const GlaBackwardProblem& problem, const Context& context,
                  const CallOptions& options) {
  const DeviceProperties& device = device_properties(problem.forward.device);
  const auto [variant, walks] = gla::choose(problem, device, options);
  const CallScope scope(variant.name, problem.forward.device.index);
  if (variant.by_groups) {
    gla::run_by_groups(problem, variant, device, context);
  } else if (variant.by_chunks) {
    gla::run_by_chunks(problem, variant, device, context);
  } else if (variant.in_reverse) {
    gla::run_in_reverse(problem, variant, context);
  } else {
    gla::run_by_walks(problem, variant, walks, context);
  }
}

std::size_t gla_backward_workspace_bytes(const GlaBackwardProblem& problem,
                                         const DeviceProperties& device,
                                         const CallOptions& options) {
  const auto [variant, walks] = gla::choose(problem, device, options);
  if (variant.by_groups) return gla::plan_group_backward(problem).workspace_bytes;
  if (variant.by_chunks) return gla::plan_chunk_backward(problem, device).workspace_bytes;
  if (variant.in_reverse) return gla::plan_reverse_backward(problem).workspace_bytes;
  return walks.workspace_bytes;
}

}  // namespace tandem::cuda
