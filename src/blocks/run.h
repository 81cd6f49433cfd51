// How a block's calls run: a sequence of ops over one workspace. A Sequence is made of a call and
// an address, where it lays out `bytes` of tensors; op_bytes(device, batch_invariant) checks each
// op and returns what the most demanding one needs behind them; run(context) makes the calls.
#pragma once

#include <cstddef>
#include <type_traits>

#include "blocks/buffers.h"
#include "ops/call.h"
#include "ops/scratch.h"
#include "tandem/context.h"
#include "tandem/device.h"

namespace tandem {

/// Bytes of a call's workspace. This checks the whole call.
template <class Sequence, class Call>
std::size_t block_bytes(const Call& call, const DeviceProperties& device, bool batch_invariant) {
  const Sequence sequence(call, nowhere());
  return sequence.bytes + sequence.op_bytes(device, batch_invariant);
}

template <class Sequence, class Call>
void run_block(const Call& call, const Context& context) {
  const Device device = call.x.device;
  const std::size_t bytes =
      block_bytes<Sequence>(call, device_properties(device), context.batch_invariant);
  const UseScratch use = [&](char* data) {
    const Sequence sequence(call, data);
    Context inner = context;
    inner.workspace = {data + sequence.bytes, bytes - sequence.bytes};
    sequence.run(inner);
  };
  if (device.type == DeviceType::kCpu) return cpu::with_scratch(call.name, context, bytes, use);
#ifdef TANDEM_CUDA
  cuda::with_scratch(call.name, device, context, bytes, use);
#endif
}

/// Runs a pass of a block that is no op on its tensors' device; its cuda is TANDEM_CUDA_ENTRY's.
template <class Problem>
void run_pass(const Problem& problem, const Context& context,
              std::type_identity_t<void (*)(const Problem&)> cpu,
              std::type_identity_t<void (*)(const Problem&, const Context&)> cuda) {
  if (problem.device.type == DeviceType::kCpu) return cpu(problem);
  cuda(problem, context);  // ops have refused a device that the library is not built for
}

/// Bytes of workspace that run_pass needs.
template <class Problem>
std::size_t pass_bytes(const Problem& problem,
                       std::type_identity_t<std::size_t (*)(const Problem&)> cuda) {
  return problem.device.type == DeviceType::kCpu ? 0 : cuda(problem);
}

}  // namespace tandem
