// The GEMM main loop where tiles are few: the CTAs of a cluster contract a part of a tile's depth
// each (split-K), of each of its terms, and one of them adds the parts and calls the epilogue.
//
//   rank 0  load ~~~~  = steps of part 0 =  rows 64..127 to rank 1 | add rows 0..63    - epilogue -
//   rank 1  load ~~~~  = steps of part 1 =  rows 0..63 to rank 0   | add rows 64..127  - epilogue -
//   others  load ~~~~  = steps of a part =  both                   |
//
// Both warpgroups of a CTA multiply 64 rows each. Parts are sent as wgmma's fragments lie, so that
// a thread adds to its own, in the order of the ranks. why sent: a read of another CTA's shared
// memory takes its way twice.
//
// Floor: the operands' bytes.
#pragma once

#include "cuda/gemm/loop.cuh"
#include "cuda/parts/cluster.cuh"

namespace tandem::cuda::gemm {

template <class Config>
struct SplitShared {
  static constexpr int kPieces = Config::kColumns / 8;  // of four values, of a thread
  using Part = float4[kPieces][128];

  Shared<Config> products;
  Part others[Config::kParts - 1];  // of the rows that this CTA finishes
};

/// Adds the parts of the calling warpgroup's rows, which are those of rank 0 or 1 to finish. All
/// threads of those that multiply. Returns whether this CTA has the sum.
template <class Config>
__device__ bool add_parts(SplitShared<Config>& shared, Accumulators<Config>& acc) {
  using Shared = SplitShared<Config>;
  const int rank = static_cast<int>(cute::block_rank_in_cluster());
  const int finisher = static_cast<int>(threadIdx.x) / 128, thread = threadIdx.x % 128;
  float(&own)[Shared::kPieces][4] = reinterpret_cast<float(&)[Shared::kPieces][4]>(acc);
  __cluster_barrier_wait();  // all have begun
  if (rank != finisher) {
    const std::uint32_t to =
        address_in_cluster(&shared.others[rank - (rank > finisher ? 1 : 0)][0][thread], finisher);
#pragma unroll
    for (int i = 0; i < Shared::kPieces; ++i) {
      store_to_cluster(to + i * sizeof(float4[128]),
                       make_float4(own[i][0], own[i][1], own[i][2], own[i][3]));
    }
    __cluster_barrier_arrive();
    return false;
  }
  sync_cluster();
#pragma unroll
  for (int i = 0; i < Shared::kPieces; ++i) {
    float4 sum{};
#pragma unroll
    for (int part = 0; part < Config::kParts; ++part) {
      const float4 piece = part == rank ? make_float4(own[i][0], own[i][1], own[i][2], own[i][3])
                                        : shared.others[part - (part > rank ? 1 : 0)][i][thread];
      sum.x += piece.x;
      sum.y += piece.y;
      sum.z += piece.z;
      sum.w += piece.w;
    }
    own[i][0] = sum.x;
    own[i][1] = sum.y;
    own[i][2] = sum.z;
    own[i][3] = sum.w;
  }
  return true;
}

/// Computes the cluster's tile and calls epilogue(fragment, store) for each half of it, with a
/// PanelStore. All threads of a kernel that does nothing else; `shared` is its dynamic shared
/// memory.
template <class Config, class Operands, class Epilogue>
__device__ void run_split(const Operands& operands, SplitShared<Config>& shared,
                          Epilogue epilogue) {
  static_assert(Config::kParts > 1);
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
  begin(operands, shared.products);
  __cluster_barrier_arrive();
  const bool late = warp == 9 && operands.b_is_there;
  if (!late) follow_stream();
  const Tile tile = tile_at<Config>(operands, static_cast<int>(blockIdx.x) / Config::kParts);
  if (warp >= 8) {
    cutlass::arch::warpgroup_reg_dealloc<Config::kLoadRegisters>();
    typename Ring<Config::kStages>::Position at;
    if (warp == 8) load_tile<Config, true>(operands, tile, shared.products, at);
    if (warp == 9) load_tile<Config, false>(operands, tile, shared.products, at);
    if (late) follow_stream();
    __syncwarp();
    __cluster_barrier_wait();
    __cluster_barrier_arrive();
  } else {
    cutlass::arch::warpgroup_reg_alloc<Config::kProductRegisters>();
    Products<Config> products{shared.products};
    PanelStore<Config> store(shared.products.stores[warp / 4]);
    Accumulators<Config> acc;
    products.multiply(operands, tile, false, acc);
    if (add_parts<Config>(shared, acc)) {
      const int row = tile.row + 64 * (warp / 4);
      epilogue(Fragment<Config::kColumns>{acc[0], row, tile.segment, tile.column, tile.outer},
               store);
    }
    store.finish();
  }
}

/// Calls run<Config> or, where a tile's depth has parts, run_split<Config>, with the kernel's
/// dynamic shared memory.
template <class Config, class Operands, class Epilogue>
__device__ void run_any(const Operands& operands, char* shared_memory, Epilogue epilogue) {
  if constexpr (Config::kParts > 1) {
    run_split<Config>(operands, reinterpret_cast<SplitShared<Config>&>(*shared_memory), epilogue);
  } else {
    run<Config>(operands, reinterpret_cast<Shared<Config>&>(*shared_memory), epilogue);
  }
}

/// Launches a kernel that calls run_any<Config>; nothing without tiles.
template <class Config, class Params>
void launch_any(const char* name, void (*kernel)(Params), const Params& params, int multiprocessors,
                void* stream) {
  if constexpr (Config::kParts == 1) {
    return launch<Config>(name, kernel, params, multiprocessors, stream);
  }
  Params ordered = params;
  ordered.order = order_tiles<Config>(params);
  if (ordered.order.count == 0) return;
  launch_kernel(name, kernel,
                {.blocks = static_cast<unsigned>(ordered.order.count * Config::kParts),
                 .threads = Config::kThreads,
                 .cluster = static_cast<unsigned>(Config::kParts),
                 .shared_bytes = sizeof(SplitShared<Config>)},
                static_cast<cudaStream_t>(stream), ordered);
}

}  // namespace tandem::cuda::gemm
