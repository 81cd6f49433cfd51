// Which way a backward of gla goes on CUDA, for tests of its host side.
#pragma once

#include <stdexcept>
#include <string>

#include "cuda/gla/backward.h"
#include "ops/gla.h"
#include "tandem/tandem.h"
#include "tests/cuda/gla_args.h"

namespace tandem::cuda::gla {

/// Says why a variant does not take a call; "" when it does.
inline std::string reason(const char* name, const GlaBackwardArgs& args) {
  const GlaBackwardProblem problem = make_problem(args);
  for (const BackwardVariant& variant : backward_variants()) {
    if (variant.name == name) return reason_against(variant, problem, plan_tiles(problem));
  }
  throw std::out_of_range(name);
}

/// Returns the name of the variant that is chosen for a call on an H200.
inline std::string chosen(const GlaBackwardArgs& args) {
  std::string name;
  CallOptions options;
  options.chosen = &name;
  gla_backward_workspace_bytes(make_problem(args), DeviceProperties::h200(), options);
  return name;
}

/// Whether a bf16 call goes a way on an H200: ".groups", "" for walks.
inline bool goes(const std::string& way, const GlaBackwardArgs& args) {
  return chosen(args) == "gla_backward.sm90.bf16.c64" + way;
}

}  // namespace tandem::cuda::gla
