// What each op brings to the tools. No other part of them knows an op by name.
#pragma once

#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/report/data.h"

namespace tandem::tools {

/// Entries, a forward before its backward.
std::vector<Operation> gla_operations();
std::vector<Operation> gated_scan_operations();
std::vector<Operation> linear_scan_operations();
std::vector<Operation> projection_operations();
std::vector<Operation> rms_norm_gemm_operations();
std::vector<Operation> gemm_swiglu_operations();
std::vector<Operation> gated_output_operations();
std::vector<Operation> attention_operations();
std::vector<Operation> attention_weights_operations();
std::vector<Operation> causal_conv1d_operations();

/// Fields of the cases.
CaseSchema gla_case_schema();
CaseSchema gated_scan_case_schema();
CaseSchema linear_scan_case_schema();
CaseSchema projection_case_schema();
CaseSchema rms_norm_gemm_case_schema();
CaseSchema gemm_swiglu_case_schema();
CaseSchema gated_output_case_schema();
CaseSchema attention_case_schema();
CaseSchema attention_weights_case_schema();
CaseSchema causal_conv1d_case_schema();

/// A generated table of an op's own, between the marks of a page.
struct PageBlock {
  std::string page;  // "docs/ops/linear_scan.log.md"
  std::string (*render)(const std::vector<ReportFile>& files);
};
std::vector<PageBlock> page_blocks();

}  // namespace tandem::tools
