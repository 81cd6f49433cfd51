#include "cli/ops/ops.h"

#include <algorithm>
#include <iterator>

#include "cli/ops/linear_scan_kernels.h"

namespace tandem::tools {

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = [] {
    std::vector<Operation> joined;
    for (const auto& make :
         {gla_operations, gated_scan_operations, linear_scan_operations, projection_operations,
          rms_norm_gemm_operations, gemm_swiglu_operations, gated_output_operations,
          attention_operations, attention_weights_operations, causal_conv1d_operations}) {
      std::ranges::move(make(), std::back_inserter(joined));
    }
    for (Operation& operation : joined) {
      for (const Baseline& baseline : bench::baselines()) {
        if (operation.calls == baseline.calls) operation.baselines.push_back(baseline);
      }
    }
    return joined;
  }();
  return all;
}

const std::vector<CaseSchema>& case_schemas() {
  static const std::vector<CaseSchema> all = {
      gla_case_schema(),          gated_scan_case_schema(),    linear_scan_case_schema(),
      projection_case_schema(),   rms_norm_gemm_case_schema(), gemm_swiglu_case_schema(),
      gated_output_case_schema(), attention_case_schema(),     attention_weights_case_schema(),
      causal_conv1d_case_schema()};
  return all;
}

std::vector<PageBlock> page_blocks() { return {{"docs/ops/linear_scan.log.md", kernels_block}}; }

}  // namespace tandem::tools
