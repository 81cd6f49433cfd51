// What the scans (gated_scan, linear_scan) share in the tools: scan_make.cpp, scan_judge.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/calls/operation.h"
#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"

namespace tandem::tools {

/// The fields of a scan's cases.
inline CaseSchema scan_case_schema(const char* op, std::vector<std::string> axes) {
  return {.op = op,
          .axes = std::move(axes),
          .optional_axes = {},
          .fields = {"decay_dtype", "gate"},
          .decay_kinds = {{"decay", DecayKind::kDecay}, {"log_decay", DecayKind::kLogDecay}}};
}

/// Makes a forward call's tensors, inputs filled.
TensorSet make_gated_scan(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_linear_scan(const Case& one, DType dtype, std::uint64_t seed);

/// Turns a forward's tensors into those of its backward.
TensorSet differentiate_scan(TensorSet set, const Signature& backward, const Case& one,
                             std::uint64_t seed);

std::unique_ptr<Expectation> expect_gated_scan(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_gated_scan_backward(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_linear_scan(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_linear_scan_backward(const TensorSet& set, bool sampled);

}  // namespace tandem::tools
