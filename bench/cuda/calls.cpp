#include "calls.h"

#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/cuda/unfused.h"
#include "commit.h"
#include "core/environment.h"
#include "ops/signature.h"
#include "status.h"
#include "tandem/error.h"

namespace tandem::bench {
namespace {

thread_local std::string last_error;

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// What a name stands for: a call of the library or, where there is one, its baseline.
struct Function {
  const Signature* signature = nullptr;
  const Baseline* baseline = nullptr;
};

Function find_function(const std::string& name) {
  std::vector<std::string> known;
  for (const Signature* signature : signatures()) {
    if (name == signature->name()) return {signature};
    known.emplace_back(signature->name());
  }
  for (const Baseline& baseline : baselines()) {
    if (baseline.calls.size() > 1) continue;
    const Signature* call = baseline.calls.front();
    known.push_back(std::string(baseline.provider) + "." + call->name());
    if (name == known.back()) return {call, &baseline};
  }
  throw InvalidArgument("there is no call " + name + " (known: " + joined(known) + ")");
}

const Parameter& find_row(const Signature& signature, const std::string& name, bool number) {
  const Parameter* found = signature.find(name);
  if (found != nullptr && found->number == number) return *found;
  std::vector<std::string> known;
  for (const Parameter& row : signature.parameters()) {
    if (row.number == number) known.emplace_back(row.name);
  }
  throw InvalidArgument("[" + std::string(signature.name()) + "] there is no " +
                        (number ? "number " : "tensor ") + name + " (known: " + joined(known) +
                        ")");
}

TensorView view(const Signature& signature, const tandem_bench_tensor& tensor, Device device) {
  constexpr DType kDTypes[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kInt32};
  const auto check = [&](const char* what, int value, int end) {
    if (value >= 0 && value < end) return;
    throw InvalidArgument("[" + std::string(signature.name()) + "] " + tensor.name + " must have " +
                          what + " in [0," + std::to_string(end) + "), got " +
                          std::to_string(value));
  };
  check("a dtype", tensor.dtype, std::size(kDTypes));
  check("a rank", tensor.rank, Dims::kMaxRank + 1);
  const auto dims = [&](const std::int64_t* values) {
    return Dims(std::span<const std::int64_t>(values, tensor.rank));
  };
  return {tensor.data, kDTypes[tensor.dtype], dims(tensor.shape), dims(tensor.strides), device};
}

Device device_of(const tandem_bench_call& call) {
  return call.device == TANDEM_BENCH_HOST ? Device::cpu() : Device::cuda(call.device);
}

/// Makes the arguments of a call. What a tensor must be, the call itself checks.
std::shared_ptr<void> arguments(const Signature& signature, const tandem_bench_call& call) {
  std::shared_ptr<void> args = signature.make_args();
  std::vector<const Parameter*> given;
  for (const auto& tensor : std::span(call.tensors, call.tensor_count)) {
    const Parameter& row = find_row(signature, tensor.name, false);
    row.set_view(args.get(), view(signature, tensor, device_of(call)));
    given.push_back(&row);
  }
  for (const auto& number : std::span(call.numbers, call.number_count)) {
    find_row(signature, number.name, true).set_value(args.get(), number.value);
  }
  for (const Parameter& row : signature.parameters()) {
    if (row.optional || std::find(given.begin(), given.end(), &row) != given.end()) continue;
    throw InvalidArgument("[" + std::string(signature.name()) + "] tensor " + row.name +
                          " is missing");
  }
  return args;
}

std::size_t workspace_bytes(const tandem_bench_call& call) {
  const auto [signature, baseline] = find_function(call.function);
  const auto args = arguments(*signature, call);
  if (baseline != nullptr) return baseline->workspace_bytes({&args, 1});
  return signature->workspace_bytes(args.get(), device_properties(device_of(call)),
                                    call_options_from_environment());
}

/// Makes the call; returns the name of its variant.
std::string run(const tandem_bench_call& call, const Context& context) {
  const auto [signature, baseline] = find_function(call.function);
  const auto args = arguments(*signature, call);
  if (baseline != nullptr) {
    baseline->run({&args, 1}, context);
    return baseline->variant;
  }
  std::string chosen;
  CallOptions options = call_options_from_environment();
  options.chosen = &chosen;
  signature->run(args.get(), context, options);
  return chosen;
}

}  // namespace

void set_last_error(const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();  // out of memory for the message
  }
}

}  // namespace tandem::bench

using namespace tandem::bench;

const char* tandem_bench_last_error(void) { return last_error.c_str(); }

const char* tandem_bench_commit(void) { return TANDEM_COMMIT; }

int tandem_bench_call_workspace_bytes(const tandem_bench_call* call, size_t* bytes) {
  return guarded([&] { *bytes = workspace_bytes(*call); });
}

int tandem_bench_call_run(const tandem_bench_call* call, void* workspace, size_t workspace_bytes,
                          void* stream, char variant[128]) {
  return guarded([&] {
    const std::string name =
        run(*call, {.stream = {stream}, .workspace = {workspace, workspace_bytes}});
    if (variant != nullptr) std::snprintf(variant, 128, "%s", name.c_str());
  });
}
