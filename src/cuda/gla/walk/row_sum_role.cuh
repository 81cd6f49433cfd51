// The state role's share of the gradient by the decays: row sums of x (.) o, where o is dq or dk
// and x is q or k, and what flows through the first chunk of each flow span (decay/row_sums.h).
//
// All sums are of fp32 registers, before o is rounded. For dk, what comes from the state and what
// comes from inside the chunk are summed apart: where decays leave nothing of the gradient, the
// second cancels against q . dq to the last bit, which sums with the first would not. The flow is
// e^{G_C} <S before the chunk, dS behind it>, S being what the walk for dq kept, rounded.
#pragma once

#include "cuda/gla/walk/row_sums.cuh"
#include "cuda/gla/walk/segments.cuh"
#include "cuda/parts/fragment.cuh"

namespace tandem::cuda::gla {

/// What one state warpgroup does for the gradient by the decays; nothing where Config::kRowSums is
/// false.
template <class Config>
class RowSumRole {
  using Element = typename Config::Element;
  using Position = typename WalkShared<Config>::IntraRing::Position;
  using State = StateRegisters<Config>;
  static constexpr bool kFlow = Config::kRowSums && Config::kReverse;
  static constexpr int kStateSteps = State::kTiles * State::kSteps;
  // Whether what the walk for dq kept is loaded a chunk early: where there are registers for it.
  // Else it is fetched into the L2.
  static constexpr bool kHeld = kFlow && Config::kKeyDim == 64;

 public:
  __device__ RowSumRole(const WalkParams& params, WalkShared<Config>& shared, int warpgroup)
      : params_(params), shared_(shared), warpgroup_(warpgroup) {}

  /// Awaits a chunk's inputs and what the walk for dq kept of it, and forms the flow. `state` is dS
  /// behind the chunk, without the decay of the token there.
  __device__ void meet(const Item& item, int chunk, const State& state,
                       typename WalkShared<Config>::InputRing::Position in) {
    if constexpr (kFlow) {
      if (begins_span(item, chunk)) {
        float flow = 0.0f;
        if constexpr (Config::kCrowded) {
          shared_.input.wait_full(in);
          constexpr int kPiece = 4;
          const uint4* from = kept(item, chunk);
#pragma unroll
          for (int first = 0; first < kStateSteps; first += kPiece) {
            uint4 piece[kPiece];
#pragma unroll
            for (int i = 0; i < kPiece; ++i) piece[i] = from[128 * (first + i)];
#pragma unroll
            for (int i = 0; i < kPiece; ++i) flow += multiply(piece[i], state, first + i);
            asm volatile("" : "+f"(flow));  // why: all at once would be 64 registers
          }
        } else {
          uint4 kept_state[kStateSteps];
          if constexpr (kHeld) {
#pragma unroll
            for (int i = 0; i < kStateSteps; ++i) kept_state[i] = held_[i];
          } else {
            load_kept(item, chunk, kept_state);
          }
          shared_.input.wait_full(in);
#pragma unroll
          for (int i = 0; i < kStateSteps; ++i) flow += multiply(kept_state[i], state, i);
        }
        flow *= shared_.decay_of(in.stage, warpgroup_).through;
        params_.row_sums.flows[slot(item, chunk) * 128 + thread()] = flow;
        return;
      }
    }
    shared_.input.wait_full(in);
  }

  /// Whether the rounded state before a chunk is to be kept: where a flow span begins.
  __device__ bool keeps(const Item& item, int chunk) const {
    return Config::kRowSums && !kFlow && begins_span(item, chunk);
  }
  /// Keeps it from step `first` on. why where is found again at each step: a pointer is two
  /// registers that the products lack.
  template <int kSteps>
  __device__ void keep(const Item& item, int chunk, int first,
                       const std::uint32_t (&state)[kSteps][4]) const {
    if constexpr (Config::kRowSums && !kFlow) {
      uint4* to = kept(item, chunk) + first * 128;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        to[step * 128] = {state[step][0], state[step][1], state[step][2], state[step][3]};
      }
    }
  }

  /// Asks for S of a chunk to come, while products run or before the first chunk.
  __device__ void prefetch(const Item& item, int chunk) {
    if constexpr (kFlow) {
      if (chunk >= item.template chunks<Config>() || !begins_span(item, chunk)) return;
      if constexpr (kHeld) {
        load_kept(item, chunk, held_);
      } else {
        const int line = thread();
        const uint4* from = kept(item, chunk) - line + 8 * line;
#pragma unroll
        for (int i = 0; i < kStateSteps; i += 8) {
          if (line < 16 * (kStateSteps - i)) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from + 128 * i));
          }
        }
      }
    }
  }

  /// Sums o from the state and o from inside the chunk apart. `x` is the chunk's.
  __device__ void add_terms(const float (&inter)[32], const float (&intra)[32], const char* x,
                            Position at) const {
    if constexpr (kFlow) {
      if (wants_row_sums<Config>(params_)) sum_rows<2>({&inter, &intra}, {1, 0}, x, at);
    }
  }
  /// Sums o from the state, where o from inside the chunk is never alone.
  __device__ void add_inter(const float (&inter)[32], const char* x, Position at) const {
    if constexpr (kFlow) {
      if (wants_row_sums<Config>(params_)) sum_rows<1>({&inter}, {1}, x, at);
    }
  }
  /// Sums all of o, where nobody wants its two terms apart or one accumulator holds both.
  __device__ void add(const float (&o)[32], const char* x, Position at) const {
    if constexpr (Config::kRowSums && (!kFlow || Config::kOneOutputAccumulator)) {
      if (wants_row_sums<Config>(params_)) sum_rows<1>({&o}, {0}, x, at);
    }
  }

 private:
  static __device__ int thread() { return threadIdx.x % 128; }
  /// This thread's share of <S, dS> from one step of S.
  static __device__ float multiply(const uint4& kept, const State& state, int step) {
    const float(&tile)[Config::kKeyTile / 2] = state.tile[step / State::kSteps];
    const int first = 8 * (step % State::kSteps);
    const std::uint32_t pairs[4] = {kept.x, kept.y, kept.z, kept.w};
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = unpack_pair<Element>(pairs[j]);
      sum += pair.x * tile[first + 2 * j];
      sum += pair.y * tile[first + 2 * j + 1];
    }
    return sum;
  }
  /// Index of this warpgroup's 64 columns in the whole output.
  __device__ std::int64_t panel(const Item& item) const {
    return item.first_column / 64 + warpgroup_;
  }
  __device__ int sequence_chunk(const Item& item, int chunk) const {
    const int tokens = item.template chunk_offset<Config>(chunk) + item.before;
    return static_cast<unsigned>(tokens) / Config::kChunk;
  }
  /// Whether a span that has a slot begins with the chunk.
  __device__ bool begins_span(const Item& item, int chunk) const {
    const FlowSpans& spans = params_.row_sums.spans;
    const int index = sequence_chunk(item, chunk);
    return wants_row_sums<Config>(params_) && index % (1u << spans.shift) == 0 &&
           spans.has_slot(index >> spans.shift);
  }
  __device__ std::int64_t slot(const Item& item, int chunk) const {
    const FlowSpans& spans = params_.row_sums.spans;
    const int own =
        spans.slot(params_.problem.cu_seqlens != nullptr, item.sequence, item.begin - item.before,
                   sequence_chunk(item, chunk) >> spans.shift);
    return (panel(item) * params_.problem.H + item.head) * spans.count + own;
  }
  __device__ uint4* kept(const Item& item, int chunk) const {
    return params_.row_sums.states + slot(item, chunk) * (kStateSteps * 128) + thread();
  }

  __device__ void load_kept(const Item& item, int chunk, uint4 (&to)[kStateSteps]) const {
    const uint4* from = kept(item, chunk);
#pragma unroll
    for (int i = 0; i < kStateSteps; ++i) to[i] = from[128 * i];
  }

  template <int kCount>
  __device__ void sum_rows(const float (*const (&o)[kCount])[32], const int (&kinds)[kCount],
                           const char* x, Position at) const {
    put_row_sums<Config>(shared_.row_sums.rows[warpgroup_][at.stage], o, kinds,
                         x + warpgroup_ * panel_bytes(Config::kChunk));
  }

  const WalkParams& params_;
  WalkShared<Config>& shared_;
  const int warpgroup_;
  uint4 held_[kHeld ? kStateSteps : 1];
};

}  // namespace tandem::cuda::gla
