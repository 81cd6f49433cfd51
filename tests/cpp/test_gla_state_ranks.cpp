// Sequence parallelism by gla_state_forward: a sequence that ranks hold in parts gives what the
// uncut one gives.
#include <gtest/gtest.h>

#include <vector>

#include "cli/calls/judge.h"
#include "rank_parts.h"
#include "tandem/ops/gla.h"

namespace tandem::tools {
namespace {

/// All that the ranks share is what gla_state_forward returns.
class Ranks {
 public:
  Ranks(const Case& one, DType dtype, Device device)
      : parts_(find_operation("gla").make(one, dtype, 7), device, kCuts, 1) {}

  void check() {
    Placement uncut(whole(), device()), cut(whole(), device()),
        exchange(parts_.exchanged(), device());
    find_operation("gla").call(whole(), uncut.bases(), device(), {});
    for (std::size_t p = 0; p < parts_.ranks(); ++p) end_state(p, cut, exchange);
    Buffers states = exchange.download();
    parts_.combine(states, 0, "initial_state", false);
    exchange.upload(states);
    for (std::size_t p = 0; p < parts_.ranks(); ++p) forward(p, cut, exchange);
    const Buffers got = cut.download();
    for (const OutputError& error :
         find_operation("gla").expect(whole(), false)->compare(whole(), got)) {
      EXPECT_TRUE(error.passed) << error.output << ' ' << error.value;
    }
    expect_near(uncut.download(), got);
  }

 private:
  const TensorSet& whole() const { return parts_.whole(); }
  Device device() const { return parts_.device(); }

  void end_state(std::size_t p, const Placement& cut, const Placement& exchange) const {
    gla_state_forward({.k = parts_.part(p, "k", cut),
                       .v = parts_.part(p, "v", cut),
                       .log_decay = parts_.log_decay(p, cut),
                       .state = parts_.shared(p, 0, RankParts::kState, exchange),
                       .total_log_decay = parts_.shared(p, 0, RankParts::kTotal, exchange)});
  }

  void forward(std::size_t p, const Placement& cut, const Placement& exchange) const {
    const NamedTensor& final = whole().get("final_state");
    GlaForwardArgs args;
    args.q = parts_.part(p, "q", cut);
    args.k = parts_.part(p, "k", cut);
    args.v = parts_.part(p, "v", cut);
    args.o = parts_.part(p, "o", cut);
    args.log_decay = parts_.log_decay(p, cut);
    args.initial_state = parts_.shared(p, 0, RankParts::kBefore, exchange);
    if (p + 1 == parts_.ranks()) {
      args.final_state = view(final, cut.bases()[final.buffer], device());
    }
    if (whole().scalars.count("scale")) args.scale = whole().scalars.at("scale");
    gla_forward(args);
  }

  /// Limits: cut and uncut calls both round 16-bit operands, at different places.
  void expect_near(const Buffers& uncut, const Buffers& cut) const {
    for (const char* name : {"o", "final_state"}) {
      const NamedTensor& tensor = whole().get(name);
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
      EXPECT_LE(squares.relative(squares.right), 2 * error_limit(whole().get("o").dtype)) << name;
    }
  }

  RankParts parts_;
};

TEST(GlaState, RanksEqualTheUncutSequence) { check_ranks<Ranks>(Device::cpu()); }

TEST(GpuGlaState, RanksEqualTheUncutSequence) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  check_ranks<Ranks>(Device::cuda());
}

}  // namespace
}  // namespace tandem::tools
