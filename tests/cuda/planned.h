// For tests of the host side of ops on CUDA, which plan calls and launch nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/call_options.h"
#include "tandem/tandem.h"

namespace tandem::cuda {

inline const DeviceProperties kDevice = DeviceProperties::h200();

/// A contiguous tensor at an aligned address that nothing reads, another for each number.
inline TensorView view(int address, const Dims& shape, DType dtype = DType::kBFloat16) {
  return TensorView::contiguous(reinterpret_cast<void*>(std::uintptr_t{1} * address << 44), dtype,
                                shape, Device::cuda());
}

/// The variant that a call takes; `workspace_bytes` is the call's in namespace cuda. Throws as that
/// does.
template <class Problem>
std::string chosen_variant(std::size_t (*workspace_bytes)(const Problem&, const DeviceProperties&,
                                                          const CallOptions&),
                           const Problem& problem, bool batch_invariant, std::string_view forced) {
  std::string name;
  CallOptions options;
  options.batch_invariant = batch_invariant;
  options.variant = forced;
  options.chosen = &name;
  workspace_bytes(problem, kDevice, options);
  return name;
}

}  // namespace tandem::cuda
