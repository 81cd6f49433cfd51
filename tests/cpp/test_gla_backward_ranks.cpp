// Sequence parallelism of the backward: ranks that exchange what gla_state_forward and
// gla_state_backward return get the uncut sequence's gradients.
#include <gtest/gtest.h>

#include <vector>

#include "cli/calls/judge.h"
#include "rank_parts.h"
#include "tandem/ops/gla.h"

namespace tandem::tools {
namespace {

class GradientRanks {
  enum Kind { kForward, kBackward };  // which state is exchanged

 public:
  GradientRanks(const Case& one, DType dtype, Device device)
      : parts_(find_operation("gla", "backward").make(one, dtype, 7), device, kCuts, 2) {}

  void check() {
    Placement cut(whole(), parts_.device()), exchange(parts_.exchanged(), parts_.device());
    for (std::size_t p = 0; p < parts_.ranks(); ++p) own_states(p, cut, exchange);
    Buffers states = exchange.download();
    parts_.combine(states, kForward, "initial_state", false);
    parts_.combine(states, kBackward, "d_final_state", true);
    exchange.upload(states);
    Buffers got;
    std::vector<float> constant;  // every rank has a part of a constant decay's gradient
    for (std::size_t p = 0; p < parts_.ranks(); ++p) {
      backward(p, cut, exchange);
      got = cut.download();
      add_constant(constant, got);
    }
    if (!constant.empty()) {
      std::copy(constant.begin(), constant.end(), floats("d_log_decay", got));
    }
    for (const OutputError& error :
         find_operation("gla", "backward").expect(whole(), false)->compare(whole(), got)) {
      EXPECT_TRUE(error.passed) << error.output << ' ' << error.value;
    }
  }

 private:
  const TensorSet& whole() const { return parts_.whole(); }

  std::optional<double> scale() const {
    const auto found = whole().scalars.find("scale");
    return found == whole().scalars.end() ? std::nullopt : std::optional(found->second);
  }

  TensorView shared(std::size_t p, Kind kind, RankParts::What what,
                    const Placement& exchange) const {
    return parts_.shared(p, kind, what, exchange);
  }

  void own_states(std::size_t p, const Placement& cut, const Placement& exchange) const {
    gla_state_forward({.k = parts_.part(p, "k", cut),
                       .v = parts_.part(p, "v", cut),
                       .log_decay = parts_.log_decay(p, cut),
                       .state = shared(p, kForward, RankParts::kState, exchange),
                       .total_log_decay = shared(p, kForward, RankParts::kTotal, exchange)});
    gla_state_backward({.q = parts_.part(p, "q", cut),
                        .d_o = parts_.part(p, "d_o", cut),
                        .log_decay = parts_.log_decay(p, cut),
                        .scale = scale(),
                        .d_state = shared(p, kBackward, RankParts::kState, exchange),
                        .total_log_decay = shared(p, kBackward, RankParts::kTotal, exchange)});
  }

  void backward(std::size_t p, const Placement& cut, const Placement& exchange) const {
    GlaBackwardArgs args;
    args.q = parts_.part(p, "q", cut);
    args.k = parts_.part(p, "k", cut);
    args.v = parts_.part(p, "v", cut);
    args.d_o = parts_.part(p, "d_o", cut);
    args.log_decay = parts_.log_decay(p, cut);
    args.scale = scale();
    args.initial_state = shared(p, kForward, RankParts::kBefore, exchange);
    args.d_final_state = shared(p, kBackward, RankParts::kBefore, exchange);
    args.dq = parts_.part(p, "dq", cut);
    args.dk = parts_.part(p, "dk", cut);
    args.dv = parts_.part(p, "dv", cut);
    if (args.log_decay) args.d_log_decay = parts_.part(p, "d_log_decay", cut);
    if (p == 0) {
      const NamedTensor& initial = whole().get("d_initial_state");
      args.d_initial_state = view(initial, cut.bases()[initial.buffer], parts_.device());
    }
    gla_backward(args);
  }

  float* floats(const char* name, Buffers& from) const {
    const NamedTensor& tensor = whole().get(name);
    return reinterpret_cast<float*>(from[tensor.buffer].data() + tensor.offset);
  }

  void add_constant(std::vector<float>& sums, Buffers& got) const {
    const NamedTensor* gradient = whole().find("d_log_decay");
    if (gradient == nullptr || gradient->shape.rank() != 1) return;
    sums.resize(gradient->shape[0]);
    for (std::size_t h = 0; h < sums.size(); ++h) sums[h] += floats("d_log_decay", got)[h];
  }

  RankParts parts_;
};

TEST(GlaBackward, RanksEqualTheUncutSequence) { check_ranks<GradientRanks>(Device::cpu()); }

TEST(GpuGlaBackward, RanksEqualTheUncutSequence) {
  const std::string reason = cuda_missing_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  check_ranks<GradientRanks>(Device::cuda());
}

}  // namespace
}  // namespace tandem::tools
