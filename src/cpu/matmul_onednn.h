// The oneDNN provider behind cpu/matmul.h. A build without oneDNN has the same functions, refusing.
#pragma once

#include <string>

#include "cpu/matmul.h"

namespace tandem::cpu::onednn {

std::string unavailable_reason();

/// Whether the machine has bf16 matrix or dot-product instructions that oneDNN uses.
bool multiplies_bf16();

/// Computes a product with M, N, K >= 1.
void matmul(const MatmulArgs& args);

}  // namespace tandem::cpu::onednn
