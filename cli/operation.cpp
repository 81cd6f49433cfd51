#include "operation.h"

#include <fmt/format.h>

#include <stdexcept>

namespace tandem::tools {

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {kGlaOperation};
  return all;
}

const Operation& find_operation(const std::string& name) {
  std::vector<std::string> known;
  for (const Operation& operation : operations()) {
    if (operation.name == name) return operation;
    known.emplace_back(operation.name);
  }
  throw std::runtime_error(fmt::format("unknown op {} (known: {})", name, fmt::join(known, ", ")));
}

}  // namespace tandem::tools
