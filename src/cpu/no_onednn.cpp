// The oneDNN provider of a build without oneDNN.
#include "cpu/matmul_onednn.h"
#include "tandem/error.h"

namespace tandem::cpu::onednn {

std::string unavailable_reason() { return "this library was built without oneDNN"; }

bool multiplies_bf16() { return false; }

void matmul(const MatmulArgs&) { throw Unsupported("[matmul] oneDNN: " + unavailable_reason()); }

}  // namespace tandem::cpu::onednn
