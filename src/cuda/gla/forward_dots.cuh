// The state role's part in the gradient by the decays: row sums of x (.) o, where o is dq or dk and
// x is q or k, and the flow <S, dS> behind the first chunk of each group (decay_dots.h).
//
// Both come from fp32 registers, before o is rounded. The flow is the sum of what passes the chunk,
// e^{G_C} <S before, dS after>, and of what enters in it, sum_j k_j . (dS after v_j) e^{G_C - G_j}:
// the second part from the same numbers as the row sums, so that it cancels against them where
// decays leave nothing of it. S before the chunk was kept by the walk for dq, rounded.
// x lies in the panel that o of the chunk will leave through: each warp reads the 16 columns that
// it writes later.
#pragma once

#include "cuda/gla/forward_segments.cuh"
#include "cuda/parts/fragment.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda {

/// What one state warpgroup keeps for it during an item; nothing where Config::kDots is false.
template <class Config>
class DotsRole {
  using Element = typename Config::Element;
  using Position = typename ForwardShared<Config>::IntraRing::Position;
  static constexpr bool kFlow = Config::kReverse;

 public:
  __device__ DotsRole(const GlaForwardParams& params, ForwardShared<Config>& shared, int group)
      : params_(params), shared_(shared), group_(group) {}

  /// Before an item's first chunk, which will be at `at`.
  __device__ void begin(const Item& item, Position at) {
    if constexpr (Config::kDots) {
      if (threadIdx.x % 128 == 0) wait_stores_read();
      request(item, 0, at);
    }
  }

  /// The rounded state before a chunk: tile `index` of it.
  template <int kSteps>
  __device__ void keep(const Item& item, int chunk, int index,
                       const std::uint32_t (&state)[kSteps][4]) const {
    if constexpr (Config::kDots && !kFlow) {
      if (!begins_group(item, chunk)) return;
      uint4* to = kept(item, chunk) + index * kSteps * 128;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        to[step * 128] = {state[step][0], state[step][1], state[step][2], state[step][3]};
      }
    }
  }

  /// dS behind a chunk, already times the chunk's factor.
  __device__ void meet(const Item& item, int chunk, const StateRegisters<Config>& state) {
    if constexpr (kFlow) {
      flow_ = 0.0f;
      if (!begins_group(item, chunk)) return;
      const uint4* from = kept(item, chunk);
#pragma unroll
      for (int index = 0; index < StateRegisters<Config>::kTiles; ++index) {
#pragma unroll
        for (int step = 0; step < StateRegisters<Config>::kSteps; ++step, from += 128) {
          const uint4 packed = *from;
          const std::uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack_pair<Element>(pairs[i]);
            flow_ += pair.x * state.tile[index][8 * step + 2 * i];
            flow_ += pair.y * state.tile[index][8 * step + 2 * i + 1];
          }
        }
      }
    }
  }

  /// The part of o that comes from the state.
  __device__ void add_inter(const Item& item, int chunk, const float (&o)[32], Position at) {
    if constexpr (Config::kDots) {
      if (params_.dots.rows == nullptr) return;
      await_x(item, chunk, at);
      if constexpr (kFlow) {
        if (!begins_group(item, chunk)) return;
        const int valid = item.template valid_tokens<Config>(chunk);
        multiply_x(o, at, [&](int block, int parity, float product) {
          if (fragment_column(block) + parity < valid) flow_ += product;
        });
      }
    }
  }

  /// All of o: sums of this warp's columns.
  __device__ void add(const float (&o)[32], Position at) {
    if constexpr (Config::kDots) {
      if (params_.dots.rows == nullptr) return;
      float sums[16] = {};
      multiply_x(o, at, [&](int block, int parity, float product) {
        sums[2 * block + parity] += product;
      });
      // Over the 8 lanes that hold the same tokens; lane l ends with those of tokens 2l and 2l+1.
      halve<8>(sums);
      halve<4>(sums);
      halve<2>(sums);
      const int lane = threadIdx.x % 32;
      auto& own = shared_.dots.rows[group_][at.stage][threadIdx.x % 128 / 32];
      *reinterpret_cast<float2*>(&own[2 * lane]) = {sums[0], sums[1]};
      if constexpr (kFlow) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
          flow_ += __shfl_xor_sync(0xFFFFFFFFu, flow_, distance);
        }
        if (lane == 0) shared_.dots.anchor[group_][at.stage][threadIdx.x % 128 / 32] = flow_;
      }
    }
  }

  /// Behind the warpgroup's barrier that follows add(): writes the sums, and asks for the next x.
  __device__ void finish(const Item& item, int chunk, Position at) {
    if constexpr (Config::kDots) {
      const DecayDots& dots = params_.dots;
      if (dots.rows == nullptr) return;
      const int thread = threadIdx.x % 128;
      const GlaForwardProblem& problem = params_.problem;
      const auto sum_warps = [](auto&& of_warp) {
        return of_warp(0) + of_warp(1) + (of_warp(2) + of_warp(3));
      };
      if (thread < item.template valid_tokens<Config>(chunk)) {
        const auto& rows = shared_.dots.rows[group_][at.stage];
        const std::int64_t row = (part(item) * problem.B + item.batch) * problem.H + item.head;
        dots.rows[row * problem.T + item.template chunk_begin<Config>(chunk) + thread] =
            sum_warps([&](int warp) { return rows[warp][thread]; });
      }
      if constexpr (kFlow) {
        if (thread == 0 && begins_group(item, chunk)) {
          const auto& anchor = shared_.dots.anchor[group_][at.stage];
          dots.anchors[slot(item, chunk)] = sum_warps([&](int warp) { return anchor[warp]; });
        }
      }
      at.advance();
      request(item, chunk + 1, at);
    }
  }

 private:
  /// Adds the sums of two lanes: each of them keeps `kCount`, the lower lane the first ones.
  template <int kCount>
  static __device__ void halve(float (&sums)[16]) {
    constexpr int kDistance = 2 * kCount;
    const bool upper = threadIdx.x % 32 & kDistance;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float given = upper ? sums[i] : sums[kCount + i];
      const float kept = upper ? sums[kCount + i] : sums[i];
      sums[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, kDistance);
    }
  }
  /// Which 64 columns of the whole output.
  __device__ std::int64_t part(const Item& item) const { return item.first_column / 64 + group_; }
  static __device__ int sequence_chunk(const Item& item, int chunk) {
    return (item.begin - item.sequence_begin + item.template chunk_offset<Config>(chunk)) /
           Config::kChunk;
  }
  __device__ bool begins_group(const Item& item, int chunk) const {
    return params_.dots.rows != nullptr &&
           sequence_chunk(item, chunk) % params_.dots.groups.chunks == 0;
  }
  __device__ std::int64_t slot(const Item& item, int chunk) const {
    const DecayGroups& groups = params_.dots.groups;
    const int first = groups.first_slot(params_.problem.cu_seqlens != nullptr, item.sequence,
                                        item.sequence_begin, static_cast<int>(params_.problem.T));
    return (part(item) * params_.problem.H + item.head) * groups.count + first +
           sequence_chunk(item, chunk) / groups.chunks;
  }
  __device__ uint4* kept(const Item& item, int chunk) const {
    return params_.dots.states + slot(item, chunk) * (Config::kKeyDim / 16 * 128) +
           threadIdx.x % 128;
  }
  __device__ char* panel(Position at) const { return shared_.o[group_][at.stage]; }

  /// Visits (block of 8 tokens, parity, product) of each of this thread's elements of o.
  template <class Visit>
  __device__ void multiply_x(const float (&o)[32], Position at, Visit visit) const {
#pragma unroll
    for (int step = 0; step < Config::kChunk / 16; ++step) {
      std::uint32_t x[4];
      load_columns(panel(at), step, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_pair<Element>(x[i]);
        visit(2 * step + i / 2, 0, pair.x * o[8 * step + 2 * i]);
        visit(2 * step + i / 2, 1, pair.y * o[8 * step + 2 * i + 1]);
      }
    }
  }

  /// Has TMA bring x of a chunk into the panel, which nobody uses any more.
  __device__ void request(const Item& item, int chunk, Position at) const {
    if (params_.dots.rows == nullptr || !params_.tma || threadIdx.x % 128 != 0) return;
    if (chunk >= item.template chunks<Config>()) return;
    Barrier& loaded = shared_.dots.x_loaded[group_][at.stage];
    loaded.arrive_and_expect(panel_bytes(Config::kChunk));
    load_panel(params_.x_map, loaded, panel(at),
               {item.first_column + 64 * group_, item.head / params_.heads_per_value,
                item.template chunk_begin<Config>(chunk), item.batch});
  }

  __device__ void await_x(const Item& item, int chunk, Position at) const {
    if (params_.tma) {
      shared_.dots.x_loaded[group_][at.stage].wait(at.parity);
      return;
    }
    // This warp's 16 columns: two pieces of 64 rows.
    const StridedTensor& x = params_.dots.x;
    const int valid = item.template valid_tokens<Config>(chunk);
    const int first_piece = threadIdx.x % 128 / 32 * 2;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < 2 * Config::kChunk; i += 32) {
      const int row = i / 2, piece = first_piece + i % 2;
      const int column = item.first_column + 64 * group_ + 8 * piece;
      const Element* from =
          token_row<Element>(x, item.batch, item.template chunk_begin<Config>(chunk) + row,
                             item.head / params_.heads_per_value) +
          column;
      alignas(16) Element values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const bool inside = row < valid && column + j < params_.problem.V;
        values[j] = inside ? from[j] : Element(0.0f);
      }
      *reinterpret_cast<uint4*>(panel(at) + panel_offset(row, piece)) =
          *reinterpret_cast<const uint4*>(values);
    }
    __syncwarp();
  }

  const GlaForwardParams& params_;
  ForwardShared<Config>& shared_;
  const int group_;
  float flow_ = 0.0f;
};

}  // namespace tandem::cuda
