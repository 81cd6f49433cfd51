// The copies and decays roles of gla_group_gradients_kernel.
#pragma once

#include <cstddef>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cuda/gla/common/tiles.cuh"
#include "cuda/gla/decay/gradient.cuh"
#include "cuda/gla/groups/shared.cuh"
#include "cuda/parts/stream_order.cuh"

namespace tandem::cuda::gla {

/// Copies in, three members ahead, and dv out, by one thread.
template <class Config>
struct GroupCopies {
  const GroupBackwardParams& params;
  GroupShared<Config>& shared;

  using Stage = typename GroupShared<Config>::Stage;
  static constexpr int kStages = GroupShared<Config>::kStages;

  __device__ TileCoordinate values_of(const GroupItem& item, int member) const {
    const GroupMember of = find_member(params, item.group, member);
    return {of.column, of.head, item.begin(), item.batch};
  }

  /// Loads all of a member but v, into panels that no gradient leaves through. An item's first one
  /// has the item's inputs in its barrier, too. `own`: where its values are.
  __device__ void load(int stage_index, const GroupItem& item, int member,
                       TileCoordinate own) const {
    Stage& stage = shared.stages[stage_index];
    Barrier& full = shared.full[stage_index];
    full.arrive_and_expect((member == 0 ? 5 : 2) * Config::kTileBytes + 3 * panel_bytes(64));
    const std::int64_t pair =
        (std::int64_t{item.group_of_slab(params)} * params.members + member) * params.slab_pairs +
        item.pair_of_slab(params);
    // S and dS, side by side, or dS alone.
    static_assert(offsetof(Stage, gradient) == offsetof(Stage, state) + Config::kTileBytes);
    const int bytes = params.kinds() * Config::kTileBytes;
    cute::SM90_BULK_COPY_G2S::copy(static_cast<const char*>(params.states) + pair * bytes,
                                   &full.word, stage.gradient + Config::kTileBytes - bytes, bytes);
    load_panel(params.d_o_map, full, stage.d_o, own);
    own.time = item.other_begin();
    load_panel(item.is_second() ? params.v_map : params.d_o_map, full, stage.other, own);
    if (!params.saved_states) return;
    const int row = item.batch * params.sequence_pairs + item.chunk / 2;
    load_tile(params.states_map, full, stage.state, Config::kKeyDim,
              {0, own.head, own.column, row});
  }
  __device__ void load_values(int stage, TileCoordinate own) const {
    load_panel(params.v_map, shared.full[stage], shared.stages[stage].v, own);
  }
  /// Loads dv of the parts of K before, where the state role has read the other chunk's panel.
  __device__ void load_earlier(const RingPosition<kStages>& at, TileCoordinate own) const {
    shared.state_made[at.stage].wait(at.parity);
    shared.earlier[at.stage].arrive_and_expect(panel_bytes(64));
    load_panel(params.dv_map, shared.earlier[at.stage], shared.stages[at.stage].other, own);
  }
  /// Loads what all members of an item read; its first one's stage says when.
  __device__ void load_inputs(int stage, const GroupItem& item) const {
    Barrier& full = shared.full[stage];
    const TileCoordinate own{0, item.key_head(params), item.begin(), item.batch};
    TileCoordinate other = own;
    other.time = item.other_begin();
    const CUtensorMap& other_map = item.is_second() ? params.k_map : params.q_map;
    load_tile(other_map, full, shared.other, Config::kKeyDim, other);
    load_tile(params.k_map, full, shared.k, Config::kKeyDim, own);
    load_tile(params.q_map, full, shared.q, Config::kKeyDim, own);
  }

  __device__ void run() const {
    GroupPosition now, ahead;
    if (!now.more(params)) return;
    // why not found for each member: divisions are a fifth of the loop.
    GroupItem item = find_item(params, now.item), next = item;
    const auto advance = [&](GroupPosition& position, GroupItem& at) {
      if (position.advance<Config>(params)) at = find_item(params, position.item);
    };
    // why before the stream is followed: the inputs were there before the previous kernel began.
    load_inputs(0, item);
    follow_stream();
#pragma unroll 1
    for (int stage = 0; stage < kStages && ahead.more(params); ++stage) {
      const TileCoordinate values = values_of(next, ahead.member);
      load(stage, next, ahead.member, values);
      load_values(stage, values);
      advance(ahead, next);
    }
    RingPosition<kStages> at;
    std::uint32_t item_parity = 0;
    while (now.more(params)) {
      const int stage = at.stage;
      const TileCoordinate own = values_of(item, now.member);
      const TileCoordinate values = values_of(next, ahead.member);
      if constexpr (Config::kAdds) load_earlier(at, own);
      shared.made[stage].wait(at.parity);
      store_panel(params.dv_map, shared.stages[stage].v, own);
      const bool more = ahead.more(params);
      if (more) load(stage, next, ahead.member, values);
      wait_stores_read();
      if (more) {
        load_values(stage, values);
        advance(ahead, next);
      }
      at.advance();
      advance(now, item);
      if (now.member == 0) {
        shared.left.wait(item_parity);
        item_parity ^= 1;
        if (now.more(params)) load_inputs(at.stage, item);
      }
    }
  }
};

/// Makes the decay factors of the members that are copied in. One warp.
template <class Config>
struct GroupDecays {
  const GroupBackwardParams& params;
  GroupShared<Config>& shared;

  using Tokens = typename GroupShared<Config>::Tokens;
  static constexpr int kStages = GroupShared<Config>::kStages;

  /// Natural-log decays: this lane's two tokens of a chunk and of the other one of its pair, and of
  /// the token behind the pair. 0 where there is no token, or behind a segment: what enters it has
  /// that decay.
  struct PairDecays {
    float2 own;
    float2 other;
    float behind;
  };

  /// Of a member of the item whose first head's decays begin at `group`.
  __device__ PairDecays load(const float* group, int chunk, int member) const {
    const DecayTensor& decay = params.problem.forward.log_decay;
    if (group == nullptr) return {};
    const float* const head = group + find_member(params, 0, member).head * decay.head_stride;
    const int T = static_cast<int>(params.problem.forward.T);
    const auto of_token = [&](int time) {
      return time < T ? head[time * decay.time_stride] : 0.0f;
    };
    const int token = 2 * (threadIdx.x % 32);
    const int own = 64 * chunk + token, other = 64 * (chunk ^ 1) + token;
    const int chunk_behind = (chunk | 1) + 1;
    const bool ends_segment = chunk_behind % params.segment_chunks == 0;
    return {{of_token(own), of_token(own + 1)},
            {of_token(other), of_token(other + 1)},
            ends_segment ? 0.0f : of_token(64 * chunk_behind)};
  }

  template <bool kStrong>
  __device__ void prepare(Tokens& tokens, const PairDecays& log_decays, bool is_second) const {
    const float scale = params.problem.forward.scale;
    GroupDecay& decay = tokens.decay;
    const auto store = [](float(&to)[64], float x, float y) {
      *reinterpret_cast<float2*>(&to[2 * (threadIdx.x % 32)]) = {x, y};
    };
    const float middle = __shfl_sync(0xFFFFFFFFu, log_decays.other.x, 0);
    const ChunkSums<kStrong> own(log_decays.own), other(log_decays.other);
    using Sum = LogSum<kStrong>;
    const Sum own_end = own.total + Sum::of(is_second ? log_decays.behind : middle);
    const float2 centred = own.centred();
    store(tokens.log_decay, log_decays.own.x, log_decays.own.y);
    store(decay.log2_sum, centred.x, centred.y);
    store(decay.from_state, scale * own.x.factor(), scale * own.y.factor());
    store(decay.from_behind, (own_end - own.x).factor(), (own_end - own.y).factor());
    float2 to_state = {(other.total - other.x).factor(), (other.total - other.y).factor()};
    float state_to_state = other.total.factor();
    if (!is_second) {
      to_state = {scale * (other.x - other.first).factor(),
                  scale * (other.y - other.first).factor()};
      state_to_state = (other.total + Sum::of(log_decays.behind) - other.first).factor();
    }
    store(decay.other_to_state, to_state.x, to_state.y);
    if (threadIdx.x % 32 == 0) {
      decay.other_state_to_state = state_to_state;
      decay.through = own_end.factor();
    }
  }

  __device__ void run() const {
    GroupPosition ahead;
    const float* group = nullptr;  // null behind the last item, and without decays
    int chunk = 0;
    const auto find = [&] {
      const DecayTensor& decay = params.problem.forward.log_decay;
      const GroupItem item = find_item(params, ahead.item);
      chunk = item.chunk;
      group = nullptr;
      if (!ahead.more(params) || decay.data == nullptr) return;
      group = decay.data + item.batch * decay.batch_stride +
              find_member(params, item.group, 0).head * decay.head_stride;
    };
    find();
    PairDecays log_decays = load(group, chunk, 0);
    RingPosition<kStages> at;
    while (ahead.more(params)) {
      const PairDecays now = log_decays;
      const bool is_second = chunk % 2 == 1;
      if (ahead.advance<Config>(params)) find();
      log_decays = load(group, chunk, ahead.member);
      // Returns at once in the first turn.
      shared.sums_read[at.stage].wait(at.parity ^ 1);
      by_strength(any_strong(now.own) || any_strong(now.other),
                  [&]<bool kStrong> { prepare<kStrong>(shared.tokens[at.stage], now, is_second); });
      shared.full[at.stage].arrive();
      at.advance();
    }
  }
};

/// Makes the gradient by the decays, a head's when its last member is there. One warp.
template <class Config>
struct GroupDecayGradients {
  const GroupBackwardParams& params;
  GroupShared<Config>& shared;
  float2 of_head{};   // of this lane's two tokens, over the head's members so far
  float zero = 0.0f;  // NaN behind what is not finite
  // Of the item: where the gradient of this lane's first token by the group's first head belongs,
  // or of a constant decay the chunk's share, null if it is not wanted; and how many tokens there
  // are from it on.
  float* first = nullptr;
  int left = 0;

  using Tokens = typename GroupShared<Config>::Tokens;

  /// Writes a gradient, or adds it to that of the parts of K before.
  __device__ void leave(float& to, float gradient) const {
    to = Config::kAdds ? to + gradient : gradient;
  }

  /// Adds up d_log_decay of a chunk's tokens.
  __device__ void differentiate(int stage) {
    const Tokens& tokens = shared.tokens[stage];
    // why first: an arrival does not wait for loads under way, the sum before it for those of
    // flows.
    const float through = tokens.decay.through;
    const int token = 2 * (threadIdx.x % 32);
    const auto own = [&](const float(&rows)[64]) {
      return *reinterpret_cast<const float2*>(&rows[token]);
    };
    float2 a = own(tokens.query_state);
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) {
      const float2 intra = own(tokens.query_intra[warp]);
      a.x += intra.x;
      a.y += intra.y;
    }
    const float2 b = own(tokens.key_state), c = own(tokens.key_intra);
    const float2 log_decay = own(tokens.log_decay);
    const float flow = sum_warp(tokens.flows[threadIdx.x % 32]) * through;
    shared.sums_read[stage].arrive();
    // In these sums every input of the chunk is.
    zero += 0.0f * (a.x + a.y + (b.x + b.y) + (c.x + c.y));
    const float2 dg =
        decay_gradient_from_flow(flow, {a.x - c.x, a.y - c.y}, b, inclusive_sum(b.x + b.y));
    of_head.x += unless_forgotten(dg.x, log_decay.x);
    of_head.y += unless_forgotten(dg.y, log_decay.y);
  }

  /// Finds where an item's gradients are left.
  __device__ void begin_item(const GroupItem& item) {
    const GlaForwardProblem& problem = params.problem.forward;
    const DecayGradient& to = params.problem.d_log_decay;
    const int head = find_member(params, item.group, 0).head, token = 2 * (threadIdx.x % 32);
    left = static_cast<int>(problem.T) - item.begin() - token;
    if (to.data == nullptr) {
      first = nullptr;
    } else if (to.per_token) {
      first = gradient_at(to, item.batch, item.begin() + token, head);
    } else {
      first = params.decay_sums + (std::int64_t{item.batch} * problem.H + head) * params.chunks +
              item.chunk;
    }
  }

  /// Leaves d_log_decay of a head's tokens, or their sum for a constant decay.
  __device__ void leave_head(int member) {
    const DecayGradient& to = params.problem.d_log_decay;
    const float2 own = {left > 0 ? of_head.x : 0.0f, left > 1 ? of_head.y : 0.0f};
    of_head = {};
    if (first == nullptr) return;
    const int head = find_member(params, 0, member).head;
    if (to.per_token) {
      float* const at = first + head * to.head_stride;
      if (left > 0) leave(*at, own.x);
      if (left > 1) leave(at[to.time_stride], own.y);
    } else {
      const float sum = sum_warp(own.x + own.y);
      if (threadIdx.x % 32 == 0) leave(first[std::int64_t{head} * params.chunks], sum);
    }
  }

  __device__ void run() {
    if constexpr (Config::kAdds) follow_stream();  // the part before left what this one adds to
    RingPosition<GroupShared<Config>::kStages> at;
    for (GroupPosition now; now.more(params); at.advance(), now.advance<Config>(params)) {
      if (now.member == 0) begin_item(find_item(params, now.item));
      shared.made[at.stage].wait(at.parity);
      differentiate(at.stage);
      if (ends_head(params, now.member)) leave_head(now.member);
    }
    if (params.guard.non_finite != nullptr && !(zero == 0.0f)) *params.guard.non_finite = 1;
  }
};

}  // namespace tandem::cuda::gla
