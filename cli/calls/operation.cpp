#include "cli/calls/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>

#include "cli/calls/arguments.h"
#include "core/environment.h"

namespace tandem::tools {
namespace {

/// Names of the calls' parameters that are as wanted, each once, call by call.
template <class Wanted>
std::vector<std::string> names_of(const std::vector<const Signature*>& calls,
                                  const Wanted& wanted) {
  std::vector<std::string> names;
  for (const Signature* signature : calls) {
    for (const Parameter& row : signature->parameters()) {
      if (!row.is_tensor() || !wanted(row)) continue;
      if (std::find(names.begin(), names.end(), row.name) == names.end()) names.push_back(row.name);
    }
  }
  return names;
}

/// Counts every tensor of the call once, one that is updated twice; of a broadcast axis only one
/// element.
double bytes_of(const TensorSet& set, const Signature& signature) {
  double bytes = 0;
  for (const Parameter& row : signature.parameters()) {
    const NamedTensor* tensor = row.is_tensor() ? tensor_of(set, row) : nullptr;
    if (tensor == nullptr) continue;
    double elements = row.role == Role::kInPlace ? 2 : 1;
    for (int i = 0; i < tensor->shape.rank(); ++i) {
      elements *= tensor->strides[i] == 0 ? 1.0 : static_cast<double>(tensor->shape[i]);
    }
    bytes += elements * static_cast<double>(size_of(tensor->dtype));
  }
  return bytes;
}

class BothExpectations : public Expectation {
 public:
  BothExpectations(std::unique_ptr<Expectation> forward, std::unique_ptr<Expectation> backward)
      : forward_(std::move(forward)), backward_(std::move(backward)) {}

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<OutputError> errors = forward_->compare(set, after);
    std::ranges::move(backward_->compare(set, after), std::back_inserter(errors));
    return errors;
  }

 private:
  std::unique_ptr<Expectation> forward_, backward_;
};

}  // namespace

void Operation::call(const TensorSet& set, const std::vector<void*>& bases, Device device,
                     const Context& context) const {
  PreparedCalls(*this, set, bases, device).run(context);
}

std::size_t Operation::workspace_bytes(const TensorSet& set, const std::vector<void*>& bases,
                                       Device device) const {
  return PreparedCalls(*this, set, bases, device).workspace_bytes();
}

PreparedCalls::PreparedCalls(const Operation& operation, const TensorSet& set,
                             const std::vector<void*>& bases, Device device)
    : operation_(operation), device_(device) {
  const std::vector<const Signature*> calls =
      operation.instead ? operation.instead->calls : operation.calls;
  for (const Signature* signature : calls) {
    arguments_.push_back(arguments(*signature, set, bases, device));
  }
}

CallOptions PreparedCalls::options() const {
  CallOptions options = call_options_from_environment();
  if (!operation_.variant.empty()) options.variant = operation_.variant;
  return options;
}

void PreparedCalls::run(const Context& context) const {
  if (operation_.instead) return operation_.instead->run(arguments_, context);
  const CallOptions chosen = options();
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    operation_.calls[i]->run(arguments_[i].get(), context, chosen);
  }
}

std::size_t PreparedCalls::workspace_bytes() const {
  if (operation_.instead) return operation_.instead->workspace_bytes(arguments_);
  const DeviceProperties& device = device_properties(device_);
  const CallOptions chosen = options();
  std::size_t most = 0;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    most =
        std::max(most, operation_.calls[i]->workspace_bytes(arguments_[i].get(), device, chosen));
  }
  return most;
}

Cost Operation::cost(const TensorSet& set) const {
  Cost cost{0, flops(set)};
  for (const Signature* signature : calls) cost.bytes += bytes_of(set, *signature);
  return cost;
}

std::vector<std::string> Operation::inputs() const {
  return names_of(calls, [](const Parameter& row) {
    return (row.role == Role::kInput && !row.optional) || row.role == Role::kInPlace;
  });
}

std::vector<std::string> Operation::optional_inputs() const {
  return names_of(calls,
                  [](const Parameter& row) { return row.role == Role::kInput && row.optional; });
}

std::vector<std::string> Operation::outputs() const {
  std::vector<std::string> names =
      names_of(calls, [](const Parameter& row) { return row.is_output() && !row.optional; });
  std::ranges::move(
      names_of(calls, [](const Parameter& row) { return row.is_output() && row.optional; }),
      std::back_inserter(names));
  return names;
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

Operation forward_then_backward(const Operation& forward, const Operation& backward) {
  Operation both = forward;
  both.direction = "forward_backward";
  both.calls = {forward.calls.front(), backward.calls.front()};
  // The backward's tensors and the forward's outputs, each laid out as its gradient.
  both.make = [forward, backward](const Case& one, DType dtype, std::uint64_t seed) {
    TensorSet set = backward.make(one, dtype, seed);
    for (const std::string& output : forward.outputs()) {
      if (!set.find("d_" + output)) continue;
      const NamedTensor like = set.get("d_" + output);
      const std::int64_t guard = kGuardBytes;
      add_tensor(set, output, like.dtype, like.shape, like.strides, true,
                 (like.offset - guard) / size_of(like.dtype));
    }
    return set;
  };
  both.expect = [forward, backward](const TensorSet& set, bool sampled) {
    return std::make_unique<BothExpectations>(forward.expect(set, sampled),
                                              backward.expect(set, sampled));
  };
  both.flops = [forward, backward](const TensorSet& set) {
    return forward.flops(set) + backward.flops(set);
  };
  return both;
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
  changed.instead = baseline;
  changed.make = [make = operation.make, baseline](const Case& one, DType dtype,
                                                   std::uint64_t seed) {
    TensorSet set = make(one, dtype, seed);
    const auto forgone = [&](const NamedTensor& tensor) {
      return tensor.output && std::ranges::count(baseline.forgoes, tensor.name) > 0;
    };
    // What a backward must be given stays, for nobody to read or write.
    std::erase_if(set.tensors, [&](NamedTensor& tensor) {
      if (!forgone(tensor)) return false;
      tensor.output = false;
      return std::ranges::none_of(baseline.calls, [&](const Signature* call) {
        const Parameter* row = call->find(tensor.name);
        return row != nullptr && row->role == Role::kInput;
      });
    });
    return set;
  };
  return changed;
}

Operation with_variant(const Operation& operation, const std::string& variant) {
  Operation changed = operation;
  changed.variant = variant == kLibraryChoice ? "" : variant;
  return changed;
}

std::string title(const Operation& operation) {
  return fmt::format("{} {}", operation.name, operation.direction);
}

bool has_variant(const Operation& operation, const std::string& variant) {
  return operation.calls.size() == 1 && variant.rfind(operation.function() + ".", 0) == 0;
}

}  // namespace tandem::tools
