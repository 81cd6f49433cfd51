// gla_step for the tools: the direction "step" of gla.
#include <fmt/format.h>

#include <optional>
#include <vector>

#include "cli/calls/judge.h"
#include "cli/ops/gla.h"
#include "reference/gla_step.h"

namespace tandem::tools {
namespace {

Dims without_time(const Dims& dims) {
  return dims.rank() == 4 ? Dims{dims[0], dims[2], dims[3]} : Dims{dims[0], dims[2]};
}

/// Returns the strides of a state [B,H,K,V]; the last is 1.
Dims state_strides(Strides kind, const Dims& shape) {
  const std::int64_t B = shape[0], H = shape[1], K = shape[2], V = shape[3];
  const auto gaps = [&](std::int64_t key, std::int64_t head, std::int64_t batch) {
    const std::int64_t key_stride = V + key, head_stride = K * key_stride + head;
    return Dims{H * head_stride + batch, head_stride, key_stride, 1};
  };
  switch (kind) {
    case Strides::kTransposed: return {K * V, B * K * V, V, 1};  // stored [H,B,K,V]
    case Strides::kPacked: return gaps(0, 0, 2 * H * K * V);     // one of three layers' states
    case Strides::kPadded: return gaps(8, 16, 32);
    case Strides::kOdd: return gaps(3, 5, 7);
    default: return contiguous_strides(shape);
  }
}

GlaStepArgs to_args(const TensorSet& set, const std::vector<void*>& bases, Device device) {
  const Views views(set, bases, device);
  GlaStepArgs args;
  args.q = views.required("q");
  args.k = views.required("k");
  args.v = views.required("v");
  args.state = views.required("state");
  args.o = views.required("o");
  args.log_decay = views.optional("log_decay");
  if (set.scalars.count("scale")) args.scale = set.scalars.at("scale");
  return args;
}

void call(const TensorSet& set, const std::vector<void*>& bases, Device device,
          const Context& context) {
  gla_step(to_args(set, bases, device), context);
}

std::size_t workspace_bytes(const TensorSet&, const std::vector<void*>&, Device) { return 0; }

/// Makes the checked problem over the set's own buffers, to be read only.
GlaStepProblem problem_of(const TensorSet& set) {
  return make_problem(to_args(set, host_bases(set), Device::cpu()));
}

/// What the definition gives for one batch and head.
struct Token {
  std::vector<double> o;      // [V]
  std::vector<double> state;  // [K,V]
};

class StepExpectation : public Expectation {
 public:
  StepExpectation(const TensorSet& set, bool sampled)
      : problem_(problem_of(set)), heads_(heads_to_check(problem_, sampled)) {
    tokens_.resize(heads_.size());
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < heads_.size(); ++i) {
      Token& token = tokens_[i];
      token.o.resize(problem_.V);
      token.state.resize(static_cast<std::size_t>(problem_.K) * problem_.V);
      reference::gla_step_one(problem_, heads_[i] / problem_.H,
                              static_cast<int>(heads_[i] % problem_.H), token.o.data(),
                              token.state.data());
    }
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    std::vector<Squares> o, state;
    for (std::size_t i = 0; i < heads_.size(); ++i) {
      o.push_back(squares(set.get("o"), after, heads_[i], 1, tokens_[i].o));
      state.push_back(squares(set.get("state"), after, heads_[i], problem_.K, tokens_[i].state));
    }
    return {judge("o", o, error_limit(problem_.dtype)),
            judge("state", state, error_limit(problem_.state_dtype))};
  }

 private:
  /// Compares an output of `rows` rows of V elements: o [B,H,V] has one, the state [B,H,K,V] has K.
  Squares squares(const NamedTensor& tensor, const Buffers& after, std::int64_t head, int rows,
                  const std::vector<double>& expected) const {
    const std::byte* data = after[tensor.buffer].data() + tensor.offset;
    const std::int64_t first =
        head / problem_.H * tensor.strides[0] + head % problem_.H * tensor.strides[1];
    Squares squares;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < problem_.V; ++j) {
        squares.add(load(tensor.dtype, data, first + i * tensor.strides[2] + j),
                    expected[static_cast<std::size_t>(i) * problem_.V + j]);
      }
    }
    return squares;
  }

  GlaStepProblem problem_;
  std::vector<std::int64_t> heads_;  // b * H + h
  std::vector<Token> tokens_;
};

/// The state is read and written; q^T S and k v^T are K*V multiply-adds each.
Cost cost(const TensorSet& set) {
  const NamedTensor& state = set.get("state");
  const double elements = static_cast<double>(state.shape.product());
  return {bytes_of(set, kGlaStep) + elements * static_cast<double>(size_of(state.dtype)),
          4 * elements};
}

std::string shape(const TensorSet& set) {
  const GlaStepProblem p = problem_of(set);
  const std::string heads =
      p.H == p.HQ ? fmt::format("H{}", p.H) : fmt::format("H{}/{}", p.H, p.HQ);
  return fmt::format("B{} {} K{} V{} state {}", p.B, heads, p.K, p.V, to_string(p.state_dtype));
}

}  // namespace

TensorSet make_gla_step(const Case& one, DType dtype, std::uint64_t seed) {
  Case token = one;
  token.states = States::kNone;
  TensorSet set = make_gla(token, dtype, seed);
  for (NamedTensor& tensor : set.tensors) {
    if (tensor.shape.rank() == 1) continue;  // a constant decay
    tensor.shape = without_time(tensor.shape);
    tensor.strides = without_time(tensor.strides);
  }
  const Dims state{one.axis("B"), one.axis("H"), one.axis("K"), one.axis("V")};
  const bool shifted = one.strides == Strides::kMisaligned || one.strides == Strides::kOdd;
  const NamedTensor& added = add_tensor(set, "state", one.state_dtype, state,
                                        state_strides(one.strides, state), true, shifted ? 1 : 0);
  fill_normal(added, set.buffers, RandomStream(seed + one.seed, "state"));
  return set;
}

std::unique_ptr<Expectation> expect_gla_step(const TensorSet& set, bool sampled) {
  return std::make_unique<StepExpectation>(set, sampled);
}

const Operation kGlaStep = {.name = "gla",
                            .direction = "step",
                            .function = "gla_step",
                            .inputs = {"q", "k", "v"},
                            .optional_inputs = {"log_decay"},
                            .outputs = {"o", "state"},
                            .make = make_gla_step,
                            .from_file = nullptr,
                            .call = call,
                            .workspace_bytes = workspace_bytes,
                            .expect = expect_gla_step,
                            .cost = cost,
                            .shape = shape};

}  // namespace tandem::tools
