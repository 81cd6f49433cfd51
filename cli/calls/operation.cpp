#include "cli/calls/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace tandem::tools {

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      kGlaForward,        kGlaBackward,        kGlaForwardBackward,
      kGlaState,          kGlaStateBackward,   kGlaStep,
      kGatedScanForward,  kGatedScanBackward,  kGatedScanForwardBackward,
      kLinearScanForward, kLinearScanBackward, kLinearScanForwardBackward};
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

double bytes_of(const TensorSet& set, const Operation& operation) {
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  double bytes = 0;
  for (const NamedTensor& tensor : set.tensors) {
    if (!has(operation.inputs, tensor.name) && !has(operation.optional_inputs, tensor.name) &&
        !has(operation.outputs, tensor.name)) {
      continue;
    }
    double elements = 1;
    for (int i = 0; i < tensor.shape.rank(); ++i) {
      elements *= tensor.strides[i] == 0 ? 1.0 : static_cast<double>(tensor.shape[i]);
    }
    bytes += elements * static_cast<double>(size_of(tensor.dtype));
  }
  return bytes;
}

std::vector<std::string> provider_names() {
  std::set<std::string> baselines;
  for (const Operation& operation : operations()) {
    for (const Baseline& baseline : operation.baselines) baselines.insert(baseline.provider);
  }
  std::vector<std::string> names = {"tandem"};
  names.insert(names.end(), baselines.begin(), baselines.end());
  return names;
}

const Baseline* find_baseline(const Operation& operation, const std::string& provider) {
  for (const Baseline& baseline : operation.baselines) {
    if (provider == baseline.provider) return &baseline;
  }
  return nullptr;
}

bool has_provider(const Operation& operation, const std::string& provider) {
  return provider.empty() || provider == "tandem" || find_baseline(operation, provider) != nullptr;
}

Operation with_baseline(const Operation& operation, const Baseline& baseline) {
  Operation changed = operation;
  changed.call = baseline.call;
  changed.workspace_bytes = baseline.workspace_bytes;
  return changed;
}

std::string title(const Operation& operation) {
  return fmt::format("{} {}", operation.name, operation.direction);
}

bool has_variant(const Operation& operation, const std::string& variant) {
  return operation.function != nullptr &&
         variant.rfind(std::string(operation.function) + ".", 0) == 0;
}

}  // namespace tandem::tools
