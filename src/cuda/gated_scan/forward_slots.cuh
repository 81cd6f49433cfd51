// Where the tokens of a forward's tiles lie in shared memory on their way to registers, and when
// the next ones are asked for. As each thread's own pieces (cp.async), for which it waits alone:
// decays and gates have room for one tile, since they are in registers when the next ones come. Or
// as whole rows (TMA), without an address computed or a piece copied by a thread.
#pragma once

#include <type_traits>

#include "cuda/gated_scan/params.h"
#include "cuda/gated_scan/place.cuh"
#include "cuda/gated_scan/row_maps.h"
#include "cuda/parts/barrier.cuh"
#include "cuda/parts/tma.cuh"
#include "cuda/scan/channels.cuh"

namespace tandem::cuda::gated_scan {

/// The tiles of a CTA.
struct Walk {
  int first, tile_step, steps;

  __device__ int begin_of(int step) const { return first + step * tile_step; }
};

/// Each thread's own pieces, in copies that it alone waits for.
template <class Config>
class ForwardPieces {
  using Piece = typename Config::Piece;
  // Pieces of a token, in this order: decay, gate. Of x: its parts.
  static constexpr int kGate = Config::kDecayPieces;
  static constexpr int kOfToken = kGate + (Config::kOutputs ? Config::kElementPieces : 0);
  static constexpr int kXStages = 2;
  static constexpr int kXOfToken = Config::kXParts * Config::kElementPieces;

 public:
  static constexpr int kStride = Config::kThreads;  // from piece to piece of a token's channels

  __device__ const Piece* x(const Place<Config>&, int step, int token, int part) const {
    return &x_[step % kXStages][token * kXOfToken + part * Config::kElementPieces][threadIdx.x];
  }
  __device__ const Piece* decay(const Place<Config>&, int token) const {
    return &rest_[token * kOfToken][threadIdx.x];
  }
  __device__ const Piece* gate(const Place<Config>&, int token) const {
    return &rest_[token * kOfToken + kGate][threadIdx.x];
  }

  __device__ void init() {}
  /// Starts loading the first tiles.
  __device__ void begin(const ForwardParams& params, const Place<Config>& place, Walk walk) {
    load_x(params, place, walk, 0);
    load_decay(params, place, walk, 0);
    load_gate(params, place, walk, 0);
    load_x(params, place, walk, 1);
  }
  __device__ void wait_x_and_decay(int) const {
    cutlass::arch::cp_async_wait<2>();  // all but the gates and the next x
  }
  __device__ void wait_gate() const {
    cutlass::arch::cp_async_wait<2>();  // all but the next x and decays
  }
  __device__ void decay_is_read(const ForwardParams& params, const Place<Config>& place, Walk walk,
                                int step) {
    load_decay(params, place, walk, step + 1);
  }
  __device__ void all_decays_are_read(const ForwardParams&, const Place<Config>&, Walk, int) {}
  __device__ void rest_is_read(const ForwardParams& params, const Place<Config>& place, Walk walk,
                               int step) {
    load_gate(params, place, walk, step + 1);
    load_x(params, place, walk, step + kXStages);
  }

 private:
  // Each of these starts a group of copies, an empty one if there is nothing to copy.
  __device__ void load_x(const ForwardParams& params, const Place<Config>& place, Walk walk,
                         int step) {
    Piece(&slot)[Config::kTokens * kXOfToken][Config::kThreads] = x_[step % kXStages];
    const int begin = walk.begin_of(step);
    load_tokens<Config, typename Config::Element, kXOfToken>(params, place, params.x,
                                                             &slot[0][threadIdx.x], begin);
    if constexpr (Config::kOfProduct) {
      load_tokens<Config, typename Config::Element, kXOfToken>(
          params, place, params.x_rest, &slot[Config::kElementPieces][threadIdx.x], begin);
    }
    cutlass::arch::cp_async_fence();
  }
  __device__ void load_decay(const ForwardParams& params, const Place<Config>& place, Walk walk,
                             int step) {
    load_tokens<Config, typename Config::Decay, kOfToken>(
        params, place, params.decay, &rest_[0][threadIdx.x], walk.begin_of(step));
    cutlass::arch::cp_async_fence();
  }
  __device__ void load_gate(const ForwardParams& params, const Place<Config>& place, Walk walk,
                            int step) {
    if (Config::kOutputs && params.gate.data != nullptr) {
      load_tokens<Config, typename Config::Element, kOfToken>(
          params, place, params.gate, &rest_[kGate][threadIdx.x], walk.begin_of(step));
    }
    cutlass::arch::cp_async_fence();
  }

  Piece x_[kXStages][Config::kTokens * kXOfToken][Config::kThreads];
  Piece rest_[Config::kTokens * kOfToken][Config::kThreads];
};

/// Tiles of rows, one barrier for each. The next one is asked for behind a barrier of the CTA, when
/// decays are read and gates in registers; x has room for two, since the step reads it twice.
template <class Config>
class ForwardRows {
  static_assert(Config::kWidth == kRowChannels && Config::kOutputs);
  using Element = typename Config::Element;
  using Piece = typename Config::Piece;
  template <class Stored>
  using Rows = Stored[Config::kTileTokens][Config::kWidth];

 public:
  static constexpr int kStride = 1;

  __device__ const Piece* x(const Place<Config>& place, int step, int token, int part) const {
    return piece(x_[step % 2][part], place, token);
  }
  __device__ const Piece* decay(const Place<Config>& place, int token) const {
    return piece(decay_, place, token);
  }
  __device__ const Piece* gate(const Place<Config>& place, int token) const {
    return piece(gate_, place, token);
  }

  /// Initialises the barrier. All threads; others may wait on it after a barrier of the CTA.
  __device__ void init() {
    if (threadIdx.x != Config::kLoader) return;
    full_.init(1);
    fence_barriers_initialised();
  }
  __device__ void begin(const ForwardRowParams& params, const Place<Config>& place, Walk walk) {
    load(params, place, walk, 0);
  }
  __device__ void wait_x_and_decay(int step) const { full_.wait(step % 2); }
  __device__ void wait_gate() const {}
  __device__ void decay_is_read(const ForwardRowParams&, const Place<Config>&, Walk, int) {}
  __device__ void all_decays_are_read(const ForwardRowParams& params, const Place<Config>& place,
                                      Walk walk, int step) {
    load(params, place, walk, step + 1);
  }
  __device__ void rest_is_read(const ForwardRowParams&, const Place<Config>&, Walk, int) {}

 private:
  template <class Stored>
  __device__ const Piece* piece(const Rows<Stored>& rows, const Place<Config>& place,
                                int token) const {
    return reinterpret_cast<const Piece*>(&rows[place.row + token][place.column]);
  }
  // Not what no step walks: it would be on its way at the end.
  __device__ void load(const ForwardRowParams& params, const Place<Config>& place, Walk walk,
                       int step) {
    if (threadIdx.x != Config::kLoader || step >= walk.steps) return;
    const bool has_gate = params.gate.data != nullptr;
    full_.arrive_and_expect(sizeof(x_[0]) + sizeof(decay_) + (has_gate ? sizeof(gate_) : 0));
    const TileCoordinate at{place.block_channel, 0, walk.begin_of(step), place.b};
    load_panel(params.maps.x, full_, x_[step % 2][0], at);
    if constexpr (Config::kOfProduct) load_panel(params.maps.x_rest, full_, x_[step % 2][1], at);
    load_panel(params.maps.decay, full_, decay_, at);
    if (has_gate) load_panel(params.maps.gate, full_, gate_, at);
  }

  alignas(128) Rows<Element> x_[2][Config::kXParts];
  alignas(128) Rows<typename Config::Decay> decay_;
  alignas(128) Rows<Element> gate_;
  Barrier full_;
};

template <class Config>
using ForwardSlots = std::conditional_t<Config::kRows, ForwardRows<Config>, ForwardPieces<Config>>;

}  // namespace tandem::cuda::gated_scan
