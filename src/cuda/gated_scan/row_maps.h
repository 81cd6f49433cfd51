// TMA descriptors of gated_scan's tensors: copies of some tokens by 64 channels.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/gated_scan/params.h"
#include "cuda/runtime/tensor_map.h"

namespace tandem::cuda::gated_scan {

struct BackwardMaps {
  CUtensorMap x, decay, gate, d_out, dx, d_decay, d_gate;
};

struct BackwardRowParams : BackwardParams {
  BackwardMaps maps;
};

/// Parameters of the kernel of a Config.
template <class Config>
using BackwardArgs = std::conditional_t<Config::kRows, BackwardRowParams, BackwardParams>;

struct ForwardMaps {
  CUtensorMap x, x_rest, decay, gate;
};

struct ForwardRowParams : ForwardParams {
  ForwardMaps maps;
};

template <class Config>
using ForwardArgs = std::conditional_t<Config::kRows, ForwardRowParams, ForwardParams>;

constexpr int kRowChannels = 64;  // of a copy

template <class Stored>
constexpr DType kDTypeOf = std::is_same_v<Stored, float>    ? DType::kFloat32
                           : std::is_same_v<Stored, __half> ? DType::kFloat16
                                                            : DType::kBFloat16;

/// Encode the maps of the tensors that exist, with so many rows per load and per store.
ForwardMaps forward_maps(const ForwardParams& params, DType dtype, DType decay_dtype,
                         std::int64_t batches, int rows);
BackwardMaps backward_maps(const BackwardParams& params, DType dtype, std::int64_t batches,
                           int load_rows, int store_rows);

}  // namespace tandem::cuda::gated_scan
