// What the tables share whose kernels take any element type and walk along tokens. Host only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>

#include "cuda/runtime/plan.h"
#include "tandem/tensor.h"

namespace tandem::cuda {

/// Calls add(dtype, Element) with every dtype that there are kernels of; Element is a type
/// argument.
template <class Add>
void for_each_dtype(const Add& add) {
  add.template operator()<__nv_bfloat16>(DType::kBFloat16);
#ifndef TANDEM_CUDA_DEV
  add.template operator()<__half>(DType::kFloat16);
#endif
  add.template operator()<float>(DType::kFloat32);
}

/// Says why a kernel that counts tokens in an int cannot walk so many, "" when it can. The int has
/// room for a step of 2^20 beyond the last token.
inline std::string length_problem(std::int64_t T) {
  constexpr std::int64_t kMostTokens = kMaxIndex - (1 << 20) + 1;
  if (T <= kMostTokens) return "";
  return "takes T up to " + std::to_string(kMostTokens) + ", got " + std::to_string(T);
}

}  // namespace tandem::cuda
