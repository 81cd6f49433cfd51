// The host side of gated_scan on CUDA: which variant a problem gets and why others are passed over,
// how many CTAs share a chain, the workspace. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/gated_scan/variants.h"
#include "cuda/runtime/choose_variant.h"
#include "cuda/scan/plan.h"
#include "tandem/tandem.h"

namespace tandem::cuda {
namespace {

using ::testing::HasSubstr;

TensorView view(std::uintptr_t address, const Dims& shape, DType dtype) {
  return TensorView::contiguous(reinterpret_cast<void*>(address << 44), dtype, shape,
                                Device::cuda());
}

/// Contiguous tensors at an aligned address that nothing reads.
GatedScanForwardArgs contiguous_args(const Dims& shape, DType dtype = DType::kBFloat16,
                                     DType decay_dtype = DType::kBFloat16) {
  GatedScanForwardArgs args;
  args.x = view(1, shape, dtype);
  args.log_decay = view(2, shape, decay_dtype);
  args.gate = view(3, shape, dtype);
  args.out = view(4, shape, dtype);
  return args;
}

GatedScanBackwardArgs backward_args(const Dims& shape, DType dtype = DType::kBFloat16) {
  const GatedScanForwardArgs forward = contiguous_args(shape, dtype, dtype);
  GatedScanBackwardArgs args{.x = forward.x};
  args.log_decay = forward.log_decay;
  args.gate = forward.gate;
  args.d_out = view(5, shape, dtype);
  args.dx = view(6, shape, dtype);
  args.d_log_decay = view(7, shape, dtype);
  args.d_gate = view(8, shape, dtype);
  return args;
}

template <class Variants, class Args>
std::string first_accepting(const Variants& variants, const Args& args,
                            const DeviceProperties& device = DeviceProperties::h200()) {
  return choose_variant("gated_scan", variants, device, [&](const auto& variant) {
           return variant.supports(make_problem(args), device);
         })
      .name;
}
std::string forward_of(const GatedScanForwardArgs& args) {
  return first_accepting(scan_forward_variants(), args);
}
std::string backward_of(const GatedScanBackwardArgs& args) {
  return first_accepting(scan_backward_variants(), args);
}

std::string reason_of(const std::string& name, const GatedScanForwardArgs& args) {
  for (const ScanForwardVariant& variant : scan_forward_variants()) {
    if (variant.name == name) {
      return variant.supports(make_problem(args), DeviceProperties::h200());
    }
  }
  throw std::out_of_range(name);
}

