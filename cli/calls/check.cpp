#include "cli/calls/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/calls/backend.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

/// Runs the call on a fresh copy of the set.
Buffers run_once(const Operation& operation, const TensorSet& set, Placement& placement) {
  placement.upload(set.buffers);
  operation.call(set, placement.bases(), placement.device(), {});
  return placement.download();
}

/// Names a tensor of the set that no call of the entry has, or an output that was not compared; ""
/// when there is none.
std::string find_forgotten(const Operation& operation, const TensorSet& set,
                           const std::vector<OutputError>& errors) {
  for (const NamedTensor& tensor : set.tensors) {
    const auto has = [&](const Signature* call) { return call->find(tensor.name) != nullptr; };
    if (std::ranges::none_of(operation.calls, has)) return tensor.name + " is of no call";
    const auto compares = [&](const OutputError& error) { return error.output == tensor.name; };
    if (tensor.output && std::ranges::none_of(errors, compares)) {
      return tensor.name + " is not compared";
    }
  }
  return "";
}

/// Says what is wrong with the entry's variant, "" when nothing is. Throws
/// Unsupported when it refuses.
std::string check_variant(const Operation& operation, const TensorSet& set, Device device,
                          const Expectation& expectation, std::vector<OutputError>& errors) {
  Placement placement(set, device);
  Buffers first = run_once(operation, set, placement);
  errors = expectation.compare(set, first);
  if (std::string forgotten = find_forgotten(operation, set, errors); !forgotten.empty()) {
    return forgotten;
  }
  {
    const Buffers second = run_once(operation, set, placement);
    std::string difference = find_difference(set, first, second);
    if (!difference.empty()) return difference;
  }
  Buffers before = clone(set.buffers);
  std::string stray = find_stray_write(set, before, first);
  if (!stray.empty()) return stray;
  const bool passed = std::all_of(errors.begin(), errors.end(),
                                  [](const OutputError& error) { return error.passed; });
  return passed ? "" : describe(errors);
}

}  // namespace

std::string describe(const std::vector<OutputError>& errors) {
  std::vector<std::string> parts;
  parts.reserve(errors.size());
  for (const OutputError& error : errors) {
    parts.push_back(fmt::format("{} {:.1e} (worst head {:.1e}, limit {:.0e})", error.output,
                                error.value, error.worst_head, error.limit));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<CheckResult> check_case(const Operation& operation, const Case& one, DType dtype,
                                    const std::vector<Device>& devices, std::uint64_t seed) {
  const TensorSet set = operation.make(one, dtype, seed);
  std::unique_ptr<Expectation> expectation;
  std::vector<CheckResult> results;
  for (const Device device : devices) {
    CheckResult result{operation.direction, one.name, dtype, backend_name(device), "",
                       Outcome::kSkipped,   "",       {}};
    if (device.type == DeviceType::kCuda && dtype == DType::kFloat32 && !operation.fp32_on_cuda) {
      result.detail = "fp32 is for the CPU only";
      results.push_back(result);
      continue;
    }
    bool accepted = false;
    std::string refusals;
    for (const std::string& variant : available_variants(operation, device)) {
      result.variant = variant;
      result.errors.clear();
      try {
        if (!expectation) expectation = operation.expect(set, one.tagged("large"));
        result.detail = check_variant(with_variant(operation, variant), set, device, *expectation,
                                      result.errors);
        result.outcome = result.detail.empty() ? Outcome::kPassed : Outcome::kFailed;
      } catch (const Unsupported& error) {
        refusals = error.what();
        std::replace(refusals.begin(), refusals.end(), '\n', ' ');
        continue;
      } catch (const std::exception& error) {
        result.detail = error.what();
        result.outcome = Outcome::kFailed;
      }
      accepted = true;
      results.push_back(result);
    }
    if (accepted) continue;
    result.variant.clear();
    result.errors.clear();
    // Whether an op has no CUDA kernel yet; the CPU backend has all ops.
    const bool unwritten = device.type == DeviceType::kCuda && refusals.empty();
    result.outcome = one.tagged("later") || unwritten ? Outcome::kSkipped : Outcome::kFailed;
    result.detail = refusals.empty() ? "no variant is available" : refusals;
    results.push_back(result);
  }
  return results;
}

}  // namespace tandem::tools
