// A sequence that ranks hold in parts, as each would on a device of its own.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "cli/calls/backend.h"

namespace tandem::tools {

/// Tokens of a call's tensors by ranks, and what the ranks exchange: per rank `kinds` states and
/// their log-decays, in host memory between two steps.
class RankParts {
 public:
  RankParts(TensorSet whole, Device device, std::vector<std::int64_t> cuts, int kinds)
      : device_(device), cuts_(std::move(cuts)), kinds_(kinds), whole_(std::move(whole)) {
    const Dims state = whole_.get("initial_state").shape;
    const Dims total{state[0], state[1]};
    for (std::size_t i = 0; i < ranks() * kinds_; ++i) {
      add_tensor(exchanged_, "state", DType::kFloat32, state, contiguous_strides(state), true);
      add_tensor(exchanged_, "total", DType::kFloat32, total, contiguous_strides(total), true);
      add_tensor(exchanged_, "before", DType::kFloat32, state, contiguous_strides(state), false);
    }
  }

  std::size_t ranks() const { return cuts_.size() - 1; }
  Device device() const { return device_; }
  const TensorSet& whole() const { return whole_; }
  TensorSet& exchanged() { return exchanged_; }

  /// Rank p's results: what it adds to a state, its log-decay, and the state that it is handed.
  enum What { kState, kTotal, kBefore };
  TensorView shared(std::size_t p, int kind, What what, const Placement& exchange) const {
    const NamedTensor& tensor = tensor_of(p, kind, what);
    return view(tensor, exchange.bases()[tensor.buffer], device_);
  }

  /// Rank p's tokens of a tensor; one without tokens is every rank's.
  TensorView part(std::size_t p, const char* name, const Placement& parts) const {
    const NamedTensor& tensor = whole_.get(name);
    TensorView slice = view(tensor, parts.bases()[tensor.buffer], device_);
    if (slice.shape.rank() == 1) return slice;
    slice.data =
        static_cast<std::byte*>(slice.data) + cuts_[p] * slice.strides[1] * size_of(slice.dtype);
    slice.shape[1] = cuts_[p + 1] - cuts_[p];
    return slice;
  }
  std::optional<TensorView> log_decay(std::size_t p, const Placement& parts) const {
    if (!whole_.find("log_decay")) return std::nullopt;
    return part(p, "log_decay", parts);
  }

  /// The states that the ranks are handed, in the order of the walk: the first one `given`, each
  /// next one exp(total) of the one before + its state.
  void combine(Buffers& buffers, int kind, const char* given, bool backwards) const {
    const NamedTensor& first = whole_.get(given);
    const std::int64_t heads = first.shape[0] * first.shape[1];
    const std::int64_t size = first.shape[2] * first.shape[3];
    const auto rank = [&](std::size_t i) { return backwards ? ranks() - 1 - i : i; };
    const auto floats = [&](std::size_t i, What what) {
      const NamedTensor& tensor = tensor_of(rank(i), kind, what);
      return reinterpret_cast<float*>(buffers[tensor.buffer].data() + tensor.offset);
    };
    std::memcpy(floats(0, kBefore), whole_.buffers[first.buffer].data() + first.offset,
                heads * size * sizeof(float));
    for (std::size_t i = 0; i + 1 < ranks(); ++i) {
      const float *before = floats(i, kBefore), *state = floats(i, kState);
      const float* total = floats(i, kTotal);
      float* after = floats(i + 1, kBefore);
      for (std::int64_t j = 0; j < heads * size; ++j) {
        after[j] = std::exp(total[j / size]) * before[j] + state[j];
      }
    }
  }

 private:
  const NamedTensor& tensor_of(std::size_t p, int kind, What what) const {
    return exchanged_.tensors[3 * (p * kinds_ + kind) + what];
  }

  Device device_;
  std::vector<std::int64_t> cuts_;  // rank p holds tokens [cuts[p], cuts[p+1])
  int kinds_;
  TensorSet whole_;
  TensorSet exchanged_;
};

inline Case parallel_case(DecayKind kind, DecayDistribution distribution, Strides strides) {
  Case one;
  one.axes = {{"B", 2}, {"T", 700}, {"H", 4}, {"HQ", 2}, {"K", 64}, {"V", 40}};
  one.decay = kind;
  one.distribution = distribution;
  one.states = States::kBoth;
  one.strides = strides;
  if (distribution == DecayDistribution::kPositive) one.scale = 1e-4;  // o in fp16's range
  return one;
}

/// Every kind of decay, and layouts.
inline std::vector<Case> parallel_cases() {
  using D = DecayDistribution;
  std::vector<Case> cases = {
      parallel_case(DecayKind::kNone, D::kZero, Strides::kContiguous),
      parallel_case(DecayKind::kConstant, D::kNormal, Strides::kContiguous),
      parallel_case(DecayKind::kConstant, D::kReset, Strides::kPadded),
      parallel_case(DecayKind::kPerToken, D::kNormal, Strides::kTransposed),
      parallel_case(DecayKind::kPerToken, D::kNormal, Strides::kPacked),
  };
  for (const D distribution : {D::kNormalBench, D::kReset, D::kAllReset, D::kHuge, D::kMinus20,
                               D::kAlternating, D::kPositive, D::kZero}) {
    cases.push_back(parallel_case(DecayKind::kPerToken, distribution, Strides::kContiguous));
  }
  return cases;
}

/// Cuts into spans that are uneven, of one token, and empty: at the beginning, inside, at the end.
inline const std::vector<std::int64_t> kCuts = {0, 0, 1, 70, 70, 71, 130, 690, 700, 700};

/// `Ranks(case, dtype, device).check()` for all of these.
template <class Ranks>
void check_ranks(Device device) {
  std::vector<DType> dtypes = {DType::kBFloat16, DType::kFloat16};
  if (device.type == DeviceType::kCpu) dtypes.push_back(DType::kFloat32);
  for (const Case& one : parallel_cases()) {
    for (const DType dtype : dtypes) {
      SCOPED_TRACE(to_string(dtype) + " decay " + std::to_string(static_cast<int>(one.decay)) +
                   " distribution " + std::to_string(static_cast<int>(one.distribution)));
      Ranks(one, dtype, device).check();
    }
  }
}

}  // namespace tandem::tools
