#include "operation.h"

#include <fmt/format.h>

#include <stdexcept>

namespace tandem::tools {

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {kGlaForward, kGlaBackward,      kGlaForwardBackward,
                                             kGlaState,   kGlaStateBackward, kGlaStep};
  return all;
}

const Operation& find_operation(const std::string& name, const std::string& direction) {
  std::vector<std::string> known;
  for (const Operation& operation : operations()) {
    if (operation.name == name && operation.direction == direction) return operation;
    known.push_back(title(operation));
  }
  throw std::runtime_error(
      fmt::format("there is no {} {} (known: {})", name, direction, fmt::join(known, ", ")));
}

std::string title(const Operation& operation) {
  return fmt::format("{} {}", operation.name, operation.direction);
}

bool has_variant(const Operation& operation, const std::string& variant) {
  return operation.function != nullptr &&
         variant.rfind(std::string(operation.function) + ".", 0) == 0;
}

}  // namespace tandem::tools
