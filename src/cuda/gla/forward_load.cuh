// The load role of gla_forward_kernel: q, k and v of later chunks into the ring, by TMA or by
// threads, and each chunk's decay factors.
#pragma once

#include "cuda/gla/forward_shared.cuh"
#include "cuda/parts/tma.cuh"

namespace tandem::cuda {

template <class Config>
__device__ void load_with_tma(const GlaForwardParams& params, ForwardShared<Config>& shared,
                              const Span& span) {
  const int query_head = span.head / (params.problem.H / params.problem.HQ);
  typename ForwardShared<Config>::InputRing::Position at;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, at.advance()) {
    const int time = static_cast<int>(span.begin) + chunk * Config::kChunk;
    auto& stage = shared.stages[at.stage];
    Barrier& full = shared.input.full[at.stage];
    shared.input.wait_empty(at);
    full.arrive_and_expect(Config::kStageBytes);
    for (int column = 0; column < Config::kKeyDim; column += kPanelColumns) {
      const TileCoordinate from{column, query_head, time, span.batch};
      load_panel(params.q_map, full, stage.q + column * Config::kChunk * 2, from);
      load_panel(params.k_map, full, stage.k + column * Config::kChunk * 2, from);
    }
    for (int column = 0; column < Config::kValueDim; column += kPanelColumns) {
      load_panel(params.v_map, full, stage.v + column * Config::kChunk * 2,
                 {column, span.head, time, span.batch});
    }
  }
}

/// Threads of the load warpgroup that copy when TMA cannot: all but the decay warp.
constexpr int kGatherThreads = 96;

/// Copies up to 64 rows of `dim` elements into panels of `width` columns, zeros elsewhere.
template <class Element>
__device__ void gather_tile(char* tile, int width, const Element* first_row,
                            std::int64_t row_stride, int rows, int dim, int thread) {
  const int pieces_per_row = width / 8;
  for (int piece = thread; piece < 64 * pieces_per_row; piece += kGatherThreads) {
    const int row = piece / pieces_per_row;
    const int column = piece % pieces_per_row * 8;
    alignas(16) Element values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool inside = row < rows && column + i < dim;
      values[i] = inside ? first_row[row * row_stride + column + i] : Element(0.0f);
    }
    char* panel = tile + column / kPanelColumns * panel_bytes(64);
    *reinterpret_cast<uint4*>(panel + panel_offset(row, column % kPanelColumns / 8)) =
        *reinterpret_cast<const uint4*>(values);
  }
}

template <class Config>
__device__ void load_with_threads(const GlaForwardParams& params, ForwardShared<Config>& shared,
                                  const Span& span, int thread) {
  using Element = typename Config::Element;
  const GlaForwardProblem& problem = params.problem;
  const int query_head = span.head / (problem.H / problem.HQ);
  typename ForwardShared<Config>::InputRing::Position at;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, at.advance()) {
    const std::int64_t time = span.begin + std::int64_t{chunk} * Config::kChunk;
    const int rows = span.valid_tokens(chunk, Config::kChunk);
    auto& stage = shared.stages[at.stage];
    shared.input.wait_empty(at);
    gather_tile(stage.q, Config::kKeyDim,
                token_row<Element>(problem.q, span.batch, time, query_head), problem.q.time_stride,
                rows, problem.K, thread);
    gather_tile(stage.k, Config::kKeyDim,
                token_row<Element>(problem.k, span.batch, time, query_head), problem.k.time_stride,
                rows, problem.K, thread);
    gather_tile(stage.v, Config::kValueDim,
                token_row<Element>(problem.v, span.batch, time, span.head), problem.v.time_stride,
                rows, problem.V, thread);
    fence_shared_for_async_proxy();
    shared.input.full[at.stage].arrive();
  }
}

template <class Config>
__device__ void prepare_decay(const GlaForwardParams& params, ForwardShared<Config>& shared,
                              const Span& span) {
  const DecayTensor& decay = params.problem.log_decay;
  const float* of_head = decay.data + span.batch * decay.batch_stride +
                         span.begin * decay.time_stride + span.head * decay.head_stride;
  const auto load = [&](std::int64_t token) {
    const bool present = decay.data != nullptr && token < span.length;
    return present ? of_head[token * decay.time_stride] : 0.0f;
  };
  const std::int64_t lane_token = threadIdx.x % 32 * 2;
  float2 next = {load(lane_token), load(lane_token + 1)};
  typename ForwardShared<Config>::InputRing::Position at;
  for (int chunk = 0; chunk < span.chunks<Config>(); ++chunk, at.advance()) {
    // why: the next chunk's loads are under way while this chunk waits for its stage.
    const float2 own = next;
    const std::int64_t token = std::int64_t{chunk + 1} * Config::kChunk + lane_token;
    next = {load(token), load(token + 1)};
    shared.input.wait_empty(at);
    compute_chunk_decay(own, params.problem.scale, shared.decay[at.stage]);
    shared.input.full[at.stage].arrive();
  }
}

}  // namespace tandem::cuda
