// The entries of every op, forward and backward first.
#pragma once

#include <vector>

#include "cli/calls/operation.h"

namespace tandem::tools {

std::vector<Operation> gla_operations();
std::vector<Operation> gated_scan_operations();
std::vector<Operation> linear_scan_operations();

}  // namespace tandem::tools
