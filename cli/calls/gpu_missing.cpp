// CUDA devices in a build without CUDA.
#include "cli/calls/gpu.h"
#include "tandem/device.h"
#include "tandem/error.h"

namespace tandem::tools::gpu {
namespace {

[[noreturn]] void missing() { throw Unsupported("cuda: " + cuda_unavailable_reason()); }

}  // namespace

Memory::Memory(int device, std::size_t) : device_(device) { missing(); }
Memory::~Memory() = default;
void upload(void*, const void*, std::size_t) { missing(); }
void download(void*, const void*, std::size_t) { missing(); }
void copy(void*, const void*, std::size_t) { missing(); }
void fill(void*, int, std::size_t) { missing(); }
bool equal(int, const std::vector<Pair>&) { missing(); }
void synchronize(int) { missing(); }
void profile(int, bool) { missing(); }
std::vector<double> time(int, const std::function<void(int, void*)>&, int, int) { missing(); }
Ceilings ceilings(int) { missing(); }
State state(int) { missing(); }

}  // namespace tandem::tools::gpu
