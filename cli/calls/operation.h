// What the tools need to know of an op: one table entry per op and direction, filled by
// cli/ops/<op>*.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/cases/cases.h"
#include "cli/tensors/safetensors.h"
#include "cli/tensors/tensors.h"
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
};

/// What the fp64 definition says of the outputs of one TensorSet, whole or at sampled heads.
class Expectation {
 public:
  virtual ~Expectation() = default;
  virtual std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const = 0;
};

using Settings = std::map<std::string, std::string>;

/// The op on a CUDA device as it would be without Tandem: cuBLASLt products and separate
/// element-wise kernels. Its functions throw Unsupported, saying why.
struct Baseline {
  const char* provider;  // as in results files: "unfused"
  const char* variant;   // as in results files: "unfused.cublaslt"
  void (*call)(const TensorSet& set, const std::vector<void*>& bases, Device device,
               const Context& context);
  std::size_t (*workspace_bytes)(const TensorSet& set, const std::vector<void*>& bases,
                                 Device device);
};

/// How much further from the definition than Tandem's kernels a baseline may be: it rounds every
/// intermediate to 16 bits.
inline constexpr double kBaselineSlack = 3;

struct Operation {
  const char* name;       // "gla"
  const char* direction;  // one of direction_names(), as in results files
  /// The C++ function, with which the names of its variants begin: "gla_forward". Null when the
  /// call is of several functions: then the library picks their variants.
  const char* function;
  /// Tensors by the names of the C++ call's arguments. make and from_file add no others; each
  /// output that they add is compared. A tensor updated in place is an output that is filled.
  std::vector<std::string> inputs;
  std::vector<std::string> optional_inputs;
  std::vector<std::string> outputs;
  /// Makes the tensors of a case, with fresh random inputs.
  TensorSet (*make)(const Case& one, DType dtype, std::uint64_t seed);
  /// Makes tensors from a file, and scalars from --set. Throws std::runtime_error naming the file
  /// and the field. Null where `tandem run` does not offer the direction.
  TensorSet (*from_file)(const SafetensorsFile& file, const Settings& settings);
  /// Makes the C++ call with each buffer of the set at `bases[i]` on `device`.
  void (*call)(const TensorSet& set, const std::vector<void*>& bases, Device device,
               const Context& context);
  std::size_t (*workspace_bytes)(const TensorSet& set, const std::vector<void*>& bases,
                                 Device device);
  /// Runs the definition, in parallel over sequences and heads; `sampled`: on a few of them.
  std::unique_ptr<Expectation> (*expect)(const TensorSet& set, bool sampled);
  Cost (*cost)(const TensorSet& set);
  /// Returns "B4 T1024 H32 K64 V64".
  std::string (*shape)(const TensorSet& set);
  bool fp32_on_cuda = false;  // else fp32 is for the CPU only
  std::vector<Baseline> baselines = {};
};

/// All entries; those of one op follow each other.
const std::vector<Operation>& operations();

/// Finds an entry, or throws std::runtime_error naming the known ones.
const Operation& find_operation(const std::string& name, const std::string& direction = "forward");

/// Counts every tensor of the operation's call once; of a broadcast axis only one element.
double bytes_of(const TensorSet& set, const Operation& operation);

/// "tandem", and the names of the baselines of all entries.
std::vector<std::string> provider_names();

/// Returns the baseline of that name; null without one.
const Baseline* find_baseline(const Operation& operation, const std::string& provider);

/// Whether the entry has the provider; every entry has "" and "tandem".
bool has_provider(const Operation& operation, const std::string& provider);

/// Returns the entry with the baseline's call instead of its own.
Operation with_baseline(const Operation& operation, const Baseline& baseline);

/// Returns "gla forward".
std::string title(const Operation& operation);

/// Whether the variant, "gla_forward.cpu.builtin", is one of the entry's function.
bool has_variant(const Operation& operation, const std::string& variant);

extern const Operation kGlaForward;
extern const Operation kGlaState;
extern const Operation kGlaStateBackward;
extern const Operation kGlaStep;
extern const Operation kGlaBackward;
extern const Operation kGlaForwardBackward;
extern const Operation kGatedScanForward;
extern const Operation kGatedScanBackward;
extern const Operation kGatedScanForwardBackward;
extern const Operation kLinearScanForward;
extern const Operation kLinearScanBackward;
extern const Operation kLinearScanForwardBackward;

}  // namespace tandem::tools
