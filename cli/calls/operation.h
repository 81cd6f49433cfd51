// What the tools need to know of an op: one table entry per op and direction, made in
// cli/ops/<op>.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/cuda/unfused.h"
#include "cli/cases/cases.h"
#include "cli/tensors/tensors.h"
#include "ops/signature.h"
#include "tandem/context.h"
#include "tandem/device.h"

namespace tandem::tools {

/// Least cost of a call: bytes (each input read once, each output written once) and matrix flops.
struct Cost {
  double bytes = 0;
  double flops = 0;
};

/// Error of one output against the definition.
struct OutputError {
  std::string output;
  double value = 0;       // relative RMS over what was compared; NaN or inf when the output has any
  double worst_head = 0;  // relative RMS over the worst single sequence and head
  double limit = 0;
  bool passed = false;
  /// Of how many values of one size the output might be: (sum x^2)^2 / sum x^4.
  double carriers = 1;

  /// Limit on the worst head, which may be a little worse than the whole: rounding errors of few
  /// values average out less.
  double head_limit() const { return 4 * limit; }
};

/// What the fp64 definition says of the outputs of one TensorSet, whole or at sampled heads.
class Expectation {
 public:
  virtual ~Expectation() = default;
  virtual std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const = 0;
};

using bench::Baseline;

struct Operation {
  std::string name;       // "gla"
  std::string direction;  // one of direction_names(), as in results files
  /// The calls made in turn, which share a stream and a workspace. Their tables say which tensors a
  /// set of the entry may have; each output that it has is compared.
  std::vector<const Signature*> calls;
  /// Makes the tensors of a case, with fresh random inputs.
  std::function<TensorSet(const Case& one, DType dtype, std::uint64_t seed)> make;
  /// Runs the definition, in parallel over sequences and heads; `sampled`: on a few of them.
  std::function<std::unique_ptr<Expectation>(const TensorSet& set, bool sampled)> expect;
  /// Matrix flops of a call.
  std::function<double(const TensorSet& set)> flops;
  /// Returns "B4 T1024 H32 K64 V64".
  std::function<std::string(const TensorSet& set)> shape;
  bool fp32_on_cuda = false;             // else fp32 is for the CPU only
  std::vector<Baseline> baselines = {};  // filled by operations(), from their own table
  std::string variant = {};              // the only one that may run; empty: the library's choice
  std::optional<Baseline> instead = std::nullopt;  // makes the calls, in place of the library

  /// fp64 is for the CPU only.
  bool runs_on_cuda(DType dtype) const {
    return dtype != DType::kFloat64 && (dtype != DType::kFloat32 || fp32_on_cuda);
  }

  /// Makes the calls with each buffer of the set at `bases[i]` on `device`.
  void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
            const Context& context) const;
  std::size_t workspace_bytes(const TensorSet& set, const std::vector<void*>& bases,
                              Device device) const;
  Cost cost(const TensorSet& set) const;

  /// Name of the C++ function, with which the names of its variants begin: "gla_forward". Empty
  /// when there are several: then the library picks their variants.
  std::string function() const { return calls.size() == 1 ? calls.front()->name() : ""; }

  /// Whether `tandem run` offers it: a file has the tensors of one call.
  bool runs_files() const { return calls.size() == 1; }

  /// Names of the required inputs, the optional ones, and the outputs; a tensor updated in place is
  /// an input and an output.
  std::vector<std::string> inputs() const;
  std::vector<std::string> optional_inputs() const;
  std::vector<std::string> outputs() const;
};

/// The calls of an entry, which must outlive it, with their arguments made once: what a program
/// that keeps its buffers does in every call.
class PreparedCalls {
 public:
  PreparedCalls(const Operation& operation, const TensorSet& set, const std::vector<void*>& bases,
                Device device);

  void run(const Context& context) const;
  /// Returns the largest of the calls' workspaces, each checked and planned for it.
  std::size_t workspace_bytes() const;

 private:
  CallOptions options() const;

  const Operation& operation_;
  Device device_;
  std::vector<std::shared_ptr<void>> arguments_;  // of each call
};

/// All entries, in cli/ops/ops.cpp; those of one op follow each other.
const std::vector<Operation>& operations();

/// Finds an entry, or throws std::runtime_error naming the known ones.
const Operation& find_operation(const std::string& name, const std::string& direction = "forward");

/// Returns the direction "forward_backward": the two in turn, as in training. What both read counts
/// twice: between the two calls a training step has other layers.
Operation forward_then_backward(const Operation& forward, const Operation& backward);

/// "tandem", and the names of the baselines of all entries.
std::vector<std::string> provider_names();

/// Returns the baseline of that name; null without one.
const Baseline* find_baseline(const Operation& operation, const std::string& provider);

/// Whether the entry has the provider; every entry has "" and "tandem".
bool has_provider(const Operation& operation, const std::string& provider);

/// Returns the entry with the baseline's call instead of its own.
Operation with_baseline(const Operation& operation, const Baseline& baseline);

/// Name that stands for the variants that the library picks by itself.
inline constexpr const char* kLibraryChoice = "library's choice";

/// Returns the entry with this variant alone: its calls use it or throw Unsupported.
Operation with_variant(const Operation& operation, const std::string& variant);

/// Returns "gla forward".
std::string title(const Operation& operation);

/// Whether the variant, "gla_forward.cpu.builtin", is one of the entry's function.
bool has_variant(const Operation& operation, const std::string& variant);

}  // namespace tandem::tools
