// Sequence parallelism by gla_state_forward: a sequence that ranks hold in parts gives what the
// uncut one gives.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "backend.h"
#include "judge.h"
#include "tandem/ops/gla.h"

namespace tandem::tools {
namespace {

/// A sequence that ranks hold in parts, as each would on a device of its own: all they share is
/// what gla_state_forward returns.
class Ranks {
 public:
  Ranks(const Case& one, DType dtype, Device device, const std::vector<std::int64_t>& cuts)
      : device_(device), cuts_(cuts), whole_(kGlaForward.make(one, dtype, 7)) {
    const Dims state = whole_.get("final_state").shape;
    for (std::size_t p = 0; p < ranks(); ++p) {
      add_tensor(exchanged_, "state", DType::kFloat32, state, contiguous_strides(state), true);
      const Dims total{state[0], state[1]};
      add_tensor(exchanged_, "total", DType::kFloat32, total, contiguous_strides(total), true);
      add_tensor(exchanged_, "initial", DType::kFloat32, state, contiguous_strides(state), false);
    }
  }

  void check() {
    Placement uncut(whole_, device_), parts(whole_, device_), exchange(exchanged_, device_);
    kGlaForward.call(whole_, uncut.bases(), device_, {});
    for (std::size_t p = 0; p < ranks(); ++p) end_state(p, parts, exchange);
    exchange.upload(combine(exchange.download()));
    for (std::size_t p = 0; p < ranks(); ++p) forward(p, parts, exchange);
    const Buffers got = parts.download();
    for (const OutputError& error : kGlaForward.expect(whole_, false)->compare(whole_, got)) {
      EXPECT_TRUE(error.passed) << error.output << ' ' << error.value;
    }
    expect_near(uncut.download(), got);
  }

 private:
  std::size_t ranks() const { return cuts_.size() - 1; }

  /// A tensor of rank p in `exchanged_`: 0 state, 1 total, 2 initial state.
  const NamedTensor& shared(std::size_t p, std::size_t which) const {
    return exchanged_.tensors[3 * p + which];
  }

  TensorView shared_view(std::size_t p, std::size_t which, const Placement& exchange) const {
    const NamedTensor& tensor = shared(p, which);
    return view(tensor, exchange.bases()[tensor.buffer], device_);
  }

  /// Rank p's tokens of a tensor; a constant decay is every rank's.
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

  void end_state(std::size_t p, const Placement& parts, const Placement& exchange) const {
    gla_state_forward({.k = part(p, "k", parts),
                       .v = part(p, "v", parts),
                       .log_decay = log_decay(p, parts),
                       .state = shared_view(p, 0, exchange),
                       .total_log_decay = shared_view(p, 1, exchange)});
  }

  /// Each rank's initial state, in order, as the header says.
  Buffers combine(Buffers buffers) const {
    const auto floats = [&](const NamedTensor& tensor, Buffers& from) {
      return reinterpret_cast<float*>(from[tensor.buffer].data() + tensor.offset);
    };
    const NamedTensor& first = whole_.get("initial_state");
    const std::int64_t heads = first.shape[0] * first.shape[1];
    const std::int64_t size = first.shape[2] * first.shape[3];
    std::memcpy(floats(shared(0, 2), buffers), whole_.buffers[first.buffer].data() + first.offset,
                heads * size * sizeof(float));
    for (std::size_t p = 0; p + 1 < ranks(); ++p) {
      const float* before = floats(shared(p, 2), buffers);
      const float* state = floats(shared(p, 0), buffers);
      const float* total = floats(shared(p, 1), buffers);
      float* after = floats(shared(p + 1, 2), buffers);
      for (std::int64_t i = 0; i < heads * size; ++i) {
        after[i] = std::exp(total[i / size]) * before[i] + state[i];
      }
    }
    return buffers;
  }

  void forward(std::size_t p, const Placement& parts, const Placement& exchange) const {
    const NamedTensor& final = whole_.get("final_state");
    GlaForwardArgs args;
    args.q = part(p, "q", parts);
    args.k = part(p, "k", parts);
    args.v = part(p, "v", parts);
    args.o = part(p, "o", parts);
    args.log_decay = log_decay(p, parts);
    args.initial_state = shared_view(p, 2, exchange);
    if (p + 1 == ranks()) args.final_state = view(final, parts.bases()[final.buffer], device_);
    if (whole_.scalars.count("scale")) args.scale = whole_.scalars.at("scale");
    gla_forward(args);
  }

  /// Both round 16-bit operands, at other places.
  void expect_near(const Buffers& uncut, const Buffers& cut) const {
    for (const char* name : {"o", "final_state"}) {
      const NamedTensor& tensor = whole_.get(name);
      const auto at = [&](const Buffers& buffers, std::int64_t offset) {
        return load(tensor.dtype, buffers[tensor.buffer].data() + tensor.offset, offset);
      };
      Squares squares;
      const std::int64_t row = tensor.shape[3];
      for (std::int64_t i = 0; i < tensor.shape.product(); ++i) {
        const std::int64_t offset =
            i / row / tensor.shape[2] / tensor.shape[1] * tensor.strides[0] +
            i / row / tensor.shape[2] % tensor.shape[1] * tensor.strides[1] +
            i / row % tensor.shape[2] * tensor.strides[2] + i % row;
        squares.add(at(cut, offset), at(uncut, offset));
      }
      EXPECT_LE(squares.relative(squares.right), 2 * error_limit(whole_.get("o").dtype)) << name;
    }
  }

  Device device_;
  std::vector<std::int64_t> cuts_;  // rank p holds tokens [cuts[p], cuts[p+1])
  TensorSet whole_;
  TensorSet exchanged_;
};

Case parallel_case(DecayKind kind, DecayDistribution distribution, Strides strides) {
  Case one;
  one.axes = {{"B", 2}, {"T", 700}, {"H", 4}, {"HQ", 2}, {"K", 64}, {"V", 40}};
  one.decay = kind;
  one.distribution = distribution;
  one.states = States::kBoth;
  one.strides = strides;
  if (distribution == DecayDistribution::kPositive) one.scale = 1e-4;  // o in fp16's range
  return one;
}

/// Parts that are uneven, of one token, and empty: at the beginning, inside, at the end.
void check_ranks(Device device, const std::vector<DType>& dtypes) {
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
  for (const Case& one : cases) {
    for (const DType dtype : dtypes) {
      SCOPED_TRACE(to_string(dtype) + " decay " + std::to_string(static_cast<int>(one.decay)) +
                   " distribution " + std::to_string(static_cast<int>(one.distribution)));
      Ranks(one, dtype, device, {0, 0, 1, 70, 70, 71, 130, 690, 700, 700}).check();
    }
  }
}

TEST(GlaState, RanksEqualTheUncutSequence) {
  check_ranks(Device::cpu(), {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
}

TEST(GpuGlaState, RanksEqualTheUncutSequence) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  check_ranks(Device::cuda(), {DType::kBFloat16, DType::kFloat16});
}

}  // namespace
}  // namespace tandem::tools
