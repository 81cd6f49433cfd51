// The tables behind cuda::gated_scan_decay, cuda::gated_scan_carry and its backward, for their
// tests.
#pragma once

#include <string>
#include <vector>

#include "core/call_options.h"
#include "ops/gated_scan_carry_problem.h"
#include "tandem/device.h"

namespace tandem::cuda::gated_scan {

constexpr int kChunkThreads = 128;

/// Channels of a thread: 16 bytes of a token.
template <class Element>
constexpr int kVectorChannels = 16 / static_cast<int>(sizeof(Element));

template <class Problem>
struct ChunkVariant {
  std::string name;
  DType dtype;
  DType decay_dtype;
  int channels;  // of a thread: with several, tensors must be aligned
  void (*launch)(const char* name, const Problem& problem, void* stream);

  bool aligned() const { return channels > 1; }
};

using DecayVariant = ChunkVariant<GatedScanDecayProblem>;
using CarryVariant = ChunkVariant<GatedScanCarryProblem>;
using CarryBackwardVariant = ChunkVariant<GatedScanCarryBackwardProblem>;

/// "" when the variant can run the problem, else why not.
std::string reason_against(const DecayVariant& variant, const GatedScanDecayProblem& problem);
std::string reason_against(const CarryVariant& variant, const GatedScanCarryProblem& problem);
std::string reason_against(const CarryBackwardVariant& variant,
                           const GatedScanCarryBackwardProblem& problem);

/// Returns the first variant that can run a problem; throws Unsupported if none can.
const DecayVariant& choose(const GatedScanDecayProblem& problem, const DeviceProperties& device,
                           const CallOptions& options = {});
const CarryVariant& choose(const GatedScanCarryProblem& problem, const DeviceProperties& device,
                           const CallOptions& options = {});
const CarryBackwardVariant& choose(const GatedScanCarryBackwardProblem& problem,
                                   const DeviceProperties& device, const CallOptions& options = {});

const std::vector<DecayVariant>& decay_variants();
const std::vector<CarryVariant>& carry_variants();
const std::vector<CarryBackwardVariant>& carry_backward_variants();

/// Launch the kernels of decay.cuh, carry.cuh and carry_backward.cuh, kChannels channels a thread;
/// instantiated in carry_instances.cuh.
template <class Decay, int kChannels>
void launch_decay(const char* name, const GatedScanDecayProblem& problem, void* stream);
template <class Element, class Decay, int kChannels>
void launch_carry(const char* name, const GatedScanCarryProblem& problem, void* stream);
template <class Element, class Decay, int kChannels>
void launch_carry_backward(const char* name, const GatedScanCarryBackwardProblem& problem,
                           void* stream);

}  // namespace tandem::cuda::gated_scan
