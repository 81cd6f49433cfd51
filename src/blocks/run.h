// How a block's calls run: a sequence of ops over one workspace. A Sequence is made of a call and
// an address, where it lays out `bytes` of tensors; op_bytes(device, batch_invariant) checks each
// op and returns what the most demanding one needs behind them; run(context) makes the calls.
#pragma once

#include <cstddef>

#include "blocks/buffers.h"
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

}  // namespace tandem
