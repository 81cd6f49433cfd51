// A backward's inputs that its forward writes.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "cli/calls/arguments.h"

namespace tandem::tools {

/// Runs a forward, and the outputs of these names become inputs; what it does not write of them
/// stays poison. why the CPU's and not the definition: it takes minutes of the large cases. What it
/// keeps wrong, its own check and the gradients show.
template <class Args>
void keep_outputs(const Signature& forward, TensorSet& set,
                  std::initializer_list<std::string_view> names) {
  auto args = host_arguments<Args>(forward, set);
  args.final_state.reset();  // it may be the initial state's memory
  forward.run(&args, {}, {});
  for (NamedTensor& tensor : set.tensors) {
    if (std::find(names.begin(), names.end(), tensor.name) != names.end()) tensor.output = false;
  }
}

}  // namespace tandem::tools
