// Split walks: how CTAs of one sequence hand the state on.
//
// Where decays have left nothing of what lies before the segment before its own
// (common/remembered.cuh), a CTA reads the tokens that the state depends on, and needs no other
// CTA. Else it takes what earlier segments do to the state. Each CTA whose segment is remembered as
// a whole therefore reads its k and v first, last chunk to first, and publishes a factor and a
// state, as gla_state_kernel; one that knows the state before it from tokens folds these in. Then
// it takes what earlier segments published, the last of them first, with R the factor of those
// already taken:
//   S = S + R published_r;   R = R factor_r,  r = ..., 1, 0, while R is not 0
// and R times the initial state.
// why in this order: earlier segments are longer and publish later.
// Two segments of a dense batch need not wait: the second CTA reads the first one's k and v for its
// state in any case, and the first segment is as much longer.
// why no deadlock: a CTA waits only for CTAs of smaller index, which the device starts no later
// than it, and which publish without waiting for anyone.
#pragma once

#include <cuda/atomic>

#include "cuda/gla/common/span.cuh"
#include "cuda/gla/walk/shared.cuh"

namespace tandem::cuda::gla {

/// St of one warpgroup: 64 columns of V by tiles of at most 128 columns of K, fp32.
template <class Config>
struct StateRegisters {
  static constexpr int kTiles = Config::kKeyDim / Config::kKeyTile;
  static constexpr int kSteps = Config::kKeyTile / 16;
  float tile[kTiles][Config::kKeyTile / 2];

  __device__ void scale(float factor) {
#pragma unroll
    for (auto& values : tile) {
#pragma unroll
      for (float& value : values) value *= factor;
    }
  }
  __device__ void fence() {
#pragma unroll
    for (auto& values : tile) fence_registers(values);
  }
  /// Loads the item's initial state.
  __device__ void begin(const WalkParams& params, const Item& item, int warpgroup) {
#pragma unroll
    for (int index = 0; index < kTiles; ++index) {
#pragma unroll
      for (float& value : tile[index]) value = 0.0f;
      if (item.initial_state == nullptr) continue;
      load_state(tile[index], item.initial_state + state_offset(params, item, warpgroup),
                 tile_at(params, item, warpgroup, index));
    }
  }
  /// Adds the item's initial state times a factor.
  __device__ void add_initial(const WalkParams& params, const Item& item, int warpgroup,
                              float factor) {
    if (item.initial_state == nullptr) return;
    const float* from = item.initial_state + state_offset(params, item, warpgroup);
    asm volatile("" : "+l"(from));  // why: prepared before the sums, it would be spilled
#pragma unroll
    for (int index = 0; index < kTiles; ++index) {
      tile_at(params, item, warpgroup, index)
          .template for_each<Config::kKeyTile / 2>(
              [&](int i, int offset) { tile[index][i] += factor * from[offset]; });
    }
  }
  /// Stores the item's final state, where it is wanted.
  __device__ void end(const WalkParams& params, const Item& item, int warpgroup) const {
    if (item.final_state == nullptr || !item.has_head<Config>(warpgroup)) return;
#pragma unroll
    for (int index = 0; index < kTiles; ++index) {
      store_state(tile[index], item.final_state + state_offset(params, item, warpgroup),
                  tile_at(params, item, warpgroup, index));
    }
  }
  /// Elements from the state of the item's first head to the warpgroup's.
  __device__ static std::int64_t state_offset(const WalkParams& params, const Item& item,
                                              int warpgroup) {
    if constexpr (Config::kHeads == 1) return 0;
    return (item.head_of<Config>(warpgroup) - item.head) * params.state_strides.head;
  }
  __device__ static StateTile tile_at(const WalkParams& params, const Item& item, int warpgroup,
                                      int index) {
    return {params.problem.K, params.problem.V, params.state_strides, index * Config::kKeyTile,
            item.column_of<Config>(warpgroup)};
  }
};

/// Address of this thread's first 16 bytes in a published state: threads of the warpgroup take 16
/// bytes in turn.
template <class Config>
__device__ float4* exchange_slot(const WalkParams& params, int index, int warpgroup) {
  constexpr int kFloats = Config::kKeyDim * Config::kValueDim;
  return reinterpret_cast<float4*>(params.schedule.exchange.states + std::int64_t{index} * kFloats +
                                   warpgroup * (kFloats / Config::kStateWarpgroups)) +
         threadIdx.x % 128;
}

/// Index of this warp in a segment's factors and flags. why per warp: each thread takes what the
/// same thread of other CTAs published, so no barrier is needed.
template <class Config>
__device__ int exchange_word(int index) {
  constexpr int kFirstWarp = 8;  // of the state role
  return index * (4 * Config::kStateWarpgroups) + threadIdx.x / 32 - kFirstWarp;
}

using ReadyFlag = ::cuda::atomic_ref<std::uint32_t, ::cuda::thread_scope_device>;

/// Sets the flag of what this warp has stored.
__device__ inline void set_ready(std::uint32_t& flag) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ReadyFlag(flag).store(1, ::cuda::memory_order_release);
}

/// Waits for the flag of what the same warp of another CTA stores.
__device__ inline void wait_ready(std::uint32_t& flag) {
  const ReadyFlag ready(flag);
  while (ready.load(::cuda::memory_order_acquire) == 0) {
  }
}

/// Publishes what the segment does to the state before it: its factor, and what it adds.
template <class Config>
__device__ void publish_segment(const WalkParams& params, const StateRegisters<Config>& added,
                                float factor, int warpgroup) {
  const SegmentExchange& exchange = params.schedule.exchange;
  const int word = exchange_word<Config>(blockIdx.x);
  if (threadIdx.x % 32 == 0) exchange.factors[word] = factor;
  float4* slot = exchange_slot<Config>(params, blockIdx.x, warpgroup);
#pragma unroll
  for (const auto& values : added.tile) {
#pragma unroll
    for (int i = 0; i < Config::kKeyTile / 2; i += 4, slot += 128) {
      *slot = {values[i], values[i + 1], values[i + 2], values[i + 3]};
    }
  }
  set_ready(exchange.ready[word]);
}

/// Adds what all earlier segments published to the state, and returns their factor.
template <class Config>
__device__ float receive_state(const WalkParams& params, const Item& item,
                               StateRegisters<Config>& state, int warpgroup) {
  const SegmentExchange& exchange = params.schedule.exchange;
  // The segments of a sequence follow each other.
  const int stride = params.schedule.walks * params.schedule.value_tiles;
  float later = 1.0f;  // factor of the segments taken so far, on the next one
  for (int segment = item.segment - 1; segment >= 0 && later != 0.0f; --segment) {
    const int index = blockIdx.x - (item.segment - segment) * stride;
    const int word = exchange_word<Config>(index);
    wait_ready(exchange.ready[word]);
    const float4* slot = exchange_slot<Config>(params, index, warpgroup);
#pragma unroll
    for (auto& tile : state.tile) {
#pragma unroll
      for (int i = 0; i < Config::kKeyTile / 2; i += 4, slot += 128) {
        const float4 published = *slot;
        tile[i] += later * published.x;
        tile[i + 1] += later * published.y;
        tile[i + 2] += later * published.z;
        tile[i + 3] += later * published.w;
      }
    }
    later *= exchange.factors[word];
  }
  return later;
}

/// Leaves the state before the segment in `state`, after telling later segments what this one does.
template <class Config>
__device__ void enter_segment(const WalkParams& params, WalkShared<Config>& shared,
                              const Item& item, StateRegisters<Config>& state, int warpgroup,
                              typename WalkShared<Config>::InputRing::Position& in) {
  const SegmentEntry& entry = shared.segment.entry;
  float later = 1.0f;  // factor on the initial state
  for (int done = 0; done < entry.chunks();) {
    const bool tells = done == 0 && entry.told > 0;
    const int count = tells ? entry.told : entry.before;
    done += count;
    state = {};
    constexpr bool kTightest = Config::kKeyDim > 128 || Config::kHeads > 1;
    constexpr int kColumns = kTightest ? 64 : Config::kKeyDim;  // what registers allow
    const float factor = sum_span<Config, kColumns>(
        state.tile, shared, tells ? item.chunks<Config>() - 1 : -1, count, warpgroup, in,
        [&](auto& stage, int chunk) {
          const int valid = item.valid_tokens<Config>(chunk);
          if (params.problem.cu_seqlens != nullptr && valid < Config::kChunk) {
            clear_partial_chunk<Config>(stage, valid, warpgroup);
          }
        });
    if (tells) {
      publish_segment(params, state, entry.told_whole ? factor : 0.0f, warpgroup);
    } else {
      later = entry.before_whole ? factor : 0.0f;
    }
  }
  if (entry.chunks() > 0) shared.segment.read.arrive();
  if (entry.before == 0) {
    state = {};
    later = receive_state(params, item, state, warpgroup);
  }
  if (later != 0.0f) state.add_initial(params, item, warpgroup, later);
}

}  // namespace tandem::cuda::gla
