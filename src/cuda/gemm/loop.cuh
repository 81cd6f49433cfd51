// The GEMM main loop: tiles of A B^T, A B or A^T B, fp32, for kernels that bring an epilogue.
//
//   layout  A                          B                           contracted
//   kNT     [rows, depth], K-major     [columns, depth], K-major   64 columns at a time
//   kNN     [rows, depth], K-major     [depth, columns], MN-major  the same
//   kTN     [tokens, rows], MN-major   [tokens, columns], MN-major 64 tokens at a time
//
// A product may be a sum of terms, or a pair of products, and a matrix may be added to it, which
// comes through the ring behind the steps of a tile, and its last tiles may be cut into parts
// (gemm/operands.h). Of packed sequences only the tokens between the first and the last boundary
// enter: rows of a step behind them are zeroed in shared memory, for the tensors may hold anything
// there.
//
//   role  threads               work
//   rows  warpgroups 0 and 1    every other tile each: products, the epilogue
//   load  warps 8 and 9         A and B by TMA, one lane each (gemm/load.cuh)
// One CTA per SM, which stays for several tiles (gemm/schedule.cuh). The tiles' steps pass through
// one ring (A with a gate through one of its own), so one warpgroup's epilogue lies beside the
// other's products:
//
//   load    ~ tile n+1 ~~~~~~~ tile n+2 ~~~~~~ tile n+3 ~~~~~
//   rows 0  = tile n =====  - epilogue -   = tile n+2 =====
//   rows 1                = tile n+1 =====  - epilogue -
//
// Tiles of 256 columns both compute together, 64 rows each: fewer bytes for a product, on their way
// and in shared memory, and so less power. One stays some steps ahead, or both epilogues would
// meet. It wins where the depth is great.
//
// Floor: 2 rows columns contracted flops.
#pragma once

#include <cutlass/arch/reg_reconfig.h>

#include "cuda/gemm/epilogue.cuh"
#include "cuda/gemm/load.cuh"
#include "cuda/parts/stream_order.cuh"
#include "cuda/parts/wgmma.cuh"
#include "cuda/runtime/launch.h"

namespace tandem::cuda::gemm {

/// Zeroes rows [from, 64) of both operands. All 128 threads of a warpgroup; where both take part in
/// a tile, they write the same zeros.
template <class Config>
__device__ void clear_tokens_behind(typename Shared<Config>::Stage& stage, int from) {
  const int pieces = (64 - from) * 8;
  for (int i = threadIdx.x % 128; i < (2 + Config::kPanels) * pieces; i += 128) {
    char* panel = stage.a + i / pieces * kPanelBytes;
    const int piece = i % pieces;
    *reinterpret_cast<uint4*>(panel + panel_offset(from + piece / 8, piece % 8)) = uint4{};
  }
  fence_shared_for_async_proxy();
  sync_warpgroup(rows_barrier());
}

/// Descriptor of the first 16 contraction indices of an operand, and the way to the next 16.
template <Major kMajor>
__device__ std::uint64_t descriptor(const char* operand) {
  return kMajor == Major::K ? k_major_descriptor(operand, 0) : mn_major_descriptor(operand, 0);
}
template <Major kMajor>
constexpr int kStepBytes = kMajor == Major::K ? 32 : panel_bytes(16);

/// What a warpgroup computes of a tile: fragments of 64 rows.
template <class Config>
using Accumulators = float[Config::kHalves][Config::kColumns / 2];

/// A += a stage's product, or = with `accumulate` false.
template <class Config>
__device__ void multiply_stage(const typename Shared<Config>::Stage& stage, bool accumulate,
                               Accumulators<Config>& acc) {
#pragma unroll
  for (auto& half : acc) fence_registers(half);
  wgmma_begin();
  const int own = Config::kTogether ? threadIdx.x / 128 : 0;
  const std::uint64_t a = descriptor<kMajorA<Config>>(stage.a + own * kPanelBytes);
  const std::uint64_t b = descriptor<kMajorB<Config>>(stage.b);
#pragma unroll
  for (int step = 0; step < kTileDepth / 16; ++step) {
#pragma unroll
    for (int half = 0; half < Config::kHalves; ++half) {
      wgmma_ss<typename Config::Element, Config::kColumns, kMajorA<Config>, kMajorB<Config>>(
          acc[half], move_descriptor(a, half * kPanelBytes + step * kStepBytes<kMajorA<Config>>),
          move_descriptor(b, step * kStepBytes<kMajorB<Config>>), accumulate || step > 0);
    }
  }
  wgmma_commit();
#pragma unroll
  for (auto& half : acc) fence_registers(half);
}

/// Multiplies two pairs, each product rounded once.
template <class Element>
__device__ inline std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<Element, __nv_bfloat16>, __nv_bfloat162, __half2>;
  Pair first, second;
  memcpy(&first, &a, 4);
  memcpy(&second, &b, 4);
  const Pair product = __hmul2_rn(first, second);  // _rn: never part of another instruction
  std::uint32_t bits;
  memcpy(&bits, &product, 4);
  return bits;
}

/// The rows of A that a warpgroup multiplies, as wgmma takes them from registers.
using GatedRows = std::uint32_t[kTileDepth / 16][4];

/// Loads rows of A times the gate's, which lie behind A in their stage, rounded to Element.
template <class Config>
__device__ void load_gated_rows(const char* stage, GatedRows& a) {
  const char* rows = stage + threadIdx.x / 128 * kPanelBytes;
#pragma unroll
  for (int step = 0; step < kTileDepth / 16; ++step) {
    std::uint32_t gate[4];
    load_rows(rows, step, a[step]);
    load_rows(rows + 2 * kPanelBytes, step, gate);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[step][i] = multiply_pairs<typename Config::Element>(a[step][i], gate[i]);
    }
  }
}

/// Arrives once `value` is known, and so what it was made of has been loaded: an arrival alone does
/// not wait for loads under way. `zero` is 0, which the compiler must not know.
__device__ inline void arrive_behind(Barrier& barrier, std::uint32_t value, std::uint32_t zero) {
  const std::uint32_t address = cute::cast_smem_ptr_to_uint(&barrier.word) + (value & zero);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}

/// As multiply_stage, with A in registers, which must stay as they are until the product is done.
template <class Config>
__device__ void multiply_gated(const GatedRows& a, const typename Shared<Config>::Stage& stage,
                               bool accumulate, Accumulators<Config>& acc) {
  fence_registers(acc[0]);
  wgmma_begin();
  const std::uint64_t b = descriptor<kMajorB<Config>>(stage.b);
#pragma unroll
  for (int step = 0; step < kTileDepth / 16; ++step) {
    wgmma_rs<typename Config::Element, Config::kColumns, kMajorB<Config>>(
        acc[0], a[step], move_descriptor(b, step * kStepBytes<kMajorB<Config>>),
        accumulate || step > 0);
  }
  wgmma_commit();
  fence_registers(acc[0]);
}

/// Adds 64 rows of the addend to a fragment.
template <class Config>
__device__ void add_panels(const char* panels, float (&acc)[Config::kColumns / 2]) {
#pragma unroll
  for (int step = 0; step < Config::kColumns / 16; ++step) {
    std::uint32_t packed[4];
    load_rows(panels + step / 4 * kPanelBytes, step % 4, packed);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack_pair<typename Config::Element>(packed[i]);
      acc[8 * step + 2 * i] += pair.x;
      acc[8 * step + 2 * i + 1] += pair.y;
    }
  }
}

/// Lets the other warpgroup multiply, or waits until it does: they take turns. why: a barrier of
/// the ring tells two phases apart, so nobody may wait for a stage that is to be filled twice
/// before. Together they begin in turn, so that one's epilogue lies beside the other's last steps.
__device__ inline void pass_turn() {
  cutlass::arch::NamedBarrier::arrive(256, kTurnBarrier + 1 - threadIdx.x / 128);
}
__device__ inline void wait_for_turn() {
  cutlass::arch::NamedBarrier::sync(256, kTurnBarrier + threadIdx.x / 128);
}

/// A warpgroup that multiplies: its place in the ring, which both share.
template <class Config>
struct Products {
  Shared<Config>& shared;
  typename Ring<Config::kStages>::Position at{};
  RingPosition<std::max(Config::kStagesA, 1)> rows_at{};  // with a gate

  /// Lets the next step be loaded into a stage that this warpgroup has read.
  __device__ void release(int stage) { shared.ring.empty[stage].arrive(); }

  /// Computes a tile. `passes` the turn on: once all products are under way, or where both take
  /// part, after some steps.
  template <class Operands>
  __device__ void multiply(const Operands& operands, const Tile& tile, bool passes,
                           Accumulators<Config>& acc) {
    const int count = count_steps<Config>(operands, tile);
    const Steps first = find_steps<Config>(operands, 0, tile);
    int behind = at.stage;
    const auto take_step = [&](int i, const auto& products) {
      shared.ring.wait_full(at);
      auto& stage = shared.stages[at.stage];
      if constexpr (Config::kContractsTokens) {
        if (operands.cu_seqlens != nullptr) {
          const int tokens = first.tokens(first.begin + i);
          if (tokens < kTileDepth) clear_tokens_behind<Config>(stage, tokens);
        }
      }
      products(stage);
      if (Config::kTogether && passes && i == Config::kStepsAhead) {
        pass_turn();
        passes = false;
      }
      if (i > 0) {
        wgmma_wait<1>();
        release(behind);
        behind = at.stage;
      }
      at.advance();
    };
    if constexpr (Config::kGated) {
      // A of two steps: one's products run while the other's rows are loaded.
      GatedRows rows[2] = {};
      const auto take_gated = [&](int i, GatedRows& mine, const GatedRows& before) {
        shared.rows_ring.wait_full(rows_at);
        load_gated_rows<Config>(shared.rows[rows_at.stage], mine);
        // why not behind a fence, as in add: it would take 7 % of a call's time.
        const std::uint32_t of_all = mine[0][0] ^ mine[1][0] ^ mine[2][0] ^ mine[3][0];
        arrive_behind(shared.rows_ring.empty[rows_at.stage], of_all, operands.rows >> 31);
        rows_at.advance();
        take_step(i, [&](auto& stage) { multiply_gated<Config>(mine, stage, i > 0, acc); });
        hold_operand(before);
      };
#pragma unroll 1
      for (int i = 0; i < count; i += 2) {
        take_gated(i, rows[0], rows[1]);
        if (i + 1 < count) take_gated(i + 1, rows[1], rows[0]);
      }
      wgmma_wait<0>();
      hold_operand(rows[0]);
      hold_operand(rows[1]);
    } else {
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        take_step(i, [&](auto& stage) { multiply_stage<Config>(stage, i > 0, acc); });
      }
    }
    // why together before the addend: it may need a stage that the other has not read yet.
    if (Config::kTogether && passes) pass_turn();
    const int addend = at.stage;
    for (int half = 0; half < kAddendSteps && adds<Config>(operands); ++half, at.advance()) {
      shared.ring.wait_full(at);
    }
    if (!Config::kTogether && passes) pass_turn();
    wgmma_wait<0>();
    if (count > 0) {
      release(behind);
    } else {
      clear(acc);
    }
#pragma unroll
    for (auto& half : acc) fence_registers(half);
    if (adds<Config>(operands)) add(addend, acc);
  }

  /// Goes past a tile that the other warpgroup computes.
  __device__ void skip(int steps) { at.advance(steps); }

 private:
  /// Adds the addend, whose first rows are in this stage, the others in the next.
  __device__ void add(int first, Accumulators<Config>& acc) {
    const int own = Config::kTogether ? threadIdx.x / 128 : 0;
#pragma unroll
    for (int half = 0; half < Config::kHalves; ++half) {
      const int stage = (first + own + half) % Config::kStages;
      add_panels<Config>(shared.stages[stage].b, acc[half]);
    }
    // why: an arrival does not wait until what was loaded before it is there, and the copy engine
    // was quicker where products keep shared memory busy.
    fence_shared_for_async_proxy();
    release(first);
    release((first + 1) % Config::kStages);
  }

  static __device__ void clear(Accumulators<Config>& acc) {
#pragma unroll
    for (auto& half : acc) {
      fence_registers(half);
#pragma unroll
      for (float& value : half) value = 0.0f;
    }
  }
};

/// Initialises the ring and fetches the tensor maps. All threads of a kernel, at its begin.
template <class Config, class Operands>
__device__ void begin(const Operands& operands, Shared<Config>& shared) {
  if (threadIdx.x == 0) {
    shared.ring.init(Config::kGated ? 1 : 2, Config::kTogether ? 256 : 128);
    if constexpr (Config::kGated) shared.rows_ring.init(1, 256);
    fence_barriers_initialised();
  }
  if (threadIdx.x == 256) {
    for (const CUtensorMap& map : operands.a) prefetch_tensor_map(map);
    for (const CUtensorMap& map : operands.b) prefetch_tensor_map(map);
    if constexpr (HasAddend<Operands>) {
      if (adds<Config>(operands)) prefetch_tensor_map(operands.addend.map);
    }
    if constexpr (Config::kGated) prefetch_tensor_map(operands.gate);
  }
  __syncthreads();
}

/// Computes the CTA's tiles and calls epilogue(fragment, store) for the two halves of each, with a
/// PanelStore; before them, of the 256 threads that will, epilogue.prepare(), if it has one. All
/// threads of a kernel that does nothing else; `shared` is its dynamic shared memory.
template <class Config, class Operands, class Epilogue>
__device__ void run(const Operands& operands, Shared<Config>& shared, Epilogue epilogue) {
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  const int warpgroup = warp / 4;
  begin(operands, shared);
  const bool late = warp == 9 && operands.b_is_there;
  if (!late && !runs_beside(operands)) follow_stream();
  if (warpgroup == 2) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (warp == 8) load_tiles<Config, true>(operands, shared);
    if (warp == 9) load_tiles<Config, false>(operands, shared, late);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kProductRegisters>();
    if constexpr (requires { epilogue.prepare(); }) epilogue.prepare();
    const int count = operands.order.count;
    const int first = first_tile(operands);
    Products<Config> products{shared};
    PanelStore<Config> store(shared.stores[warpgroup]);
    for (int i = first, turn = 0, next; i < count; i = next, turn ^= 1) {
      const Tile tile = tile_at<Config>(operands, i);
      next = next_tile(operands, i);
      bool passes = next < count;
      if constexpr (Config::kTogether) {
        passes = i == first && warpgroup == 0;
        if (i == first && warpgroup == 1) wait_for_turn();
      } else if (turn != warpgroup) {
        products.skip(count_steps<Config>(operands, tile) +
                      (adds<Config>(operands) ? kAddendSteps : 0));
        continue;
      } else if (i != first) {
        wait_for_turn();
      }
      Accumulators<Config> acc;
      products.multiply(operands, tile, passes, acc);
      // why a loop: an epilogue is long, and runs as fast as its instructions are fetched.
#pragma unroll 1
      for (int half = 0; half < Config::kHalves; ++half) {
        const int row = tile.row + 64 * (Config::kTogether ? warpgroup : half);
        epilogue(Fragment<Config::kColumns>{acc[0], row, tile.segment, tile.column, tile.outer,
                                            tile.place},
                 store);
        if constexpr (!Config::kTogether) {
#pragma unroll
          for (int j = 0; j < Config::kColumns / 2; ++j) acc[0][j] = acc[1][j];
        }
      }
    }
    store.finish();
    // Last, so that this kernel ends behind the one that it ran beside.
    if (runs_beside(operands) && blockIdx.x == 0 && threadIdx.x == 0) follow_stream();
  }
}

/// Launches a kernel that calls run<Config>; nothing without tiles. Params are Operands and what
/// the epilogue needs; `shared_bytes` is what the kernel takes.
template <class Config, class Params>
void launch(const char* name, void (*kernel)(Params), const Params& params, int multiprocessors,
            void* stream, std::size_t shared_bytes = sizeof(Shared<Config>)) {
  Params ordered = params;
  ordered.order = order_tiles<Config>(params);
  const int tiles = ordered.order.count;
  if (tiles == 0) return;
  // why long ones not early: CTAs that start where one of the kernel before has ended lie anyhow
  // over the multiprocessors, and those that read the same rows of A in both halves of the L2. A
  // product behind a norm then takes up to a quarter longer.
  constexpr int kFewSteps = 128;
  std::int64_t steps = 0;
  for (int term = 0; term < Params::kTerms; ++term) steps += params.steps(Config::kLayout, term);
  if constexpr (HasTail<Params>) {
    if (params.tail.first == 0) steps = params.tail.steps_per_part;
  }
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(count_ctas(params, tiles, multiprocessors)),
                 .threads = Config::kThreads,
                 .shared_bytes = shared_bytes,
                 .early = runs_beside(params) || (tiles <= multiprocessors && steps <= kFewSteps)},
                static_cast<cudaStream_t>(stream), ordered);
}

}  // namespace tandem::cuda::gemm
