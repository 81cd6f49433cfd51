#include "cli/calls/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::tools {

void Squares::add(double value, double expected) {
  wrong += (value - expected) * (value - expected);
  right += expected * expected;
  fourth += expected * expected * expected * expected;
  ++count;
}

double Squares::relative(double scale) const {
  if (wrong == 0) return 0;
  return right == 0 ? std::numeric_limits<double>::infinity()
                    : std::fabs(std::sqrt(wrong / scale));  // no "-nan"
}

OutputError judge(const char* output, const std::vector<Squares>& heads, double limit) {
  Squares all;
  for (const Squares& head : heads) {
    all.wrong += head.wrong;
    all.right += head.right;
    all.fourth += head.fourth;
    all.count += head.count;
  }
  OutputError error{output, all.relative(all.right), 0, limit, false, 1};
  if (all.fourth > 0) error.carriers = std::max(all.right / all.fourth * all.right, 1.0);
  for (const Squares& head : heads) {
    const double average =
        all.right * static_cast<double>(head.count) / std::max<double>(all.count, 1);
    const double value = head.relative(std::max(head.right, average));
    if (!(value <= error.worst_head) && !std::isnan(error.worst_head)) error.worst_head = value;
  }
  error.passed = error.value <= limit && error.worst_head <= error.head_limit();
  return error;
}

double error_limit(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return 3e-3;
    case DType::kFloat16: return 5e-4;
    case DType::kFloat64: return 1e-13;
    default: return 1e-5;
  }
}

double baseline_limit(double limit, DType dtype) { return 3 * std::max(limit, error_limit(dtype)); }

bool is_accepted(const OutputError& error, const Baseline* baseline, DType dtype) {
  if (error.passed) return true;
  return baseline != nullptr && error.value <= baseline_limit(error.limit, dtype);
}

}  // namespace tandem::tools
