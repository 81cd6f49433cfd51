// gla's outputs against the fp64 definition.
#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "cli/calls/arguments.h"
#include "cli/calls/judge.h"
#include "cli/ops/gla.h"
#include "reference/gla.h"

namespace tandem::tools {
namespace {

/// One sequence and head, and what the definition gives for it.
struct Head {
  std::int64_t b = 0, n = 0;
  int h = 0;
  TokenRange tokens;
  std::vector<double> o;             // [tokens,V]
  std::vector<double> state;         // [K,V]
  std::vector<double> saved_states;  // [tokens/128,K,V]
};

void define(const GlaForwardProblem& problem, Head& head) {
  GlaForwardProblem one = problem;  // this head alone, as a batch of one sequence
  const int hq = head.h / (problem.H / problem.HQ);
  const auto move = [&](StridedTensor& x, int h) {
    x.data = static_cast<std::byte*>(x.data) +
             (head.b * x.batch_stride + head.tokens.begin * x.time_stride + h * x.head_stride) *
                 size_of(problem.dtype);
  };
  const auto moved = [&](const float*& data, std::int64_t elements) {
    data = reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(data) +
                                          elements * size_of(real_dtype(problem.dtype)));
  };
  move(one.q, hq);
  move(one.k, hq);
  move(one.v, head.h);
  if (one.log_decay.data) {
    const DecayTensor& g = problem.log_decay;
    moved(one.log_decay.data,
          head.b * g.batch_stride + head.tokens.begin * g.time_stride + head.h * g.head_stride);
  }
  const std::int64_t state = static_cast<std::int64_t>(problem.K) * problem.V;
  if (one.initial_state) moved(one.initial_state, (head.n * problem.H + head.h) * state);
  one.cu_seqlens = nullptr;
  one.B = one.N = 1;
  one.H = one.HQ = 1;
  one.T = head.tokens.end - head.tokens.begin;
  head.o.resize(one.T * problem.V);
  head.state.resize(state);
  reference::gla_forward_one(one, 0, 0, head.o.data(), head.state.data(),
                             problem.saved_states ? &head.saved_states : nullptr);
}

class GlaExpectation : public Expectation {
 public:
  GlaExpectation(const TensorSet& set, bool sampled)
      : problem_(make_problem(host_arguments<GlaForwardArgs>(gla_forward_signature(), set))) {
    for (const std::int64_t index : heads_to_check(problem_, sampled)) {
      Head head;
      head.n = index / problem_.H;
      head.h = static_cast<int>(index % problem_.H);
      head.b = problem_.cu_seqlens ? 0 : head.n;
      head.tokens = tokens_of(problem_, head.n);
      heads_.push_back(std::move(head));
    }
    for (std::int64_t n = 0; problem_.cu_seqlens && n < problem_.N; ++n) {
      const TokenRange tokens = tokens_of(problem_, n);
      for (std::int64_t t = tokens.begin; t < tokens.end; ++t) inside_.insert(t);
    }
    const std::int64_t count = static_cast<std::int64_t>(heads_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < count; ++i) define(problem_, heads_[i]);
  }

  std::vector<OutputError> compare(const TensorSet& set, const Buffers& after) const override {
    const double by_dtype = error_limit(problem_.dtype);
    std::vector<OutputError> errors = {judge("o", compare_o(set.get("o"), after), by_dtype)};
    if (const NamedTensor* state = set.find("final_state")) {
      const double limit = problem_.log_decay.data ? by_dtype : std::min(by_dtype, 1e-5);
      errors.push_back(judge("final_state", compare_state(*state, after), limit));
    }
    if (const NamedTensor* saved = set.find("saved_states")) {
      errors.push_back(judge("saved_states", compare_saved_states(*saved, after), by_dtype));
    }
    return errors;
  }

 private:
  std::vector<Squares> compare_o(const NamedTensor& o, const Buffers& after) const {
    const std::byte* data = after[o.buffer].data() + o.offset;
    const int V = problem_.V;
    std::vector<Squares> heads;
    for (const Head& head : heads_) {
      Squares squares;
      for (std::int64_t t = head.tokens.begin; t < head.tokens.end; ++t) {
        const std::int64_t row = head.b * o.strides[0] + t * o.strides[1] + head.h * o.strides[2];
        for (int j = 0; j < V; ++j) {
          squares.add(load(o.dtype, data, row + j), head.o[(t - head.tokens.begin) * V + j]);
        }
      }
      heads.push_back(squares);
    }
    Squares outside;  // 0 at tokens outside every sequence
    for (std::int64_t t = 0; problem_.cu_seqlens && t < problem_.T; ++t) {
      for (int h = 0; h < problem_.H && inside_.count(t) == 0; ++h) {
        for (int j = 0; j < V; ++j) {
          outside.add(load(o.dtype, data, t * o.strides[1] + h * o.strides[2] + j), 0);
        }
      }
    }
    heads.push_back(outside);
    return heads;
  }

  std::vector<Squares> compare_state(const NamedTensor& state, const Buffers& after) const {
    const std::byte* data = after[state.buffer].data() + state.offset;
    const std::int64_t size = static_cast<std::int64_t>(problem_.K) * problem_.V;
    std::vector<Squares> heads;
    for (const Head& head : heads_) {
      Squares squares;
      const std::int64_t first = (head.n * problem_.H + head.h) * size;
      for (std::int64_t i = 0; i < size; ++i) {
        squares.add(load(state.dtype, data, first + i), head.state[i]);
      }
      heads.push_back(squares);
    }
    return heads;
  }

  std::vector<Squares> compare_saved_states(const NamedTensor& saved, const Buffers& after) const {
    const std::byte* data = after[saved.buffer].data() + saved.offset;
    const std::int64_t K = problem_.K, V = problem_.V;
    std::vector<Squares> heads;
    for (const Head& head : heads_) {
      Squares squares;
      for (std::int64_t s = 0; s < saved.shape[1]; ++s) {
        const std::int64_t first =
            head.b * saved.strides[0] + s * saved.strides[1] + head.h * saved.strides[2];
        for (std::int64_t i = 0; i < K * V; ++i) {
          squares.add(load(saved.dtype, data, first + i % V * K + i / V),
                      head.saved_states[s * K * V + i]);
        }
      }
      heads.push_back(squares);
    }
    return heads;
  }

  GlaForwardProblem problem_;
  std::vector<Head> heads_;
  std::set<std::int64_t> inside_;  // with cu_seqlens: tokens of some sequence
};

}  // namespace

std::unique_ptr<Expectation> expect_gla(const TensorSet& set, bool sampled) {
  return std::make_unique<GlaExpectation>(set, sampled);
}

}  // namespace tandem::tools
