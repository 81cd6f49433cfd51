// An op's cases on an unfused baseline, for the tests of the baselines.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cli/calls/backend.h"
#include "cli/calls/check.h"
#include "cli/calls/judge.h"
#include "cli/calls/operation.h"
#include "tandem/error.h"

namespace tandem::tools {

/// Why a baseline refuses the tensors of a case; "" where it takes them.
inline std::string baseline_refusal(const Operation& operation, const char* provider,
                                    const Case& one, DType dtype) {
  const Operation measured = with_baseline(operation, *find_baseline(operation, provider));
  const TensorSet set = measured.make(one, dtype, 1);
  try {
    measured.workspace_bytes(set, host_bases(set), Device::cuda());
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "";
}

/// Runs what the baseline takes of the cases tagged check, more than `least` of them, and compares
/// each with the definition, all that it must not write with what was there.
inline void check_baseline_cases(const Operation& operation, const char* provider, int least) {
  const Operation measured = with_baseline(operation, *find_baseline(operation, provider));
  int checked = 0;
  for (const Case& one : select_cases(load_cases(operation.name), "", "check")) {
    if (!one.has_direction(operation.direction)) continue;
    for (const DType dtype : one.dtypes) {
      if (!operation.runs_on_cuda(dtype)) continue;
      const TensorSet set = measured.make(one, dtype, 1);
      Placement placement(set, Device::cuda());
      try {
        measured.call(set, placement.bases(), Device::cuda(), {});
      } catch (const Unsupported&) {
        continue;
      }
      ++checked;
      const std::string what = std::string(provider) + " " + one.name + " " + to_string(dtype);
      // A baseline rounds what an activation takes, which may multiply the relative error by as
      // much.
      const double rounded_products = 1 + std::abs(one.around.value_or(0));
      Buffers after = placement.download();
      const auto errors = operation.expect(set, false)->compare(set, after);
      for (const OutputError& error : errors) {
        EXPECT_LE(error.value, rounded_products * baseline_limit(error.limit, dtype))
            << what << ": " << describe(errors);
      }
      Buffers before = clone(set.buffers);
      erase_outputs(set, before);
      erase_outputs(set, after);
      EXPECT_EQ(find_stray_write(set, before, after), "") << what;
    }
  }
  EXPECT_GT(checked, least) << title(operation) << " " << provider;
}

}  // namespace tandem::tools
