// How a public call becomes one of a backend's: what every op's signatures are made with.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/environment.h"
#include "ops/signature.h"
#include "tandem/error.h"

/// The function of the CUDA backend, or null in a build without it.
#ifdef TANDEM_CUDA
#define TANDEM_CUDA_ENTRY(function) &cuda::function
#else
#define TANDEM_CUDA_ENTRY(function) nullptr
#endif

namespace tandem {

template <class Problem>
Device device_of(const Problem& problem) {
  if constexpr (requires { problem.forward; }) {
    return problem.forward.device;
  } else if constexpr (requires { problem.projection; }) {
    return problem.projection.device;
  } else {
    return problem.device;
  }
}

/// The functions of one call on the checked problem.
template <class Problem>
struct Entries {
  void (*cpu)(const Problem&, const CallOptions&);
  void (*cuda)(const Problem&, const Context&, const CallOptions&);
  std::size_t (*cuda_workspace_bytes)(const Problem&, const DeviceProperties&,
                                      const CallOptions&) = nullptr;  // null: it needs none
};

/// Makes the signature of a call whose arguments make_problem(args) checks.
template <class Args, class Problem = decltype(make_problem(std::declval<const Args&>()))>
Signature make_signature(const char* op, std::vector<Parameter> table,
                         const Entries<Problem>& entries) {
  const auto require_cuda = [op, entries] {
    if (entries.cuda != nullptr) return;
    throw Unsupported("[" + std::string(op) +
                      "] tensors on a CUDA device: " + cuda_unavailable_reason());
  };
  const auto run = [=](const void* args, const Context& context, CallOptions options) {
    options.batch_invariant |= context.batch_invariant;
    const Problem problem = make_problem(*static_cast<const Args*>(args));
    if (device_of(problem).type == DeviceType::kCpu) return entries.cpu(problem, options);
    require_cuda();
    entries.cuda(problem, context, options);
  };
  const auto workspace_bytes = [=](const void* args, const DeviceProperties& device,
                                   const CallOptions& options) -> std::size_t {
    const Problem problem = make_problem(*static_cast<const Args*>(args));
    if (device_of(problem).type != device.type) {
      refuse(op, "device must be of the tensors' type, " + to_string(device_of(problem)) +
                     ", got " + device.name);
    }
    if (device.type == DeviceType::kCpu) return 0;
    require_cuda();
    if (entries.cuda_workspace_bytes == nullptr) return 0;
    return entries.cuda_workspace_bytes(problem, device, options);
  };
  const auto make_args = [] { return std::shared_ptr<void>(std::make_shared<Args>()); };
  return {op, std::move(table), {run, workspace_bytes, make_args}};
}

/// Makes a public call, with what the environment says of variants.
inline void run(const Signature& signature, const void* args, const Context& context) {
  signature.run(args, context, call_options_from_environment());
}

inline std::size_t workspace_bytes(const Signature& signature, const void* args,
                                   const DeviceProperties& device, bool batch_invariant) {
  CallOptions options = call_options_from_environment();
  options.batch_invariant |= batch_invariant;
  return signature.workspace_bytes(args, device, options);
}

}  // namespace tandem
