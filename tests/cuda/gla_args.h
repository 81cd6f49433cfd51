// Arguments of gla for tests of its host side on CUDA: aligned addresses that nothing reads.
#pragma once

#include "ops/gla.h"
#include "tandem/tandem.h"

namespace tandem::cuda::gla {

/// Contiguous tensors.
inline GlaForwardArgs contiguous_args(std::int64_t B, std::int64_t T, int HQ, int H, int K, int V,
                                      DType dtype = DType::kBFloat16) {
  const auto view = [&](std::uintptr_t address, const Dims& shape) {
    return TensorView::contiguous(reinterpret_cast<void*>(address), dtype, shape, Device::cuda());
  };
  GlaForwardArgs args;
  args.q = view(1ull << 44, {B, T, HQ, K});
  args.k = view(2ull << 44, {B, T, HQ, K});
  args.v = view(3ull << 44, {B, T, H, V});
  args.o = view(4ull << 44, {B, T, H, V});
  return args;
}

/// All gradients of a contiguous call with a decay per token.
inline GlaBackwardArgs backward_args(std::int64_t B, std::int64_t T, int HQ, int H, int K, int V) {
  const GlaForwardArgs forward = contiguous_args(B, T, HQ, H, K, V);
  const auto moved = [](TensorView view, std::uintptr_t address) {
    view.data = reinterpret_cast<void*>(address);
    return view;
  };
  const auto decay = [&](std::uintptr_t address) {
    return TensorView::contiguous(reinterpret_cast<void*>(address), DType::kFloat32, {B, T, H},
                                  Device::cuda());
  };
  GlaBackwardArgs args;
  args.q = forward.q;
  args.k = forward.k;
  args.v = forward.v;
  args.d_o = forward.o;
  args.log_decay = decay(5ull << 44);
  args.dq = moved(forward.q, 6ull << 44);
  args.dk = moved(forward.k, 7ull << 44);
  args.dv = moved(forward.v, 8ull << 44);
  args.d_log_decay = decay(9ull << 44);
  return args;
}

}  // namespace tandem::cuda::gla
