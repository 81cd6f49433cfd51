#include "cli/calls/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "cli/calls/backend.h"
#include "tandem/error.h"

namespace tandem::tools {
namespace {

/// Allows an output of a random case for its few values. A limit is on the RMS of many rounding
/// errors. Each is uniform, its square scatters by sqrt(4/5) of its mean, the mean of n squares by
/// sqrt(4/5 / n), and the RMS by half of that: 0.45 / sqrt(n). Of 10^5 draws the worst is some 4.5
/// of these off. What is rounded may also lie at the low end of a binade throughout, as weights of
/// keys that all count alike do: its relative error is 1 / sqrt(3/8 / ln 2) = 1.36 times that of
/// mantissas spread evenly. Tables of cases have no such chance: their inputs were chosen once.
void allow_for_few_values(OutputError& error) {
  error.limit *= 1.36 * (1 + 2 / std::sqrt(error.carriers));
  error.passed = error.value <= error.limit && error.worst_head <= error.head_limit();
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

/// A set on a device, and what two runs of a call, or one, make of it. What need not be seen on the
/// host stays there: of sets of gigabytes, copies would be most of a check's time.
class Runs {
 public:
  Runs(const TensorSet& set, Device device, bool once)
      : set_(set),
        once_(once),
        original_(set, device),
        first_(original_.sizes(), device),
        second_(original_.sizes(), device) {
    for (std::size_t i = 0; i < set.buffers.size(); ++i) {
      const auto writes = [&](const NamedTensor& tensor) {
        return tensor.output && tensor.buffer == i;
      };
      written_.push_back(std::ranges::any_of(set.tensors, writes));
      read_.push_back(!written_[i]);
      erased_.push_back(written_[i] ? set.buffers[i].clone() : HostBuffer::uninitialized(0));
    }
    erase_outputs(set, erased_);
  }

  /// Says what is wrong with the entry's variant, "" when nothing is. Throws Unsupported when it
  /// refuses. `drawn`: by chance.
  std::string check(const Operation& operation, const Expectation& expectation, bool drawn,
                    std::vector<OutputError>& errors) {
    // why first: a variant that refuses then costs no copies, and most do.
    const std::size_t bytes = operation.workspace_bytes(set_, first_.bases(), first_.device());
    if (!once_) {
      // NaNs, which show in the results if the call reads what it did not write.
      Placement workspace({std::max<std::size_t>(bytes, 256)}, first_.device());
      workspace.fill(0xFF);
      run(operation, first_, {.workspace = {workspace.bases().front(), bytes}});
    }
    run(operation, second_, {});
    Buffers after;
    for (std::size_t i = 0; i < written_.size(); ++i) {
      after.push_back(written_[i] ? second_.download(i) : HostBuffer::uninitialized(0));
    }
    errors = expectation.compare(set_, after);
    if (drawn) std::ranges::for_each(errors, allow_for_few_values);
    if (std::string forgotten = find_forgotten(operation, set_, errors); !forgotten.empty()) {
      return forgotten;
    }
    if (!once_ && !first_.equal(second_, written_)) {
      return find_difference(set_, first_.download(), second_.download());
    }
    if (!original_.equal(second_, read_)) {
      Buffers before = clone(set_.buffers), now = second_.download();
      erase_outputs(set_, before);
      erase_outputs(set_, now);
      return find_stray_write(set_, before, now);
    }
    erase_outputs(set_, after);
    if (std::string stray = find_stray_write(set_, erased_, after); !stray.empty()) return stray;
    const bool passed = std::ranges::all_of(errors, &OutputError::passed);
    return passed ? "" : describe(errors);
  }

 private:
  void run(const Operation& operation, Placement& placement, const Context& context) {
    placement.copy(original_);
    operation.call(set_, placement.bases(), placement.device(), context);
  }

  const TensorSet& set_;
  const bool once_;
  Placement original_, first_, second_;
  std::vector<bool> written_, read_;  // by buffer: whether the call writes it, or only reads it
  Buffers erased_;  // the written ones before a call, the outputs erased; the rest empty
};

}  // namespace

std::string describe(const std::vector<OutputError>& errors) {
  std::vector<std::string> parts;
  parts.reserve(errors.size());
  for (const OutputError& error : errors) {
    const auto compared = [](double value, double limit) {
      return fmt::format("{:.1e} {} {:.1e}", value, value <= limit ? "<=" : ">", limit);
    };
    parts.push_back(fmt::format("{} {} (worst head {})", error.output,
                                compared(error.value, error.limit),
                                compared(error.worst_head, error.head_limit())));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<CheckResult> check_case(const Operation& operation, const Case& one, DType dtype,
                                    const std::vector<Device>& devices, std::uint64_t seed,
                                    bool once) {
  const TensorSet set = operation.make(one, dtype, seed);
  std::unique_ptr<Expectation> expectation;
  std::vector<CheckResult> results;
  for (const Device device : devices) {
    CheckResult result{operation.direction, one.name, dtype, backend_name(device), "",
                       Outcome::kSkipped,   "",       {}};
    if (device.type == DeviceType::kCuda && !operation.runs_on_cuda(dtype)) {
      result.detail = to_string(dtype) + " is for the CPU only";
      results.push_back(result);
      continue;
    }
    bool accepted = false;
    std::string refusals;
    std::optional<Runs> runs;
    for (const std::string& variant : available_variants(operation, device)) {
      result.variant = variant;
      result.errors.clear();
      try {
        if (!expectation) expectation = operation.expect(set, one.tagged("large"));
        if (!runs) runs.emplace(set, device, once);
        result.detail = runs->check(with_variant(operation, variant), *expectation,
                                    one.tagged("random"), result.errors);
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
    result.outcome = unwritten ? Outcome::kSkipped : Outcome::kFailed;
    result.detail = refusals.empty() ? "no variant is available" : refusals;
    results.push_back(result);
  }
  return results;
}

}  // namespace tandem::tools
