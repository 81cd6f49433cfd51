// Every call of the library, and every op's variants.
#include "ops/attention.h"
#include "ops/attention_weights.h"
#include "ops/causal_conv1d.h"
#include "ops/gated_output.h"
#include "ops/gated_scan.h"
#include "ops/gemm_swiglu.h"
#include "ops/gla.h"
#include "ops/linear_scan.h"
#include "ops/projection.h"
#include "ops/rms_norm_gemm.h"
#include "ops/signature.h"
#include "tandem/variants.h"

namespace tandem {

const std::vector<const Signature*>& signatures() {
  static const std::vector<const Signature*> all = {&gla_forward_signature(),
                                                    &gla_backward_signature(),
                                                    &gla_state_forward_signature(),
                                                    &gla_state_backward_signature(),
                                                    &gla_step_signature(),
                                                    &gated_scan_forward_signature(),
                                                    &gated_scan_backward_signature(),
                                                    &gated_scan_decay_signature(),
                                                    &gated_scan_carry_signature(),
                                                    &gated_scan_carry_backward_signature(),
                                                    &linear_scan_forward_signature(),
                                                    &linear_scan_backward_signature(),
                                                    &projection_forward_signature(),
                                                    &projection_backward_signature(),
                                                    &rms_norm_gemm_forward_signature(),
                                                    &rms_norm_gemm_backward_signature(),
                                                    &gemm_swiglu_forward_signature(),
                                                    &gemm_swiglu_backward_signature(),
                                                    &gated_output_forward_signature(),
                                                    &gated_output_backward_signature(),
                                                    &attention_forward_signature(),
                                                    &attention_backward_signature(),
                                                    &attention_weights_forward_signature(),
                                                    &attention_weights_backward_signature(),
                                                    &causal_conv1d_forward_signature(),
                                                    &causal_conv1d_backward_signature(),
                                                    &causal_conv1d_step_signature()};
  return all;
}

const Signature* find_signature(const std::string& name) {
  for (const Signature* signature : signatures()) {
    if (name == signature->name()) return signature;
  }
  return nullptr;
}

std::vector<VariantInfo> variants(const DeviceProperties& device) {
  std::vector<VariantInfo> all;
  const auto append = [&](const std::vector<VariantInfo>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  if (device.type == DeviceType::kCpu) {
    append(cpu::gla_variants());
    append(cpu::gla_step_variants());
    append(cpu::gated_scan_variants());
    append(cpu::linear_scan_variants());
    append(cpu::projection_variants());
    append(cpu::rms_norm_gemm_variants());
    append(cpu::gemm_swiglu_variants());
    append(cpu::gated_output_variants());
    append(cpu::attention_variants());
    append(cpu::attention_weights_variants());
    append(cpu::causal_conv1d_variants());
  }
#ifdef TANDEM_CUDA
  if (device.type == DeviceType::kCuda) {
    append(cuda::gla_variants(device));
    append(cuda::gla_step_variants(device));
    append(cuda::gated_scan_variants(device));
    append(cuda::gated_scan_carry_variants(device));
    append(cuda::linear_scan_variants(device));
    append(cuda::projection_variants(device));
    append(cuda::rms_norm_gemm_variants(device));
    append(cuda::gemm_swiglu_variants(device));
    append(cuda::gated_output_variants(device));
    append(cuda::attention_variants(device));
    append(cuda::attention_weights_variants(device));
    append(cuda::causal_conv1d_variants(device));
  }
#endif
  return all;
}

}  // namespace tandem
